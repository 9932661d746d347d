"""Processes that die, and what becomes of their calls."""

import asyncio

import pytest

from naru.v1 import errors_pb2, execution_pb2
from registry_service.ledger.ledger import Ledger
from registry_service.ledger.orphans import Orphans
from registry_service.storage.postgresql import PostgresqlDatabase
from registry_service.storage.url import open_database
from tests.support.ledger import (
    admitted_call,
    all_are,
    assert_usage_is_what_the_calls_say,
    backend,
    calls,
    states,
)
from tests.support.ledger_processes import holding
from tests.support.postgresql import PostgresqlServer
from tests.support.waiting import eventually

State = execution_pb2.Call


async def test_calls_of_a_killed_process_are_unknown_when_the_next_has_started(database_url: str, start_process):
    database = open_database(database_url)
    await database.migrate()
    await database.close()
    process = await holding(start_process)
    await process.kill()
    assert (len(process.admitted), len(process.settled)) == (6, 2)

    database = open_database(database_url)
    before = await states(database)
    assert before == dict.fromkeys(process.admitted, State.RUNNING) | dict.fromkeys(process.settled, State.SUCCEEDED)
    ledger = Ledger(database, orphan_seconds=0.2 if database.dialect == "postgresql" else 60)
    async with asyncio.timeout(10):
        await ledger.start()
    found = await calls(database)
    for call_id in process.admitted:
        ended = call_id in process.settled
        assert found[call_id].state == (State.SUCCEEDED if ended else State.UNKNOWN)
        assert found[call_id].reason == (0 if ended else errors_pb2.CALL_OUTCOME_UNKNOWN)
        assert found[call_id].settle_time is not None
    await assert_usage_is_what_the_calls_say(database)
    await ledger.close()
    await database.close()


async def test_a_process_killed_under_load_has_kept_all_that_it_promised(database_url: str, start_process):
    database = open_database(database_url)
    await database.migrate()
    await database.close()
    process = await start_process("load")
    async with asyncio.timeout(30):
        while len(process.settled) < 500:
            assert await process.told()
        await process.kill()

    database = open_database(database_url)
    ledger = Ledger(database, orphan_seconds=0.2)
    await ledger.start()
    found = await states(database)
    assert process.admitted <= set(found)
    assert {found[call_id] for call_id in process.settled} == {State.SUCCEEDED}
    assert set(found.values()) <= {State.SUCCEEDED, State.UNKNOWN}
    await assert_usage_is_what_the_calls_say(database)
    await ledger.close()
    await database.close()


only_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@only_postgresql
async def test_a_survivor_settles_the_calls_of_the_dead_and_of_nobody_else(database_url: str, start_process):
    """Two others run beside it; one is killed. The sweep finds that without a restart of anybody."""
    database = open_database(database_url)
    await database.migrate()
    ledger = Ledger(database, sweep_seconds=0.1)
    await ledger.start()
    own = await admitted_call(ledger)
    third = open_database(database_url)
    starting = Ledger(third, orphan_seconds=0.2)
    neighbour = await holding(start_process)

    async def kill_one() -> None:
        killed = await holding(start_process)
        await killed.kill()
        orphans = killed.admitted - killed.settled
        await eventually(lambda: all_are(database, orphans, State.UNKNOWN))
        assert await all_are(database, killed.settled, State.SUCCEEDED)

    await kill_one()
    await starting.start()
    await kill_one()
    assert await all_are(database, {own, *neighbour.admitted} - neighbour.settled, State.RUNNING)
    assert await all_are(database, neighbour.settled, State.SUCCEEDED)
    await assert_usage_is_what_the_calls_say(database)
    for part in (starting, third, ledger, database):
        await part.close()


async def test_a_neighbour_that_lost_its_connection_is_not_dead(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    call_id = await admitted_call(postgres_ledger)
    other = open_database(postgresql_url)
    for _ in range(3):
        await eventually(lambda: postgresql.query(backend(postgres), postgresql_url))
        ended = postgresql.query(f"SELECT pg_terminate_backend(({backend(postgres)}), 5000)", postgresql_url)
        assert ended == "t"
        starting = Ledger(other, sweep_seconds=0.1, orphan_seconds=0.5)
        await starting.start()
        await starting.close()
        assert (await states(postgres))[call_id] == State.RUNNING
    await postgres_ledger.settle(call_id, State.SUCCEEDED)
    await other.close()


async def test_calls_are_not_settled_when_their_executor_looks_dead_for_the_first_time(postgresql_url: str):
    """It may be alive, and connecting anew."""
    gone = open_database(postgresql_url)
    await gone.migrate()
    ledger = Ledger(gone)
    await ledger.start()
    call_id = await admitted_call(ledger)
    await ledger.close()
    database = open_database(postgresql_url)
    orphans = Orphans(database)
    assert await orphans.settle()
    assert await states(database) == {call_id: State.RUNNING}
    assert not await orphans.settle()
    assert await states(database) == {call_id: State.UNKNOWN}
    for part in (gone, database):
        await part.close()
