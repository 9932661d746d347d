"""kill -9 in the middle of load: what clients were told is true, and the ledger knows all that happened."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops.stack import Process, Stack
from tests.support.postgresql import PostgresqlServer, running_postgresql
from tests.support.scene import (
    Load,
    Reply,
    Row,
    Scene,
    assert_no_faults,
    assert_usage_is_ledger,
    call_id_of,
    ledger,
    opened,
    state_of,
)
from tests.support.speaker import AGENT_BUILDER, LEGACY, MODERN, XDATA
from tests.support.waiting import eventually

CONTRACTS = (AGENT_BUILDER, LEGACY, XDATA, MODERN)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> PostgresqlServer | None:
    """The server behind `any_stack`; None where that is on SQLite."""
    return request.getfixturevalue("postgresql") if request.param == "postgresql" else None


@pytest.fixture
def any_stack(request: pytest.FixtureRequest, database: PostgresqlServer | None) -> Stack:
    name = "stack" if database is None else "postgresql_stack"
    stack = request.getfixturevalue(name)
    assert isinstance(stack, Stack)
    return stack


@pytest.fixture
async def scene(any_stack: Stack) -> AsyncIterator[Scene]:
    registry = any_stack.registry()
    async with opened(any_stack, registry, any_stack.gateway(registry)) as scene:
        yield scene


async def restart(stack: Stack, dead: Process) -> Process:
    """Starts a registry where the dead one was."""
    return await asyncio.to_thread(stack.registry, REGISTRY_BIND=dead.address)


async def hanging(scene: Scene, tool: str) -> tuple[list[asyncio.Task[Reply]], set[str]]:
    """A call of each speaker that its endpoint has got and will not answer, and their ids."""
    tasks = [asyncio.create_task(scene.client.call(tool, speaker=speaker)) for speaker in CONTRACTS]
    return tasks, {await scene.arrived() for _ in tasks}


def assert_told_the_truth(replies: list[Reply], rows: dict[str, Row], executed: set[str]) -> None:
    """Success is in the ledger; what was called safe to retry has left no trace; nothing else is an excuse."""
    by_id = {row.id: row for row in rows.values()}
    for reply in replies:
        if not reply.reason:
            assert rows[reply.call_id].state == "SUCCEEDED"
            assert reply.call_id in executed
        elif reply.error["safe_to_retry"]:
            assert reply.reason == "SERVICE_UNAVAILABLE", reply
            assert reply.id not in by_id, (reply, by_id[reply.id])
        else:
            assert reply.reason == "CALL_OUTCOME_UNKNOWN", reply


async def test_a_registry_killed_under_load_has_kept_its_promises(
    scene: Scene, any_stack: Stack, database: PostgresqlServer | None
):
    [registry] = any_stack.registries
    lost, lost_ids = await hanging(scene, scene.tool("/hang"))
    load = Load(scene.client, scene.tool("/echo"), CONTRACTS)
    load.start()
    await load.succeeded(100)
    registry.kill()
    restarted = await restart(any_stack, registry)
    await load.succeeded(100)
    await load.stop()

    rows = ledger(any_stack, database)
    received = [call_id_of(request) for request in scene.endpoint.received]
    assert len(received) == len(set(received)), "a call was executed twice"
    assert set(received) <= rows.keys()
    assert_told_the_truth(load.replies, rows, set(received))
    assert {row.state for row in rows.values()} == {"SUCCEEDED", "UNKNOWN"}
    assert {rows[call_id].state for call_id in lost_ids} == {"UNKNOWN"}
    admin = any_stack.admin(restarted)
    assert_usage_is_ledger(admin, rows)
    for reply in await asyncio.gather(*lost):
        assert (reply.reason, reply.error["safe_to_retry"]) == ("CALL_OUTCOME_UNKNOWN", False)
        assert reply.call_id in {"", *lost_ids}
    assert_no_faults(*any_stack.processes)


async def test_a_database_that_crashes_under_load_has_kept_its_promises(tmp_path: Path):
    """A group of calls whose COMMIT broke was written or was not: the registry finds out before it says anything."""
    with running_postgresql() as server, Stack(tmp_path, server.create_database()) as stack:
        registry = stack.registry()
        async with opened(stack, registry, stack.gateway(registry)) as scene:
            load = Load(scene.client, scene.tool("/echo"), CONTRACTS)
            load.start()
            for _ in range(2):
                await load.succeeded(100)
                await asyncio.to_thread(server.crash)
                await asyncio.to_thread(server.start)
            await load.succeeded(100)
            await load.stop()
            await eventually(lambda: {row.state for row in ledger(stack, server).values()} == {"SUCCEEDED"})
            rows = ledger(stack, server)
            executed = [call_id_of(request) for request in scene.endpoint.received]
            assert sorted(executed) == sorted(rows)
            assert_told_the_truth(load.replies, rows, set(executed))
            assert_usage_is_ledger(scene.admin, rows)
    assert_no_faults(*stack.processes)


async def test_a_dead_neighbour_takes_nothing_from_the_survivor(postgresql_stack: Stack, postgresql: PostgresqlServer):
    stack = postgresql_stack
    doomed, survivor = stack.run_registry(), stack.run_registry()
    for registry in (doomed, survivor):
        registry.wait_ready()
    async with opened(stack, survivor, stack.gateway(survivor)) as scene:
        neighbour = scene.client.of(stack.gateway(doomed))
        gated, echo = scene.tool("/gate"), scene.tool("/echo")
        kept, kept_ids = await hanging(scene, gated)
        lost = [asyncio.create_task(neighbour.call(gated, speaker=speaker)) for speaker in CONTRACTS]
        lost_ids = {await scene.arrived() for _ in lost}
        load = Load(scene.client, echo, CONTRACTS, workers=4)
        load.start()
        await load.succeeded(20)

        doomed.kill()
        for reply in await asyncio.gather(*lost):
            assert (reply.reason, reply.error["safe_to_retry"]) == ("CALL_OUTCOME_UNKNOWN", False)
        restarted = await restart(stack, doomed)
        await eventually(lambda: {state_of(scene.admin, call_id) for call_id in lost_ids} == {"UNKNOWN"})
        assert {state_of(stack.admin(restarted), call_id) for call_id in kept_ids} == {"RUNNING"}
        await load.succeeded(20)
        await load.stop()
        assert set(load.reasons()) == {""}

        scene.endpoint.gate.set()
        assert {reply.reason for reply in await asyncio.gather(*kept)} == {""}
        assert (await neighbour.call(echo)).reason == ""
        rows = ledger(stack, postgresql)
        assert {rows[call_id].state for call_id in kept_ids} == {"SUCCEEDED"}
        assert {row.call_id for row in rows.values() if row.state != "SUCCEEDED"} == lost_ids
        assert {call_id_of(request) for request in scene.endpoint.received} == rows.keys()
        assert_usage_is_ledger(scene.admin, rows)
    assert_no_faults(*stack.processes)
