import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import IntegrityError

from registry_service.storage import postgresql as postgresql_module
from registry_service.storage.database import UNAVAILABLE, Database, DatabaseInUseError, DatabaseUnreachableError
from registry_service.storage.migrations import UnknownRevisionError
from registry_service.storage.models import Secret, Tool
from registry_service.storage.postgresql import CATALOG_LOCK, PostgresqlDatabase, executor_key
from registry_service.storage.sqlite import SqliteDatabase
from registry_service.storage.url import open_database
from tests.support.postgresql import PostgresqlServer
from tests.support.waiting import eventually


def tool(name: str) -> Tool:
    return Tool(name=name, create_time=1, update_time=1, delete_time=None)


async def tool_names(database: Database) -> set[str]:
    async with database.sessions() as session:
        return set(await session.scalars(select(Tool.name)))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "naru.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///a?mode=ro",
        "mysql://h/d",
        "postgresql",
    ],
)
async def test_a_url_of_another_kind_is_refused(url: str):
    with pytest.raises(ValueError, match="sqlite:///path"):
        open_database(url)


async def test_each_open_database_is_an_executor_of_its_own(tmp_path):
    one = open_database(f"sqlite:///{tmp_path}/one.db")
    two = open_database(f"sqlite:///{tmp_path}/two.db")
    assert len(one.executor) == len(two.executor) == 32
    assert one.executor != two.executor
    await one.close()
    await two.close()


async def test_tables_come_with_migrate_and_only_once(database_url: str):
    database = open_database(database_url)
    assert not await database.is_migrated()
    await database.migrate()
    assert await database.is_migrated()
    async with database.change() as session:
        session.add(tool("kept"))
    await database.migrate()
    assert await tool_names(database) == {"kept"}
    await database.close()


async def test_three_replicas_migrate_an_empty_database_at_once(postgresql_url: str):
    databases = [open_database(postgresql_url) for _ in range(3)]
    await asyncio.gather(*(database.migrate() for database in databases))
    assert [await database.is_migrated() for database in databases] == [True] * 3
    assert [await database.revision() for database in databases] == [1, 1, 1]
    for database in databases:
        await database.close()


async def test_tables_of_a_newer_version_are_refused(database: Database):
    async with database.write() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert not await database.is_migrated()
    with pytest.raises(UnknownRevisionError, match="9999"):
        await database.migrate()


async def test_a_failed_migration_leaves_nothing(database_url: str):
    database = open_database(database_url)
    async with database.write() as session:
        # In the way of the last of the tables.
        await session.execute(text("CREATE TABLE usage (id INTEGER)"))
    with pytest.raises(Exception, match="already exists"):
        await database.migrate()
    async with database.write() as session:
        await session.execute(text("DROP TABLE usage"))
    await database.migrate()
    assert await database.is_migrated()
    await database.close()


async def test_a_change_raises_the_revision(database: Database):
    before = await database.revision()
    async with database.change() as session:
        session.add(tool("one"))
    assert await database.revision() == before + 1
    assert await tool_names(database) == {"one"}


async def test_a_change_that_changes_nothing_leaves_the_revision(database: Database):
    before = await database.revision()
    async with database.change() as session:
        session.info["unchanged"] = True
    assert await database.revision() == before
    async with database.change() as session:
        session.add(tool("one"))
    assert await database.revision() == before + 1


async def test_a_change_that_fails_is_undone(database: Database):
    before = await database.revision()

    async def fail() -> None:
        async with database.change() as session:
            session.add(tool("one"))
            await session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await database.revision(), await tool_names(database)) == (before, set())


async def test_a_change_that_is_cancelled_is_undone(database: Database):
    inside = asyncio.Event()

    async def change() -> None:
        async with database.change() as session:
            session.add(tool("one"))
            await session.flush()
            inside.set()
            await asyncio.Event().wait()

    changing = asyncio.create_task(change())
    await inside.wait()
    changing.cancel()
    await asyncio.wait([changing])
    async with asyncio.timeout(10), database.change() as session:
        session.add(tool("two"))
    assert (await database.revision(), await tool_names(database)) == (2, {"two"})


