"""Clients that leave: a modern one has cancelled its call, down to the endpoint's socket; a legacy one has not."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

from ops.stack import Stack
from tests.support.scene import (
    Open,
    Scene,
    assert_no_faults,
    assert_usage_is_ledger,
    call_id_of,
    connections,
    metric,
    opened,
)
from tests.support.speaker import AGENT_BUILDER, LEGACY, MODERN, MODERN_SSE, NDJSON, XDATA, Speaker
from tests.support.waiting import eventually

# From the client's leaving to the end of the endpoint's connection.
CANCEL_SECONDS = 1.0
IDLE_SECONDS = 1.0
# Of one core, over IDLE_SECONDS. Health checks and timers take a little.
IDLE_SHARE = 0.1
STREAMING_LEGACY = (LEGACY, XDATA, NDJSON)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("disconnect")) as stack:
        registry = stack.registry()
        stack.gateway(registry)
        yield stack
        assert_no_faults(*stack.processes)


@pytest.fixture
async def scene(pair: Stack) -> AsyncIterator[Scene]:
    async with opened(pair, pair.registries[0], pair.gateways[0]) as scene:
        yield scene
        await nothing_is_open(scene)


async def nothing_is_open(scene: Scene) -> None:
    """Neither a request nor a call is left in either process."""
    [registry], [gateway] = scene.stack.registries, scene.stack.gateways
    await eventually(lambda: metric(registry, "naru_calls_running") == 0)
    await eventually(lambda: metric(gateway, "naru_gateway_in_flight") == 0)


async def leave_while_pending(scene: Scene, tool: str, speaker: Speaker) -> str:
    """Calls, and closes the connection before there is an answer (SSE: but its head); returns the call's id."""
    calling = asyncio.create_task(scene.client.open_call(tool, speaker=speaker))
    call_id = await scene.arrived()
    if calling.cancel():
        await asyncio.wait([calling])
    else:
        calling.result().leave()
    return call_id


async def begin_stream(scene: Scene, tool: str, speaker: Speaker) -> Open:
    """Calls, and waits for the first progress of the stream."""
    stream = await scene.client.open_call(tool, speaker=speaker)
    message = await stream.message()
    assert message is not None
    assert message["method"] == "notifications/progress"
    return stream


async def assert_cancelled(scene: Scene, call_id: str, left: float) -> None:
    assert await scene.gone() == call_id
    assert time.monotonic() - left < CANCEL_SECONDS
    assert await scene.settled(call_id) == "CANCELLED"


async def assert_runs_on(scene: Scene, call_id: str) -> None:
    """The call is still running when a modern client, which left after it, has been noticed everywhere."""
    witness = await leave_while_pending(scene, scene.tool("/hang"), MODERN)
    assert await scene.gone() == witness
    assert scene.state(call_id) == "RUNNING"
    scene.endpoint.gate.set()
    assert await scene.settled(call_id) == "SUCCEEDED"


@pytest.mark.parametrize("speaker", [MODERN, MODERN_SSE])
async def test_a_modern_client_that_leaves_before_its_answer_has_cancelled(scene: Scene, speaker: Speaker):
    call_id = await leave_while_pending(scene, scene.tool("/hang"), speaker)
    await assert_cancelled(scene, call_id, time.monotonic())


@pytest.mark.parametrize("speaker", [MODERN, MODERN_SSE])
@pytest.mark.parametrize("how", [Open.leave, Open.reset])
async def test_a_modern_client_that_leaves_its_stream_has_cancelled(scene: Scene, speaker: Speaker, how):
    stream = await begin_stream(scene, scene.tool("/gated-progress"), speaker)
    call_id = await scene.arrived()
    how(stream)
    await assert_cancelled(scene, call_id, time.monotonic())


