"""Calls that end on both sides of each of our timers: none is lost, and nothing of it stays.

A timer of ours that fires while a call ends must not matter to the call: what waits for an end looks at the end itself.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ops.stack import Process
from tests.support.pair import QUICK_KEEPALIVE, QUICK_STREAM_AFTER, Pair, Tool
from tests.support.scene import metric
from tests.support.speaker import AGENT_BUILDER, LEGACY, MODERN, XDATA, Speaker
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORKERS = 16
# A JSON call that takes longer than this tells its id before its end.
TELL_SECONDS = 0.5
TOOL_SECONDS = 0.3
# How much later than its endpoint's time any answer may come.
ANSWER_SECONDS = 2.0
# Most endpoints answer before the timer fires: their calls had to be admitted first, which takes time as well.
BELOW, ABOVE = 0.03, 0.01

SECONDS = {"type": "object", "properties": {"seconds": {"type": "number"}}}


def around(seconds: float, number: int) -> list[float]:
    """So many times on both sides of `seconds`."""
    return [seconds - BELOW + (BELOW + ABOVE) * step / number for step in range(number)]


async def call_all(
    pair: Pair, tool: Tool, times: Sequence[float], speaker: Speaker, gateway: Process
) -> list[dict[str, Any]]:
    """Makes a call with an endpoint of each time, 16 at once; returns their last messages."""
    waiting = list(enumerate(times))
    answers: list[dict[str, Any]] = []

    async def work() -> None:
        while waiting:
            number, seconds = waiting.pop()
            async with asyncio.timeout(seconds + ANSWER_SECONDS):
                reply = await pair.call(tool, {"seconds": seconds}, speaker=speaker, id=number, gateway=gateway)
            assert reply.messages[-1]["id"] == number
            answers.append(reply.messages[-1])

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(work())
    await eventually(lambda: metric(gateway, "naru_gateway_in_flight") == 0)
    await eventually(lambda: metric(pair.registry, "naru_calls_running") == 0)
    return answers


@pytest.mark.parametrize(
    ("speaker", "quick", "seconds", "number"),
    [
        pytest.param(AGENT_BUILDER, False, TELL_SECONDS, 320, id="a call's early id"),
        pytest.param(MODERN, True, QUICK_STREAM_AFTER, 160, id="the late commit"),
        pytest.param(LEGACY, True, QUICK_STREAM_AFTER + QUICK_KEEPALIVE, 160, id="the keep-alive after it"),
        pytest.param(XDATA, True, QUICK_KEEPALIVE, 160, id="the keep-alive of a stream"),
    ],
)
async def test_calls_that_end_when_a_timer_fires_are_answered(
    pair: Pair, speaker: Speaker, quick: bool, seconds: float, number: int
):
    tool = pair.tool("/sleep", endpoint={"method": "GET"}, inputSchema=SECONDS)
    times = around(seconds, number)
    answers = await call_all(pair, tool, times, speaker, pair.quick if quick else pair.gateway)
    assert sorted(answer["result"]["structuredContent"]["slept"] for answer in answers) == times


@pytest.mark.parametrize("speaker", [AGENT_BUILDER, XDATA], ids=lambda speaker: speaker.name)
async def test_calls_that_end_at_their_time_limit_are_told_what_is_recorded(pair: Pair, speaker: Speaker):
    tool = pair.tool("/sleep", endpoint={"method": "GET"}, inputSchema=SECONDS, timeout=f"{TOOL_SECONDS}s")
    number = 160
    answers = await call_all(pair, tool, around(TOOL_SECONDS, number), speaker, pair.gateway)
    told = Counter("failed" if answer["result"].get("isError") else "succeeded" for answer in answers)
    recorded = {outcome: metric(pair.registry, "naru_calls_total", tool=tool.name, outcome=outcome) for outcome in told}
    assert told == recorded
    assert set(told) == {"failed", "succeeded"}
