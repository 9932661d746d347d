import asyncio
import errno
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import pytest
import structlog
import structlog.testing
from sqlalchemy import func, select, text, update

from naru.v1 import errors_pb2, execution_pb2
from registry_service.errors import CallOutcomeUnknownError, ServiceUnavailableError
from registry_service.ledger import journal
from registry_service.ledger import ledger as ledger_module
from registry_service.ledger.ledger import MAX_GROUP, Admission, Ledger, new_call_id
from registry_service.storage import database as database_module
from registry_service.storage.database import (
    CATALOG_LOCK,
    Database,
    DatabaseUnreachableError,
    PostgresqlDatabase,
    SqliteDatabase,
)
from registry_service.storage.models import Call, Usage, now_micros
from tests.support.postgresql import PostgresqlServer
from tests.support.waiting import eventually

State = execution_pb2.Call
LATE_IN_2025 = datetime(2025, 12, 31, 14, 59, 59, 999_999, tzinfo=UTC)  # a microsecond before the new year in Seoul


def micros(moment: datetime) -> int:
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


def asked(**changes: object) -> Admission:
    admission = Admission(
        call_id=new_call_id(),
        client_id="nrci_abc",
        tool="echo",
        version="1.0",
        lane="production",
        session_id="session",
        request_id='"7"',
        revision=1,
        create_time=now_micros(),
    )
    return replace(admission, **changes)  # type: ignore[arg-type]


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    started = Ledger(database)
    await started.start()
    yield started
    await started.close()


async def calls(database: Database) -> dict[str, Call]:
    async with database.sessions() as session:
        return {call.call_id: call for call in await session.scalars(select(Call))}


async def states(database: Database) -> dict[str, int]:
    return {call_id: call.state for call_id, call in (await calls(database)).items()}


async def counters(database: Database) -> dict[tuple[str, str, str], int]:
    async with database.sessions() as session:
        return {(row.client_id, row.lane, row.period): row.calls for row in await session.scalars(select(Usage))}


