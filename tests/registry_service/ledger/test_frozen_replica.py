"""A replica that is stopped at any moment (SIGSTOP) costs its own calls only. On PostgreSQL: SQLite has no others.

Three processes admit and settle as fast as they can. One is frozen within a statement of the ledger: a trigger waits
for a lock of the test while the process is stopped, and then the server goes on without its client.
"""

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import asyncpg
import pytest

from registry_service.storage.database import Database
from registry_service.storage.postgresql import CATALOG_LOCK, executor_key
from registry_service.storage.url import open_database
from tests.support.postgresql import PostgresqlServer
from tests.support.waiting import eventually

TRAP = 4711
# The longest that a frozen replica may hold up the others.
HELD_UP_SECONDS = 3.0
CHANGE_SECONDS = 5.0
# More than the sixteen that can be on their way when a replica freezes.
MORE = 24

# Each waits at its place, but only in the backend that the test has named.
_TRAPS = f"""
CREATE TABLE trapped (pid integer, place text);
CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM trapped WHERE pid = pg_backend_pid() AND place = TG_NAME) THEN
        PERFORM pg_advisory_xact_lock_shared({TRAP});
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER before_admission BEFORE INSERT ON calls FOR EACH STATEMENT EXECUTE FUNCTION trap();
CREATE TRIGGER after_admission AFTER INSERT ON calls FOR EACH STATEMENT EXECUTE FUNCTION trap();
CREATE TRIGGER before_settlement BEFORE UPDATE ON calls FOR EACH STATEMENT EXECUTE FUNCTION trap();
CREATE TRIGGER after_settlement AFTER UPDATE ON calls FOR EACH STATEMENT EXECUTE FUNCTION trap();
CREATE TRIGGER before_count BEFORE INSERT ON usage FOR EACH STATEMENT EXECUTE FUNCTION trap();
CREATE TRIGGER after_count AFTER INSERT ON usage FOR EACH STATEMENT EXECUTE FUNCTION trap();
CREATE CONSTRAINT TRIGGER commit AFTER INSERT ON calls DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION trap();
CREATE TRIGGER before_change BEFORE UPDATE ON catalog_revision FOR EACH STATEMENT EXECUTE FUNCTION trap();
CREATE TRIGGER after_change AFTER UPDATE ON catalog_revision FOR EACH STATEMENT EXECUTE FUNCTION trap();
"""
PLACES = (
    *("before_admission", "after_admission", "before_settlement", "after_settlement"),
    *("before_count", "after_count", "commit"),
)


class Replica(NamedTuple):
    """ledger_process.py, and how much it has said."""

    process: asyncio.subprocess.Process
    said: Counter[str]
    executor: list[str]

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            word, _, value = line.decode().strip().partition(" ")
            if word == "executor":
                self.executor.append(value)
            self.said[word] += 1

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def goes_on(self, word: str = "settled", more: int = MORE, seconds: float = 15.0) -> None:
        enough = self.said[word] + more
        await eventually(lambda: self.said[word] >= enough, seconds)


@asynccontextmanager
async def replica(url: str, mode: str) -> AsyncIterator[Replica]:
    command = ("-m", "tests.support.ledger_process", url, mode)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE)
    started = Replica(process, Counter(), [])
    listening = asyncio.create_task(started.listen())
    try:
        yield started
    finally:
        process.kill()
        await listening
        await process.wait()


@pytest.fixture
async def database(postgresql: PostgresqlServer, postgresql_url: str) -> AsyncIterator[Database]:
    """With the traps."""
    opened = open_database(postgresql_url)
    await opened.migrate()
    postgresql.query(_TRAPS, postgresql_url)
    yield opened
    await opened.close()


