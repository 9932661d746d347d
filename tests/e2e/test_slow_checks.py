"""Arguments and answers whose check takes seconds, beside calls of others: nobody else waits for them."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from statistics import quantiles
from typing import Any

import pytest

from ops.stack import Stack
from tests.support.scene import Scene, assert_no_faults, opened
from tests.support.scripted_endpoint import Script
from tests.support.speaker import AGENT_BUILDER

CALLS = 150
# Cores are shared with whatever else runs; a check that held the event loop would take seconds.
SCHEDULING_SECONDS = 0.1
ANY = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.fixture
async def scene(stack: Stack) -> AsyncIterator[Scene]:
    registry = stack.registry()
    async with opened(stack, registry, stack.gateway(registry)) as scene:
        yield scene
    assert_no_faults(*stack.processes)


def schema_of(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": keywords}}


def hostile_text() -> str:
    return "".join(random.Random(1).choices("ab", k=3_000_000)) + "c"


SLOW: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "states of a pattern": (schema_of(pattern="[ab]*a[ab]{500}c"), hostile_text),
    "unique numbers": (schema_of(uniqueItems=True), lambda: [10**19 + number for number in range(150_000)]),
    "numbers in an enum": (schema_of(items={"enum": [n / 7 for n in range(5000)]}), lambda: [4999 / 7] * 150_000),
}


async def timed(scene: Scene, tool: str) -> float:
    began = time.perf_counter()
    assert (await scene.client.call(tool, {"a": "x"}, AGENT_BUILDER)).value
    return time.perf_counter() - began


def p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


async def assert_others_go_on(scene: Scene, good: str, slow: Callable[[], Any]) -> None:
    """The 99th of 100 calls takes no longer than twice what it takes alone, scheduling aside, and health stays good."""
    alone = [await timed(scene, good) for _ in range(CALLS)]
    task, beside = asyncio.create_task(slow()), []
    while not task.done():
        beside.append(await timed(scene, good))
    await task
    assert (await scene.client.get("/readyz"))[0] == 200
    assert len(beside) >= CALLS
    assert p99(beside) < 2 * p99(alone) + SCHEDULING_SECONDS, (p99(alone), p99(beside), max(beside))


@pytest.mark.parametrize(("schema", "value"), SLOW.values(), ids=SLOW)
async def test_arguments_that_take_long_to_check_hold_up_nobody(scene: Scene, schema: Any, value: Callable[[], Any]):
    good, slow = scene.tool("/echo", inputSchema=ANY), scene.tool("/echo", inputSchema=schema)
    other = scene.client.of(credential=scene.admin.create_account())
    arguments = {"a": value()}

    async def greedy() -> None:
        for reply in await asyncio.gather(*[other.call(slow, arguments) for _ in range(2)]):
            assert reply.reason == "ARGUMENTS_INVALID"
            assert [violation["keyword"] for violation in reply.error["violations"]] == ["tooSlow"]

    await assert_others_go_on(scene, good, greedy)


async def test_an_answer_that_takes_long_to_check_holds_up_nobody(scene: Scene):
    numbers = b'{"a":[' + b",".join(b"%d" % (10**19 + number) for number in range(150_000)) + b"]}"
    scene.endpoint.serve("/numbers", Script(chunks=[numbers]))
    slow = scene.tool("/numbers", outputSchema=schema_of(uniqueItems=True))
    good = scene.tool("/echo", inputSchema=ANY)

    async def call() -> None:
        assert (await scene.client.call(slow)).reason == "TOOL_RESPONSE_INVALID"

    await assert_others_go_on(scene, good, call)


async def test_large_values_that_are_right_are_taken(scene: Scene):
    tool = scene.tool("/size", inputSchema=schema_of(pattern="^[a-z ]*$"))
    reply = await scene.client.call(tool, {"a": "error " * 500_000})
    assert reply.reason == ""