async def assert_usage_is_what_the_calls_say(database: Database) -> None:
    expected = Counter[tuple[str, str, str]]()
    for call in (await calls(database)).values():
        seoul = datetime.fromtimestamp((call.create_time + 9 * 3_600_000_000) // 1_000_000, UTC)
        for form in ("%Y-%m-%d", "%Y-%m"):
            expected[call.client_id, call.lane, seoul.strftime(form)] += 1
    assert await counters(database) == expected


async def admitted_call(ledger: Ledger, **changes: object) -> str:
    admission = asked(**changes)
    assert await ledger.admit(admission) is True
    return admission.call_id


# Admitted means recorded


async def test_an_admitted_call_is_recorded_and_counted(database: Database, ledger: Ledger):
    admission = asked(create_time=micros(datetime(2026, 3, 4, 5, tzinfo=UTC)))
    assert await ledger.admit(admission) is True
    [call] = (await calls(database)).values()
    for name in ("call_id", "client_id", "tool", "version", "lane", "session_id", "request_id", "create_time"):
        assert getattr(call, name) == getattr(admission, name)
    assert (call.executor, call.state, call.reason, call.settle_time) == (database.executor, State.RUNNING, 0, None)
    assert await counters(database) == {
        ("nrci_abc", "production", "2026-03-04"): 1,
        ("nrci_abc", "production", "2026-03"): 1,
    }


async def test_text_of_any_script_is_kept(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger, request_id='"나루 🚢"', session_id="x" * 10_000)
    call = (await calls(database))[call_id]
    assert (call.request_id, call.session_id) == ('"나루 🚢"', "x" * 10_000)


async def test_days_and_months_are_those_of_seoul(database: Database, ledger: Ledger):
    before = micros(LATE_IN_2025)
    for moment in (before, before + 1, before + 1):
        await admitted_call(ledger, create_time=moment)
    assert {period: count for (_, _, period), count in (await counters(database)).items()} == {
        "2025-12-31": 1,
        "2025-12": 1,
        "2026-01-01": 2,
        "2026-01": 2,
    }


async def test_usage_is_what_the_calls_say(database: Database, ledger: Ledger):
    moments = (micros(LATE_IN_2025), micros(LATE_IN_2025) + 1)
    await asyncio.gather(
        *(
            admitted_call(ledger, client_id=f"c{n % 3}", lane=("real_test", "production")[n % 2], create_time=moment)
            for n in range(60)
            for moment in moments
        )
    )
    assert sum((await counters(database)).values()) == 240
    await assert_usage_is_what_the_calls_say(database)


async def test_a_group_has_a_bound_and_nobody_is_forgotten(database: Database, ledger: Ledger):
    ids = await asyncio.gather(*(admitted_call(ledger) for _ in range(2 * MAX_GROUP + 1)))
    assert set(await calls(database)) == set(ids)
    await asyncio.gather(*(ledger.settle(call_id, State.SUCCEEDED) for call_id in ids))
    assert set((await states(database)).values()) == {State.SUCCEEDED}


async def test_call_ids_are_unique_and_in_order_of_time():
    ids = [new_call_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [call_id[:12] for call_id in ids] == sorted(call_id[:12] for call_id in ids)
    assert {len(call_id) for call_id in ids} == {32}


# Never by a view from before a change


async def test_a_stale_revision_admits_nothing(database: Database, ledger: Ledger):
    async with database.change():
        pass
    assert await ledger.admit(asked(revision=1)) is False
    assert (await calls(database), await counters(database)) == ({}, {})
    assert await ledger.admit(asked(revision=2)) is True


async def test_the_stale_and_the_fresh_of_one_group_are_told_apart(database: Database, ledger: Ledger):
    async with database.change():
        pass
    answers = await asyncio.gather(*(ledger.admit(asked(revision=1 + n % 2)) for n in range(10)))
    assert answers == [False, True] * 5
    assert len(await calls(database)) == 5
    await assert_usage_is_what_the_calls_say(database)


def has_grown(answers: Counter[bool], enough: int) -> bool:
    return answers[True] >= enough


async def test_nothing_is_admitted_to_the_past_once_a_change_has_returned(database_url: str):
    """On two replicas where the database can have them. A call's version tells the revision that it was decided on."""
    opened = [await Database.open(database_url)]
    if opened[0].dialect == "postgresql":
        opened.append(await Database.open(database_url))
    await opened[0].migrate()
    ledgers = [Ledger(database) for database in opened]
    for ledger in ledgers:
        await ledger.start()
    ended = asyncio.Event()
    answers = Counter[bool]()

    async def client(ledger: Ledger, database: Database) -> None:
        revision = 1
        while not ended.is_set():
            answer = await ledger.admit(asked(revision=revision, version=str(revision)))
            answers[answer] += 1
            if not answer:
                revision = await database.revision()

    async def past(revision: int) -> int:
        return sum(int(call.version) < revision for call in (await calls(opened[0])).values())

    clients = [
        asyncio.create_task(client(ledger, database))
        for ledger, database in zip(ledgers, opened, strict=True)
        for _ in range(6)
    ]
    seen: list[tuple[int, int]] = []
    for n in range(15):
        enough = answers[True] + 20
        await eventually(partial(has_grown, answers, enough))
        async with opened[n % len(opened)].change():
            pass
        revision = await opened[-1].revision()
        seen.append((revision, await past(revision)))
    ended.set()
    await asyncio.gather(*clients)
    assert [revision for revision, _ in seen] == list(range(2, 17))
    assert [(revision, await past(revision)) for revision, _ in seen] == seen
    assert answers[False] > 0
    await assert_usage_is_what_the_calls_say(opened[0])
    for ledger, database in zip(ledgers, opened, strict=True):
        await ledger.close()
        await database.close()


# Acknowledged means settled


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.TOOL_ERROR, State.FAILED, State.CANCELLED, State.UNKNOWN])
async def test_an_outcome_is_recorded(database: Database, ledger: Ledger, state: int):
    call_id, other = await admitted_call(ledger), await admitted_call(ledger)
    await ledger.settle(call_id, state, errors_pb2.TOOL_TIMED_OUT)
    found = await calls(database)
    assert (found[call_id].state, found[call_id].reason) == (state, errors_pb2.TOOL_TIMED_OUT)
    assert found[call_id].create_time <= (found[call_id].settle_time or 0) <= now_micros()
    assert (found[other].state, found[other].settle_time) == (State.RUNNING, None)


