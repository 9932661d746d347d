"""PostgreSQL: neighbours, and a database that goes away."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from naru.v1 import execution_pb2
from registry_service.errors import CallOutcomeUnknownError, ServiceUnavailableError
from registry_service.ledger.ledger import Ledger
from registry_service.storage.database import Database
from registry_service.storage.postgresql import CATALOG_LOCK, PostgresqlDatabase
from registry_service.storage.url import open_database
from tests.support.ledger import (
    admitted_call,
    asked,
    assert_usage_is_what_the_calls_say,
    backend,
    calls,
    is_settled,
    states,
    taken,
)
from tests.support.postgresql import PostgresqlServer
from tests.support.waiting import eventually

State = execution_pb2.Call


async def test_an_idle_ledger_takes_its_place_again(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    """Nobody calls, so nothing but the loss itself can wake it."""
    before = postgresql.query(backend(postgres), postgresql_url)
    postgresql.query(f"SELECT pg_terminate_backend({before}, 5000)")
    await eventually(lambda: postgresql.query(backend(postgres), postgresql_url) not in ("", before))
    assert await admitted_call(postgres_ledger)


async def test_a_restart_of_the_database_heals(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    running = await admitted_call(postgres_ledger)
    postgresql.stop()
    try:
        settling = asyncio.create_task(postgres_ledger.settle(running, State.SUCCEEDED))
        await eventually(lambda: not postgres_ledger.is_writable)
        for _ in range(3):
            with pytest.raises(ServiceUnavailableError):
                await postgres_ledger.admit(asked())
        assert not settling.done()
    finally:
        postgresql.start()
    async with asyncio.timeout(15):
        await settling
    assert await states(postgres) == {running: State.SUCCEEDED}
    assert await admitted_call(postgres_ledger)
    assert postgresql.query(backend(postgres), postgresql_url)
    await assert_usage_is_what_the_calls_say(postgres)


async def test_a_ledger_that_closes_while_the_database_is_away_says_what_it_must(
    postgresql: PostgresqlServer, postgres: PostgresqlDatabase
):
    ledger = Ledger(postgres)
    await ledger.start()
    running = await admitted_call(ledger)
    postgresql.stop()
    try:
        settling = asyncio.create_task(ledger.settle(running, State.SUCCEEDED))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await ledger.close()
        with pytest.raises(CallOutcomeUnknownError):
            await settling
    finally:
        postgresql.start()


@contextmanager
def commits_that_hang_after_they_are_done(postgresql: PostgresqlServer) -> Iterator[str]:
    """They wait for a standby that does not exist. Yields what their backend waits for."""
    try:
        for statement in ("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"):
            postgresql.query(statement)
        yield "SyncRep"
    finally:
        for statement in ("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"):
            postgresql.query(statement)


@contextmanager
def commits_that_hang_before_they_are_done(postgresql: PostgresqlServer, url: str) -> Iterator[str]:
    """A deferred trigger runs within COMMIT."""
    for statement in (
        "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'",
        "CREATE CONSTRAINT TRIGGER hang AFTER INSERT ON calls DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION hang()",
    ):
        postgresql.query(statement, url)
    yield "PgSleep"
    postgresql.query("DROP TRIGGER hang ON calls", url)


async def break_commit(postgresql: PostgresqlServer, url: str, database: Database, event: str) -> None:
    """Ends the ledger's connection when it is in COMMIT."""
    waiting = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event = '{event}' AND pid = ({backend(database)})"
    await eventually(lambda: postgresql.query(waiting, url) == "1")
    postgresql.query(f"SELECT pg_terminate_backend(({backend(database)}), 5000)", url)


async def test_a_commit_that_broke_after_it_was_done_has_admitted(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    kept, given_up = asked(), asked()
    with commits_that_hang_after_they_are_done(postgresql) as event:
        admitting = asyncio.create_task(postgres_ledger.admit(kept))
        leaving = asyncio.create_task(postgres_ledger.admit(given_up))
        await taken(postgres_ledger)
        leaving.cancel()
        await break_commit(postgresql, postgresql_url, postgres, event)
    async with asyncio.timeout(15):
        assert await admitting is True
    await eventually(lambda: is_settled(postgres, given_up.call_id, State.CANCELLED))
    assert (await states(postgres))[kept.call_id] == State.RUNNING
    await assert_usage_is_what_the_calls_say(postgres)


async def test_a_commit_that_broke_before_it_was_done_has_not_admitted(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    running = await admitted_call(postgres_ledger)
    with commits_that_hang_before_they_are_done(postgresql, postgresql_url) as event:
        admitting = asyncio.create_task(postgres_ledger.admit(asked()))
        settling = asyncio.create_task(postgres_ledger.settle(running, State.SUCCEEDED))
        await break_commit(postgresql, postgresql_url, postgres, event)
        async with asyncio.timeout(15):
            with pytest.raises(ServiceUnavailableError):
                await admitting
    await settling
    assert await states(postgres) == {running: State.SUCCEEDED}
    await assert_usage_is_what_the_calls_say(postgres)


async def test_a_change_waits_for_an_admission_that_another_replica_is_writing(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    for statement in (
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END'",
        "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON calls DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()",
    ):
        postgresql.query(statement, postgresql_url)
    other = open_database(postgresql_url)

    async def change() -> set[str]:
        async with other.change():
            pass
        return set(await calls(other))

    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = {}"
    async with postgres.sessions() as holder:
        await holder.execute(text("SELECT pg_advisory_xact_lock(4711)"))
        admission = asked()
        admitting = asyncio.create_task(postgres_ledger.admit(admission))
        await eventually(lambda: postgresql.query(waiting.format(4711), postgresql_url) == "1")
        changing = asyncio.create_task(change())
        await eventually(lambda: postgresql.query(waiting.format(CATALOG_LOCK[1]), postgresql_url) == "1")
        assert not admitting.done()
        assert not changing.done()
    assert await admitting is True
    assert await changing == {admission.call_id}
    assert await postgres_ledger.admit(asked()) is False
    await other.close()


async def test_replicas_do_not_deadlock_on_counters(postgresql_url: str, postgres: PostgresqlDatabase):
    """They count for the same accounts at the same time, in whatever order the calls came."""
    others = [open_database(postgresql_url) for _ in range(2)]
    ledgers = [Ledger(database) for database in others]
    for ledger in ledgers:
        await ledger.start()
    for _ in range(10):
        names = [f"c{n}" for n in range(20)]
        await asyncio.gather(
            *(admitted_call(ledgers[0], client_id=name) for name in names),
            *(admitted_call(ledgers[1], client_id=name) for name in reversed(names)),
        )
    async with postgres.sessions() as session:
        query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert (await session.execute(query)).scalar_one() == 0
    await assert_usage_is_what_the_calls_say(postgres)
    for ledger in ledgers:
        await ledger.close()
    for database in others:
        await database.close()


async def test_a_server_that_lets_read_only_is_away(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    running = await admitted_call(postgres_ledger)
    name = postgresql.query("SELECT current_database()", postgresql_url)
    postgresql.query(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    postgresql.query(f"SELECT pg_terminate_backend(({backend(postgres)}), 5000)", postgresql_url)
    await eventually(lambda: not postgres_ledger.is_writable)
    with pytest.raises(ServiceUnavailableError):
        await postgres_ledger.admit(asked())
    settling = asyncio.create_task(postgres_ledger.settle(running, State.SUCCEEDED))
    postgresql.query(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await eventually(lambda: postgres_ledger.is_writable)
    async with asyncio.timeout(5):
        await settling
    assert await admitted_call(postgres_ledger)