async def test_no_change_is_lost_among_many(database: Database):
    async def change(number: int) -> None:
        async with database.change() as session:
            session.add(tool(f"tool{number}"))

    await asyncio.gather(*(change(number) for number in range(20)))
    assert await database.revision() == 21
    assert len(await tool_names(database)) == 20


async def test_no_change_is_lost_among_replicas(postgresql_url: str):
    databases = [open_database(postgresql_url) for _ in range(3)]
    await databases[0].migrate()

    async def change(number: int) -> None:
        async with databases[number % 3].change() as session:
            # Read, then write: without the lock one of two would be lost.
            names = set(await session.scalars(select(Tool.name)))
            session.add(tool(f"tool{len(names)}"))

    await asyncio.gather(*(change(number) for number in range(12)))
    assert [await database.revision() for database in databases] == [13] * 3
    assert await tool_names(databases[1]) == {f"tool{number}" for number in range(12)}
    for database in databases:
        await database.close()


async def test_a_failed_statement_undoes_the_whole_change(database: Database):
    async def add_twice() -> None:
        async with database.change() as session:
            session.add(tool("one"))
            await session.flush()
            await session.execute(insert(Tool).values(name="one", create_time=1, update_time=1))

    with pytest.raises(IntegrityError):
        await add_twice()
    assert (await database.revision(), await tool_names(database)) == (1, set())


async def test_foreign_keys_hold(database: Database):
    secret = Secret(id="s", client_id="nobody", digest=b"", hint="", create_time=1, revoke_time=None)
    with pytest.raises(IntegrityError):
        async with database.change() as session:
            session.add(secret)


async def test_a_session_reads_while_a_change_is_under_way(database: Database):
    async with asyncio.timeout(10), database.change() as session:
        session.add(tool("one"))
        await session.flush()
        assert (await tool_names(database), await database.revision()) == (set(), 1)
    assert (await tool_names(database), await database.revision()) == ({"one"}, 2)


# SQLite