async def test_the_first_outcome_stays(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    await ledger.settle(call_id, State.SUCCEEDED)
    await ledger.settle(call_id, State.FAILED, errors_pb2.TOOL_UNREACHABLE)
    call = (await calls(database))[call_id]
    assert (call.state, call.reason) == (State.SUCCEEDED, 0)


async def test_a_late_true_outcome_replaces_unknown(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    async with database.write() as session:
        await session.execute(update(Call).values(state=State.UNKNOWN, reason=errors_pb2.CALL_OUTCOME_UNKNOWN))
    await ledger.settle(call_id, State.SUCCEEDED)
    call = (await calls(database))[call_id]
    assert (call.state, call.reason) == (State.SUCCEEDED, 0)


async def test_settling_does_not_count(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    before = await counters(database)
    await ledger.settle(call_id, State.CANCELLED)
    assert await counters(database) == before


# One bad row


@pytest.mark.parametrize("fault", ["key", "text"])
async def test_a_row_that_cannot_be_written_fails_alone(database: Database, ledger: Ledger, fault: str):
    known = await admitted_call(ledger)
    bad = asked(call_id=known) if fault == "key" else asked(request_id="\ud800")
    good = [asked() for _ in range(9)]
    answers = await asyncio.gather(
        *(ledger.admit(admission) for admission in (*good[:4], bad, *good[4:])),
        ledger.settle(known, State.SUCCEEDED),
        return_exceptions=True,
    )
    failed = answers.pop(4)
    assert isinstance(failed, Exception)
    assert not isinstance(failed, ServiceUnavailableError)
    assert answers == [True] * 9 + [None]
    assert await states(database) == {known: State.SUCCEEDED} | {call.call_id: State.RUNNING for call in good}
    await assert_usage_is_what_the_calls_say(database)
    assert await admitted_call(ledger)


async def test_an_outcome_that_cannot_be_written_fails_alone(database: Database, ledger: Ledger):
    one, two = await admitted_call(ledger), await admitted_call(ledger)
    answers = await asyncio.gather(
        ledger.settle(one, 2**70), ledger.settle(two, State.SUCCEEDED), return_exceptions=True
    )
    assert isinstance(answers[0], Exception)
    assert answers[1] is None
    assert await states(database) == {one: State.RUNNING, two: State.SUCCEEDED}


# Callers that go away


@asynccontextmanager
async def busy(database: Database) -> AsyncIterator[None]:
    """Nothing can be written to the ledger meanwhile."""
    async with database.write() as session:
        if database.dialect == "postgresql":
            await session.execute(select(func.pg_advisory_xact_lock(*CATALOG_LOCK)))
        yield


async def taken(ledger: Ledger) -> None:
    """Waits until what was asked for is in the hands of the writer."""
    await asyncio.sleep(0)  # tasks made just now begin
    await eventually(lambda: not ledger._entries)


async def test_a_call_given_up_before_it_is_written_is_not_recorded(database: Database, ledger: Ledger):
    async with busy(database):
        first = asyncio.create_task(ledger.admit(asked()))
        await taken(ledger)  # and it waits
        late = asyncio.create_task(ledger.admit(asked()))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.wait([late])
    assert late.cancelled()
    assert await first
    await admitted_call(ledger)
    assert len(await calls(database)) == 2
    await assert_usage_is_what_the_calls_say(database)


async def test_a_call_given_up_while_it_is_written_is_settled_as_cancelled(database: Database, ledger: Ledger):
    admission = asked()
    async with busy(database):
        waiting = asyncio.create_task(ledger.admit(admission))
        await taken(ledger)
        waiting.cancel()
        async with asyncio.timeout(5):  # although the database is still busy
            await asyncio.wait([waiting])
    assert waiting.cancelled()
    await eventually(lambda: is_settled(database, admission.call_id, State.CANCELLED))
    await assert_usage_is_what_the_calls_say(database)


async def is_settled(database: Database, call_id: str, state: int) -> bool:
    return (await states(database)).get(call_id) == state


async def test_a_call_given_up_just_when_it_is_admitted_is_settled_as_cancelled(database: Database, ledger: Ledger):
    admission = asked()
    second: asyncio.Task[bool]

    async def first_of_the_group() -> None:
        await ledger.admit(asked())
        second.cancel()  # whose answer is ready, but it has not run since

    first = asyncio.create_task(first_of_the_group())
    second = asyncio.create_task(ledger.admit(admission))
    await asyncio.wait([first, second])
    assert second.cancelled()
    await eventually(lambda: is_settled(database, admission.call_id, State.CANCELLED))


async def test_an_outcome_is_recorded_also_if_nobody_waits_for_it(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    async with busy(database):
        settling = asyncio.create_task(ledger.settle(call_id, State.SUCCEEDED))
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.wait([settling])
    assert settling.cancelled()
    await eventually(lambda: is_settled(database, call_id, State.SUCCEEDED))


# The end of a ledger


async def test_closing_writes_what_is_waiting(database: Database):
    ledger = Ledger(database)
    await ledger.start()
    running = [await admitted_call(ledger) for _ in range(3)]
    waiting = [asyncio.create_task(ledger.settle(call_id, State.SUCCEEDED)) for call_id in running]
    admitting = asyncio.create_task(ledger.admit(asked()))
    await asyncio.sleep(0)
    await ledger.close()
    assert await asyncio.gather(*waiting, admitting) == [None] * 3 + [True]
    assert Counter((await states(database)).values()) == {State.SUCCEEDED: 3, State.RUNNING: 1}


async def test_a_closed_ledger_says_so(database: Database):
    ledger = Ledger(database)
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    await ledger.start()
    call_id = await admitted_call(ledger)
    await ledger.close()
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    with pytest.raises(CallOutcomeUnknownError):
        await ledger.settle(call_id, State.SUCCEEDED)
    await ledger.close()


async def test_a_ledger_that_could_not_start_can_start_later(database_url: str):
    database = await Database.open(database_url)
    ledger = Ledger(database)
    with pytest.raises(Exception, match="catalog_revision"):  # there are no tables
        await ledger.start()
    await database.migrate()
    await ledger.start()
    assert await admitted_call(ledger)
    await ledger.close()
    await database.close()


# Processes that die


class LedgerProcess:
    """ledger_process.py, and what it has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.admitted: set[str] = set()
        self.settled: set[str] = set()
        self.executor = ""

    async def told(self) -> str:
        """Reads one line and returns its first word; empty at the end."""
        assert self._process.stdout is not None
        word, _, value = (await self._process.stdout.readline()).decode().strip().partition(" ")
        if word == "executor":
            self.executor = value
        elif word in ("admitted", "settled"):
            getattr(self, word).add(value)
        return word

    async def kill(self) -> None:
        """With SIGKILL. Then reads all that it had told before."""
        self._process.kill()
        while await self.told():
            pass
        await self._process.wait()


@pytest.fixture
async def start_process(database_url: str) -> AsyncIterator[Callable[[str], Awaitable[LedgerProcess]]]:
    started: list[LedgerProcess] = []

    async def start(mode: str) -> LedgerProcess:
        command = ("-m", "tests.support.ledger_process", database_url, mode)
        process = LedgerProcess(await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE))
        started.append(process)
        return process

    yield start
    for process in started:
        if process._process.returncode is None:
            await process.kill()


async def test_calls_of_a_killed_process_are_unknown_when_the_next_has_started(database_url: str, start_process):
    database = await Database.open(database_url)
    await database.migrate()
    await database.close()
    process = await holding(start_process)
    await process.kill()
    assert (len(process.admitted), len(process.settled)) == (6, 2)

    database = await Database.open(database_url)
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
    database = await Database.open(database_url)
    await database.migrate()
    await database.close()
    process = await start_process("load")
    async with asyncio.timeout(30):
        while len(process.settled) < 500:
            assert await process.told()
        await process.kill()

    database = await Database.open(database_url)
    ledger = Ledger(database, orphan_seconds=0.2)
    await ledger.start()
    found = await states(database)
    assert process.admitted <= set(found)
    assert {found[call_id] for call_id in process.settled} == {State.SUCCEEDED}
    assert set(found.values()) <= {State.SUCCEEDED, State.UNKNOWN}
    await assert_usage_is_what_the_calls_say(database)
    await ledger.close()
    await database.close()


# PostgreSQL: neighbours, and a database that goes away


@pytest.fixture
async def postgres_ledger(postgres: PostgresqlDatabase) -> AsyncIterator[Ledger]:
    started = Ledger(postgres, sweep_seconds=0.1, orphan_seconds=0.2)
    await started.start()
    yield started
    await started.close()


only_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@only_postgresql
async def test_a_survivor_settles_the_calls_of_the_dead_and_of_nobody_else(database_url: str, start_process):
    """Two others run beside it; one is killed. The sweep finds that without a restart of anybody."""
    database = await Database.open(database_url)
    await database.migrate()
    ledger = Ledger(database, sweep_seconds=0.1)
    await ledger.start()
    own = await admitted_call(ledger)
    third = await Database.open(database_url)
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


async def all_are(database: Database, call_ids: set[str], state: int) -> bool:
    found = await states(database)
    return bool(call_ids) and {found[call_id] for call_id in call_ids} == {state}


async def holding(start_process) -> LedgerProcess:
    """A process with calls that run."""
    process: LedgerProcess = await start_process("hold")
    async with asyncio.timeout(20):
        while await process.told() != "holding":
            pass
    return process


def backend(database: Database) -> str:
    """SQL for the connection of the ledger of a database: that which holds the executor's lock."""
    key = database_module.executor_key(database.executor) & 2**64 - 1
    return (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        f" AND classid = {key >> 32} AND objid = {key & 2**32 - 1}"
    )


async def test_a_neighbour_that_lost_its_connection_is_not_dead(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, postgres_ledger: Ledger
):
    call_id = await admitted_call(postgres_ledger)
    other = await Database.open(postgresql_url)
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
    other = await Database.open(postgresql_url)

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
    others = [await Database.open(postgresql_url) for _ in range(2)]
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


# SQLite: a file that cannot be written


async def test_a_file_that_cannot_be_written_heals(impatient: SqliteDatabase):
    ledger = Ledger(impatient)
    await ledger.start()
    running = await admitted_call(ledger)
    intruder = sqlite3.connect(impatient.path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    settling = asyncio.create_task(ledger.settle(running, State.SUCCEEDED))
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    assert not settling.done()
    intruder.execute("ROLLBACK")
    intruder.close()
    async with asyncio.timeout(10):
        await settling
    assert await states(impatient) == {running: State.SUCCEEDED}
    assert await admitted_call(ledger)
    await ledger.close()


@pytest.fixture
async def impatient(sqlite_url: str, monkeypatch) -> AsyncIterator[SqliteDatabase]:
    """A file for whose lock nobody waits long."""
    monkeypatch.setattr(database_module, "_PRAGMAS", ("PRAGMA busy_timeout = 20", *database_module._PRAGMAS[1:]))
    database = await Database.open(sqlite_url)
    assert isinstance(database, SqliteDatabase)
    await database.migrate()
    yield database
    await database.close()


@contextmanager
def locked(database: SqliteDatabase) -> Iterator[None]:
    """By another process."""
    intruder = sqlite3.connect(database.path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        intruder.execute("ROLLBACK")
        intruder.close()


@pytest.fixture
def told(monkeypatch) -> Callable[[], list[str]]:
    """What the log says of the ledger as a whole."""
    capture = structlog.testing.LogCapture()
    monkeypatch.setattr(ledger_module, "_log", structlog.wrap_logger(None, processors=[capture]))
    events = ("the ledger cannot be written", "the ledger can be written again")
    return lambda: [entry["event"] for entry in capture.entries if entry["event"] in events]


async def lose(ledger: Ledger) -> None:
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    await eventually(lambda: not ledger.is_writable)


async def further_failures(ledger: Ledger) -> None:
    before = ledger._failures
    await eventually(lambda: ledger._failures > before + 2)


async def test_a_loss_and_its_end_are_noticed_without_traffic_and_told_once(impatient: SqliteDatabase, told):
    """Health said SERVING while each call was refused, and nobody was told of the end."""
    ledger = Ledger(impatient)
    assert not ledger.is_writable
    await ledger.start()
    running = await admitted_call(ledger)
    for _ in range(2):
        assert ledger.is_writable
        with locked(impatient):
            await lose(ledger)
            await further_failures(ledger)
            with pytest.raises(ServiceUnavailableError):
                async with asyncio.timeout(0):  # at once: the first wait would end in a TimeoutError
                    await ledger.admit(asked())
        await eventually(lambda: ledger.is_writable)
    assert told() == ["the ledger cannot be written", "the ledger can be written again"] * 2
    assert await states(impatient) == {running: State.RUNNING}
    assert await impatient.revision() == 1
    await ledger.close()


async def test_outcomes_that_wait_are_written_before_calls_are_admitted_again(impatient: SqliteDatabase):
    ledger = Ledger(impatient)
    await ledger.start()
    running = [await admitted_call(ledger) for _ in range(3)]
    with locked(impatient):
        settling = [asyncio.create_task(ledger.settle(call_id, State.SUCCEEDED)) for call_id in running]
        await eventually(lambda: not ledger.is_writable)
        assert not any(task.done() for task in settling)
    await eventually(lambda: ledger.is_writable)
    assert await all_are(impatient, set(running), State.SUCCEEDED)
    await asyncio.gather(*settling)
    await ledger.close()


async def test_a_file_that_opens_but_cannot_be_written_is_away(impatient: SqliteDatabase, monkeypatch):
    """As on a full disk: each attempt opens the file, and no row can be written."""
    ledger = Ledger(impatient)
    await ledger.start()
    running = await admitted_call(ledger)
    ours = database_module._PRAGMAS
    monkeypatch.setattr(database_module, "_PRAGMAS", (*ours, "PRAGMA query_only = ON"))
    with locked(impatient):
        await lose(ledger)
    await further_failures(ledger)
    assert not ledger.is_writable
    monkeypatch.setattr(database_module, "_PRAGMAS", ours)
    await eventually(lambda: ledger.is_writable)
    await ledger.settle(running, State.SUCCEEDED)
    assert await admitted_call(ledger)
    await ledger.close()


async def test_a_full_disk_is_away_until_a_group_has_room(impatient: SqliteDatabase, monkeypatch, told):
    """A probe of one page succeeded where no group could be written: health said SERVING all the time."""
    ledger = Ledger(impatient)
    await ledger.start()

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal, "TemporaryFile", no_room)
    with locked(impatient):
        await lose(ledger)
    await further_failures(ledger)
    assert not ledger.is_writable
    monkeypatch.setattr(journal, "TemporaryFile", TemporaryFile)
    await eventually(lambda: ledger.is_writable)
    assert told() == ["the ledger cannot be written", "the ledger can be written again"]
    assert await admitted_call(ledger)
    assert {path.name for path in impatient.path.parent.iterdir()} <= {
        *("naru.db", "naru.db-wal", "naru.db-shm", "naru.db.lock")
    }
    await ledger.close()


async def test_what_nobody_foresaw_at_the_reopening_refuses_and_is_tried_again(sqlite: SqliteDatabase):
    """Without a writer every call would wait for ever."""
    ledger = Ledger(sqlite)
    await ledger.start()
    intruder = sqlite.connect()
    intruder.execute("DELETE FROM catalog_revision")
    ledger._journal._drop()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        with pytest.raises(ServiceUnavailableError):
            await ledger.admit(asked())
        intruder.execute("INSERT INTO catalog_revision (id, revision) VALUES (1, 1)")
        intruder.close()
        await eventually(lambda: ledger.is_writable)
        assert await admitted_call(ledger)
    await ledger.close()


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


def remove(path: Path) -> None:
    path.unlink()


def replace_with_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def move_its_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name(f"{path.parent.name}-elsewhere"))


@pytest.mark.parametrize("name", ["naru.db", "naru.db-wal", "naru.db-shm"])
@pytest.mark.parametrize("harm", [remove, replace_with_a_copy, move_its_directory])
async def test_nothing_is_written_to_a_file_that_is_not_at_its_path(
    sqlite: SqliteDatabase, harm: Callable[[Path], None], name: str
):
    """It would be gone when the process ends. Nor is an empty file made in its place."""
    ledger = Ledger(sqlite)
    await ledger.start()
    await admitted_call(ledger)
    before = set(sqlite.path.parent.iterdir())
    harm(sqlite.path.with_name(name))
    for _ in range(2):
        with pytest.raises(ServiceUnavailableError):
            await ledger.admit(asked())
    await eventually(lambda: not ledger.is_writable)
    with pytest.raises(DatabaseUnreachableError, match="removed or replaced"):
        await sqlite.ping()
    with pytest.raises(DatabaseUnreachableError, match="removed or replaced"):
        async with sqlite.change():
            pass
    after = set(sqlite.path.parent.iterdir()) if sqlite.path.parent.exists() else set()
    assert after <= before
    await ledger.close()


async def test_a_file_that_was_put_back_is_written_again(sqlite: SqliteDatabase):
    ledger = Ledger(sqlite)
    await ledger.start()
    before = await admitted_call(ledger)
    away = sqlite.path.with_name("away")
    sqlite.path.rename(away)
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    await eventually(lambda: not ledger.is_writable)
    away.rename(sqlite.path)
    await eventually(lambda: ledger.is_writable)
    await ledger.settle(before, State.SUCCEEDED)
    assert await admitted_call(ledger)
    assert (await states(sqlite))[before] == State.SUCCEEDED
    await ledger.close()


async def test_what_a_removed_log_held_is_there_after_a_stop(sqlite_url: str):
    """SQLite writes it into the main file when the last connection closes."""
    database = await Database.open(sqlite_url)
    assert isinstance(database, SqliteDatabase)
    await database.migrate()
    ledger = Ledger(database)
    await ledger.start()
    call_id = await admitted_call(ledger)
    database.path.with_name("naru.db-wal").unlink()
    await ledger.close()
    await database.close()
    again = await Database.open(sqlite_url)
    assert set(await states(again)) == {call_id}
    await again.close()


async def test_a_ledger_does_not_start_where_it_cannot_write(sqlite: SqliteDatabase, monkeypatch):
    """On a full disk it was ready, until the first call."""

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal, "TemporaryFile", no_room)
    ledger = Ledger(sqlite)
    with pytest.raises(DatabaseUnreachableError, match="No space left"):
        await ledger.start()
    assert not ledger.is_writable
    monkeypatch.setattr(journal, "TemporaryFile", TemporaryFile)
    await ledger.start()
    assert await admitted_call(ledger)
    await ledger.close()


async def test_a_ledger_that_closes_while_the_file_cannot_be_written_ends(impatient: SqliteDatabase):
    ledger = Ledger(impatient)
    await ledger.start()
    running = await admitted_call(ledger)
    intruder = sqlite3.connect(impatient.path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    settling = asyncio.create_task(ledger.settle(running, State.SUCCEEDED))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await ledger.close()
    with pytest.raises(CallOutcomeUnknownError):
        await settling
    intruder.close()