@pytest.fixture
async def observer(postgresql_url: str, database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection that holds the lock of the traps while it wants to."""
    connection = await asyncpg.connect(postgresql_url)
    yield connection
    await connection.close()


@pytest.fixture
async def replicas(postgresql_url: str, database: Database) -> AsyncIterator[list[Replica]]:
    async with (
        replica(postgresql_url, "load") as one,
        replica(postgresql_url, "load") as two,
        replica(postgresql_url, "load") as three,
    ):
        await asyncio.gather(*(each.goes_on(seconds=30) for each in (one, two, three)))
        yield [one, two, three]


async def backend_of(observer: asyncpg.Connection, executor: str) -> int:
    """The server's process that holds the executor's lock."""
    key = executor_key(executor) & 2**64 - 1
    query = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        " AND classid::bigint = $1 AND objid::bigint = $2"
    )
    pid: int = await observer.fetchval(query, key >> 32, key & 2**32 - 1)
    return pid


async def waits_for_a_lock(observer: asyncpg.Connection, pid: int) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted)"
    return bool(await observer.fetchval(query, pid))


async def freeze_at(observer: asyncpg.Connection, frozen: Replica, pid: int, place: str) -> None:
    """Stops the replica while its backend is at this place, and lets the backend go on."""
    await observer.execute("SELECT pg_advisory_lock($1)", TRAP)
    await observer.execute("INSERT INTO trapped VALUES ($1, $2)", pid, place)
    await eventually(lambda: waits_for_a_lock(observer, pid))
    frozen.freeze()
    await observer.execute("DELETE FROM trapped")
    await observer.execute("SELECT pg_advisory_unlock($1)", TRAP)


async def assert_others_go_on(others: list[Replica]) -> None:
    await asyncio.gather(*(each.goes_on(seconds=HELD_UP_SECONDS) for each in others))


async def change(database: Database) -> int:
    """Changes the catalog, and returns its new revision."""
    async with asyncio.timeout(CHANGE_SECONDS):
        async with database.change():
            pass
        return await database.revision()


async def admitted_to_the_past(observer: asyncpg.Connection, revision: int) -> int:
    count: int = await observer.fetchval("SELECT count(*) FROM calls WHERE version::bigint < $1", revision)
    return count


async def assert_usage_is_what_the_calls_say(observer: asyncpg.Connection) -> None:
    expected = Counter[tuple[str, str]]()
    async with observer.transaction(isolation="repeatable_read"):
        calls = await observer.fetch("SELECT client_id, create_time FROM calls")
        usage = await observer.fetch("SELECT client_id, period, calls FROM usage")
    for client_id, create_time in calls:
        seoul = datetime.fromtimestamp(create_time // 1_000_000 + 9 * 3600, UTC)
        expected.update([(client_id, seoul.strftime("%Y-%m-%d")), (client_id, seoul.strftime("%Y-%m"))])
    assert {(client_id, period): calls for client_id, period, calls in usage} == expected


async def test_a_replica_frozen_in_any_statement_of_a_group_holds_up_nobody(
    database: Database, observer: asyncpg.Connection, replicas: list[Replica]
):
    """Nor does a change of the catalog wait for it, and nothing is admitted to what was before the change."""
    frozen, *others = replicas
    pid = await backend_of(observer, frozen.executor[0])
    for place in PLACES:
        await freeze_at(observer, frozen, pid, place)
        await assert_others_go_on(others)
        revision = await change(database)
        before = await admitted_to_the_past(observer, revision)
        await assert_others_go_on(others)
        frozen.thaw()
        await frozen.goes_on()
        assert await admitted_to_the_past(observer, revision) == before, place
    await assert_usage_is_what_the_calls_say(observer)


async def test_a_replica_frozen_while_it_waits_for_a_change_holds_up_nobody(
    observer: asyncpg.Connection, replicas: list[Replica]
):
    frozen, *others = replicas
    pid = await backend_of(observer, frozen.executor[0])
    await observer.execute("SELECT pg_advisory_lock($1, $2)", *CATALOG_LOCK)
    await eventually(lambda: waits_for_a_lock(observer, pid))
    frozen.freeze()
    await observer.execute("SELECT pg_advisory_unlock($1, $2)", *CATALOG_LOCK)
    await assert_others_go_on(others)
    frozen.thaw()
    await frozen.goes_on()
    await assert_usage_is_what_the_calls_say(observer)


async def test_a_replica_frozen_at_a_random_moment_holds_up_nobody(
    database: Database, observer: asyncpg.Connection, replicas: list[Replica]
):
    dice = random.Random(7)
    for _ in range(5):
        frozen = replicas[dice.randrange(3)]
        await frozen.goes_on(more=dice.randrange(MORE))
        frozen.freeze()
        others = [each for each in replicas if each is not frozen]
        await assert_others_go_on(others)
        revision = await change(database)
        before = await admitted_to_the_past(observer, revision)
        await assert_others_go_on(others)
        frozen.thaw()
        await frozen.goes_on()
        assert await admitted_to_the_past(observer, revision) == before
    await assert_usage_is_what_the_calls_say(observer)


async def test_a_replica_frozen_in_the_midst_of_a_change_holds_up_no_call_and_no_other_change_for_long(
    postgresql_url: str, database: Database, replicas: list[Replica]
):
    _, *others = replicas
    async with replica(postgresql_url, "change") as changing:
        await changing.goes_on("changing", 1, seconds=30)
        changing.freeze()
        await assert_others_go_on(others)
        await change(database)
        await assert_others_go_on(others)


@pytest.mark.parametrize("place", ["before_change", "after_change"])
async def test_a_replica_frozen_while_it_commits_a_change_holds_up_nobody(
    postgresql_url: str, database: Database, observer: asyncpg.Connection, replicas: list[Replica], place: str
):
    _, *others = replicas
    trapped = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1)"
    async with replica(postgresql_url, "change") as changing:
        await changing.goes_on("changing", 1, seconds=30)
        await observer.execute("SELECT pg_advisory_lock($1)", TRAP)
        await observer.execute("INSERT INTO trapped SELECT pid, $1 FROM pg_stat_activity", place)
        await eventually(lambda: observer.fetchval(trapped, TRAP))
        changing.freeze()
        await observer.execute("DELETE FROM trapped")
        await observer.execute("SELECT pg_advisory_unlock($1)", TRAP)
        await assert_others_go_on(others)
        await change(database)
        await assert_others_go_on(others)