async def test_sqlite_connections_are_durable_and_checked(sqlite: SqliteDatabase):
    names = ("journal_mode", "synchronous", "foreign_keys")
    async with sqlite.engine.connect() as connection:
        pooled = [(await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one() for name in names]
    plain_connection = sqlite.connect()
    plain = [plain_connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    plain_connection.close()
    full = 2
    assert pooled == plain == ["wal", full, 1]


async def test_sqlite_write_transactions_begin_at_once(sqlite: SqliteDatabase):
    """The driver of old would begin at the first INSERT: too late for what was read before it."""
    other = sqlite.connect()
    other.execute("PRAGMA busy_timeout = 0")
    async with sqlite.write():
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.close()


async def test_sqlite_reading_transactions_are_transactions(sqlite: SqliteDatabase):
    async with sqlite.sessions() as session:
        count = select(func.count()).select_from(Tool)
        assert (await session.execute(count)).scalar_one() == 0
        async with sqlite.change() as changing:
            changing.add(tool("one"))
        assert (await session.execute(count)).scalar_one() == 0


async def test_sqlite_a_file_belongs_to_one_process(sqlite: SqliteDatabase, sqlite_url: str):
    with pytest.raises(DatabaseInUseError, match=r"naru\.db belongs to another process \(pid \d+"):
        open_database(sqlite_url)


async def test_sqlite_a_file_is_free_after_its_owner_has_closed_or_died(sqlite_url: str):
    first = open_database(sqlite_url)
    await first.close()
    owning = (
        "import sys\nfrom registry_service.storage.url import open_database\n"
        "open_database(sys.argv[1])\nprint('mine', flush=True)\nsys.stdin.read()\n"
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", owning, sqlite_url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"mine\n"
        with pytest.raises(DatabaseInUseError, match=f"pid {owner.pid},"):
            open_database(sqlite_url)
    finally:
        owner.send_signal(signal.SIGKILL)
        await owner.communicate()
    second = open_database(sqlite_url)
    await second.close()


async def test_sqlite_a_link_to_the_file_is_the_file(sqlite: SqliteDatabase, tmp_path):
    (tmp_path / "link.db").symlink_to(sqlite.path)
    with pytest.raises(DatabaseInUseError):
        open_database(f"sqlite:///{tmp_path}/link.db")


async def test_sqlite_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(DatabaseUnreachableError, match="absent"):
        open_database(f"sqlite:///{tmp_path}/absent/naru.db")
    (tmp_path / "naru.db").write_bytes(b"this is no database" * 100)
    for _ in range(2):
        with pytest.raises(DatabaseUnreachableError, match=r"naru\.db: file is not a database"):
            open_database(f"sqlite:///{tmp_path}/naru.db")


async def test_sqlite_an_unmigrated_file_has_no_revision(sqlite_url: str):
    database = open_database(sqlite_url)
    with pytest.raises(UNAVAILABLE):
        await database.revision()
    await database.close()


async def test_sqlite_has_nobody_to_listen_to(sqlite: SqliteDatabase):
    async with asyncio.timeout(5):
        await sqlite.listen(lambda: pytest.fail("there are no other processes"))


# PostgreSQL


async def test_postgresql_sessions_are_durable_and_see_the_newest(postgresql: PostgresqlServer, postgresql_url: str):
    name = postgresql_url.partition("?")[0].rpartition("/")[2]
    postgresql.query(f"ALTER DATABASE {name} SET synchronous_commit = off")
    postgresql.query(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    database = open_database(postgresql_url)
    async with database.sessions() as session:
        assert (await session.execute(text("SHOW synchronous_commit"))).scalar_one() == "on"
        assert (await session.execute(text("SHOW transaction_isolation"))).scalar_one() == "read committed"
    await database.close()


async def test_postgresql_a_stronger_durability_is_kept(postgresql: PostgresqlServer, postgresql_url: str):
    name = postgresql_url.partition("?")[0].rpartition("/")[2]
    postgresql.query(f"ALTER DATABASE {name} SET synchronous_commit = remote_apply")
    database = open_database(postgresql_url)
    async with database.sessions() as session:
        assert (await session.execute(text("SHOW synchronous_commit"))).scalar_one() == "remote_apply"
    await database.close()


async def test_postgresql_out_of_reach_is_one_of_unavailable(unused_tcp_port: int):
    database = open_database(f"postgresql://naru:hunter2@127.0.0.1:{unused_tcp_port}/naru")
    for attempt in (database.ping, database.revision, database.migrate, database.is_migrated):
        with pytest.raises(UNAVAILABLE) as caught:
            await attempt()
        assert "hunter2" not in str(caught.value)
    await database.close()


async def test_postgresql_heals_after_a_restart(postgresql: PostgresqlServer, postgres: PostgresqlDatabase):
    async with postgres.sessions() as one, postgres.sessions() as two:
        # Two connections for the pool to keep.
        await one.execute(text("SELECT 1"))
        await two.execute(text("SELECT 1"))
    async with postgres.sessions() as session:
        await session.execute(text("SELECT 1"))
        postgresql.stop()
        try:
            with pytest.raises(DatabaseUnreachableError):
                await session.execute(text("SELECT 1"))
        finally:
            for attempt in (postgres.ping, postgres.revision):
                with pytest.raises(DatabaseUnreachableError):
                    await attempt()
            postgresql.start()
    await postgres.ping()
    async with postgres.change() as session:
        session.add(tool("after"))
    assert (await postgres.revision(), await tool_names(postgres)) == (2, {"after"})


async def test_postgresql_connections_that_were_idle_in_a_restart_are_not_used(
    postgresql: PostgresqlServer, postgres: PostgresqlDatabase
):
    async with postgres.sessions() as one, postgres.sessions() as two:
        await one.execute(text("SELECT 1"))
        await two.execute(text("SELECT 1"))
    postgresql.stop()
    postgresql.start()
    assert await postgres.revision() == 1


async def test_postgresql_a_connection_that_ends_in_a_change_is_unavailable(
    postgresql: PostgresqlServer, postgres: PostgresqlDatabase
):
    async def lose() -> None:
        async with postgres.change() as session:
            session.add(tool("lost"))
            await session.flush()
            pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            assert postgresql.query(f"SELECT pg_terminate_backend({pid}, 5000)") == "t"

    with pytest.raises(DatabaseUnreachableError):
        await lose()
    assert (await postgres.revision(), await tool_names(postgres)) == (1, set())


async def test_postgresql_tells_replicas_of_changes(postgresql_url: str, postgres: PostgresqlDatabase):
    replica = open_database(postgresql_url)
    heard = asyncio.Queue[None]()
    listening = asyncio.create_task(replica.listen(lambda: heard.put_nowait(None)))
    async with asyncio.timeout(10):
        await heard.get()  # once when it begins
        async with postgres.change() as session:
            session.add(tool("one"))
        await heard.get()
        assert await replica.revision() == 2
        async with postgres.change() as session:
            session.info["unchanged"] = True
        async with postgres.change():
            pass
        await heard.get()
    assert heard.empty()
    listening.cancel()
    await replica.close()


async def test_postgresql_listens_again_when_its_connection_was_lost(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, monkeypatch
):
    monkeypatch.setattr(postgresql_module, "LISTEN_RETRY_SECONDS", 0.05)
    heard = asyncio.Queue[None]()
    listening = asyncio.create_task(postgres.listen(lambda: heard.put_nowait(None)))
    async with asyncio.timeout(20):
        await heard.get()
        ended = postgresql.query(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'", postgresql_url
        )
        assert ended == "t"
        await heard.get()  # something may have been missed
        postgresql.stop()
        postgresql.start()
        await heard.get()
        async with postgres.change():
            pass
        await heard.get()
    listening.cancel()


async def test_postgresql_notices_a_connection_that_died_silently(
    postgresql: PostgresqlServer, postgresql_url: str, postgres: PostgresqlDatabase, monkeypatch
):
    """It asks from time to time; here it is seen to."""
    monkeypatch.setattr(postgresql_module, "LISTEN_PING_SECONDS", 0.05)
    listening = asyncio.create_task(postgres.listen(lambda: None))
    asked = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT 1' AND application_name = 'naru'"
    await eventually(lambda: postgresql.query(asked, postgresql_url) == "1")
    assert not listening.done()
    listening.cancel()


async def test_postgresql_an_executor_is_dead_when_nobody_holds_its_lock(postgresql_url: str, postgres: Database):
    other = open_database(postgresql_url)
    async with other.engine.connect() as holder:
        await holder.execute(select(func.pg_advisory_lock(executor_key(other.executor))))
        async with postgres.write() as session:
            assert not await postgres.is_dead(session, other.executor)
            assert not await postgres.is_dead(session, postgres.executor)
        await holder.invalidate()
    async with postgres.write() as session:
        await eventually(lambda: postgres.is_dead(session, other.executor))
    await other.close()


async def test_postgresql_locks_of_executors_and_of_the_catalog_are_apart(postgres: PostgresqlDatabase):
    first, second = CATALOG_LOCK
    clashing = (first << 32 | second).to_bytes(8, signed=True).hex() + "0" * 16
    async with postgres.change(), postgres.sessions() as session:
        assert await postgres.is_dead(session, clashing)


async def test_sqlite_files_are_for_their_owner_alone(sqlite: SqliteDatabase):
    """Whatever the process's umask is."""
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in sqlite.path.parent.iterdir()}
    assert files == dict.fromkeys(("naru.db", "naru.db-wal", "naru.db-shm", "naru.db.lock"), 0o600)