@pytest.mark.parametrize("speaker", [AGENT_BUILDER, LEGACY, XDATA])
async def test_a_legacy_client_that_leaves_before_its_answer_lets_the_call_run(scene: Scene, speaker: Speaker):
    call_id = await leave_while_pending(scene, scene.tool("/gate"), speaker)
    await assert_runs_on(scene, call_id)


@pytest.mark.parametrize("speaker", STREAMING_LEGACY)
@pytest.mark.parametrize("how", [Open.leave, Open.reset])
async def test_a_legacy_client_that_leaves_its_stream_lets_the_call_run(scene: Scene, speaker: Speaker, how):
    stream = await begin_stream(scene, scene.tool("/gated-progress"), speaker)
    call_id = await scene.arrived()
    assert stream.call_id in {"", call_id}
    how(stream)
    await assert_runs_on(scene, call_id)


async def test_a_cancelled_call_takes_nothing_from_its_neighbour(scene: Scene):
    """Two calls of one tool with the same progress: who leaves, is gone alone."""
    tool = scene.tool("/gated-progress")
    leaving, staying = [await begin_stream(scene, tool, MODERN) for _ in range(2)]
    gone, _ = [await scene.arrived() for _ in range(2)]
    leaving.leave()
    assert await scene.gone() == gone
    scene.endpoint.gate.set()
    assert (await staying.rest()).value == {"passed": True}


async def test_clients_that_leave_at_any_moment_leave_the_truth(scene: Scene):
    """Before admission, while it is written, while it runs: what ran is recorded and counted, and no place is lost."""
    places = 8
    tool = scene.tool("/echo", maxConcurrency=places)
    moments = random.Random(1)

    async def come_and_go(speaker: Speaker) -> None:
        for _ in range(30):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(moments.uniform(0.0005, 0.02)):
                    await scene.client.call(tool, speaker=speaker)

    await asyncio.gather(*(come_and_go(speaker) for speaker in (MODERN, MODERN_SSE) * 4))
    await nothing_is_open(scene)
    rows = scene.rows()
    executed = [call_id_of(request) for request in scene.endpoint.received]
    assert len(executed) == len(set(executed))
    assert set(executed) <= rows.keys()
    assert {row.state for row in rows.values()} == {"SUCCEEDED", "CANCELLED"}
    assert_usage_is_ledger(scene.admin, rows)
    replies = await asyncio.gather(*(scene.client.call(tool) for _ in range(places)))
    assert {reply.reason for reply in replies} == {""}


async def test_clients_that_are_reset_leave_nothing_behind(scene: Scene):
    """Half of them modern, whose calls end at once, half legacy, whose calls run on."""
    [registry], [gateway] = scene.stack.registries, scene.stack.gateways
    tool = scene.tool("/gated-progress")
    speakers = [MODERN, MODERN_SSE, *STREAMING_LEGACY[:2]]
    streams = await asyncio.gather(
        *(begin_stream(scene, tool, speakers[number % len(speakers)]) for number in range(52))
    )
    call_ids = [await scene.arrived() for _ in streams]
    assert metric(registry, "naru_calls_running") == 52
    assert metric(gateway, "naru_gateway_in_flight") == 52
    for stream in streams:
        stream.reset()
    cancelled = {await scene.gone() for _ in range(26)}
    await eventually(lambda: metric(registry, "naru_calls_running") == 26)
    scene.endpoint.gate.set()
    await nothing_is_open(scene)
    for call_id in call_ids:
        assert scene.state(call_id) == ("CANCELLED" if call_id in cancelled else "SUCCEEDED")
    await eventually(lambda: sum(connections(process, psutil.CONN_CLOSE_WAIT) for process in (gateway, registry)) == 0)
    for process in (gateway, registry):
        assert idle_share(process.pid) < IDLE_SHARE
    assert (await scene.client.call(tool)).value == {"passed": True}


def idle_share(pid: int) -> float:
    """Returns the share of a core that the process takes while nobody asks it anything."""
    return psutil.Process(pid).cpu_percent(IDLE_SECONDS) / 100
