"""The database: sessions, migrations, the revision of the catalog, and which process owns what.

Two kinds, one interface. SQLite: a file that one process owns, by a lock beside it. PostgreSQL: shared by replicas.

**The revision.** `change()` is the only way to change tools, accounts and secrets. At its end it takes an exclusive
lock, adds one to the revision and commits. An admission (journal.py) holds the shared side of the same lock while it
compares the revision with that of the view which it was decided on. So once a change has returned, nothing is admitted
on any replica by a view from before it. On SQLite the write transaction is that lock. On PostgreSQL both sides of it
are taken and given back within one message, since a process may stop between two of them.

**Executors.** Each process names itself anew (`executor`). A call's row names its executor, and may be settled by
another process only if that executor is dead: `is_dead()`. On PostgreSQL the ledger's own connection holds a session
advisory lock for its executor, which ends with the connection; so a pooler such as PgBouncer must not be in between.
"""

import asyncio
import fcntl
import os
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import asyncpg
import structlog
from sqlalchemy import URL, Connection, event, func, select, text, update
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from registry_service.storage import migrations
from registry_service.storage.models import CatalogRevision

# Keys of advisory locks: two 32-bit numbers, of which the first is "naru". Executors have the space of 64-bit keys.
CATALOG_LOCK = (0x6E617275, 1)
MIGRATION_LOCK = (0x6E617275, 2)
CHANGE_LOCK = (0x6E617275, 3)
CHANNEL = "naru_catalog"

CONNECT_SECONDS = 5.0
STATEMENT_SECONDS = 30.0
LISTEN_PING_SECONDS = 15.0
LISTEN_RETRY_SECONDS = 1.0
SQLITE_BUSY_MS = 5_000

_log = structlog.get_logger()


class DatabaseInUseError(Exception):
    """Another process owns the SQLite file; the message names both."""


class DatabaseUnreachableError(Exception):
    """There was no connection, or it was lost. The message says why and holds no password."""


class DatabaseReplacedError(DatabaseUnreachableError):
    """The path of an SQLite file does not lead to the file that this process has open."""


# What a database that is away raises from sessions and from every method here.
UNAVAILABLE: tuple[type[BaseException], ...] = (DatabaseUnreachableError, OperationalError, PoolTimeoutError)

# What asyncpg raises when the server is away, goes away, or does not answer in time (TimeoutError is an OSError).
_LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.DatabaseDroppedError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.LockNotAvailableError,
)


class Database(ABC):
    """An open database. Sessions do not expire their objects on commit, so that these can be read afterwards."""

    dialect: ClassVar[Literal["sqlite", "postgresql"]]

    def __init__(self, engine: AsyncEngine, writing: AsyncEngine) -> None:
        self.engine = engine
        self.sessions = async_sessionmaker(engine, expire_on_commit=False)
        self.executor = secrets.token_hex(16)
        # Lets one transaction of this process write at a time: fairer than SQLite's polling of its lock.
        self.turn = asyncio.Lock()
        self._writing = writing
        self._write_sessions = async_sessionmaker(writing, expire_on_commit=False)

    @staticmethod
    async def open(url: str) -> "Database":
        """Opens `sqlite:///path` or `postgresql://user:password@host/database`.

        PostgreSQL is not asked for a connection yet; everything that asyncpg reads from a URL works (`sslmode`, several
        hosts, `host=/socket/directory`).

        Raises:
            DatabaseInUseError: another process owns the SQLite file.
            DatabaseUnreachableError: the SQLite file cannot be opened.
            ValueError: the URL is of neither kind.
        """
        scheme, separator, rest = url.partition("://")
        kind = scheme.partition("+")[0]
        if kind == "sqlite" and rest.startswith("/") and len(rest) > 1 and "?" not in rest and ":memory:" not in rest:
            return SqliteDatabase(Path(rest[1:]))
        if kind in ("postgresql", "postgres") and separator:
            return PostgresqlDatabase(f"postgresql://{rest}")
        raise ValueError("a database URL is sqlite:///path/of/a/file or postgresql://user:password@host/database")

    async def migrate(self) -> None:
        """Brings the tables up to date, in one transaction, and waits for another process that does the same.

        Raises migrations.UnknownRevisionError when the tables are newer than this program.
        """
        async with self.turn, self._writing.begin() as connection:
            if self.dialect == "postgresql":
                await connection.execute(select(func.pg_advisory_xact_lock(*MIGRATION_LOCK)))
            await connection.run_sync(migrations.upgrade)

    async def is_migrated(self) -> bool:
        """Tells whether the tables are exactly those of this program."""
        async with self.engine.connect() as connection:
            return await connection.run_sync(migrations.is_current)

    async def ping(self) -> None:
        """Asks the database something; raises one of UNAVAILABLE when it does not answer."""
        async with self.engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A transaction that writes, but not to the catalog. Commits at the end, rolls back on an exception."""
        async with self.turn, self._write_sessions() as session, session.begin():
            await self._begin_write(session)
            yield session

    @asynccontextmanager
    async def change(self) -> AsyncIterator[AsyncSession]:
        """A transaction that changes tools, accounts or secrets, one at a time over all replicas.

        Raises the revision by one at the end unless the body has set `session.info["unchanged"] = True`, tells those
        who listen, and commits; rolls back on an exception.
        """
        async with self.write() as session:
            await self._exclude_changes(session)
            yield session
            if not session.info.get("unchanged"):
                await session.flush()
                await self._commit_change(session)

    async def revision(self) -> int:
        """The catalog's revision."""
        async with self.engine.connect() as connection:
            return (await connection.execute(select(CatalogRevision.revision))).scalar_one()

    async def close(self) -> None:
        await self.engine.dispose()

    @abstractmethod
    async def listen(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` after each change by any replica, and whenever one may have been missed. Never raises."""

    @abstractmethod
    async def is_dead(self, session: AsyncSession, executor: str) -> bool:
        """Tells whether the executor's process is gone. It cannot come back before the session's transaction ends."""

    @abstractmethod
    async def _begin_write(self, session: AsyncSession) -> None:
        """Begins the session's transaction."""

    @abstractmethod
    async def _exclude_changes(self, session: AsyncSession) -> None:
        """Keeps other changes out until the transaction ends."""

    @abstractmethod
    async def _commit_change(self, session: AsyncSession) -> None:
        """Waits for admissions that are being written, keeps others out, raises the revision, tells, and commits."""


class SqliteDatabase(Database):
    """A file. This process owns it until `close()`."""

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        # Links to the file share its lock.
        self.path = path.resolve()
        self._owner_lock = _own(self.path)
        _make_private(self.path)
        self._files: dict[Path, tuple[int, int] | None] = {}
        try:
            # Reads one row that is always in memory: in 10 µs here, in 300 through a thread and SQLAlchemy.
            self._reader = self.connect()
            _read(self._reader, "PRAGMA schema_version")  # the companions are there from the first reading on
        except DatabaseUnreachableError:
            os.close(self._owner_lock)
            raise
        self._files = {path: _identity(path) for path in (self.path, *_companions(self.path))}
        url = URL.create("sqlite+aiosqlite", database=_uri(self.path), query={"uri": "true", "mode": "rw"})
        engine = create_async_engine(url, hide_parameters=True)
        event.listen(engine.sync_engine, "connect", _prepare_connection)
        event.listen(engine.sync_engine, "begin", _begin)
        super().__init__(engine, engine.execution_options(writes=True))

    def connect(self) -> sqlite3.Connection:
        """A connection without the driver's implicit transactions, for one thread at a time.

        Raises DatabaseUnreachableError when the file cannot be opened, is not a database, or isn't the one that this
        process began with.
        """
        self.check_files()
        try:
            connection = sqlite3.connect(
                f"{_uri(self.path)}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
            )
            for statement in _PRAGMAS:
                connection.execute(statement)
        except sqlite3.DatabaseError as error:
            raise DatabaseUnreachableError(f"{self.path}: {error}") from error
        return connection

    def check_files(self) -> None:
        """Raises DatabaseUnreachableError while the path is not that of the files that this process has open.

        What is written to a file that was removed or replaced is gone when the process ends. In a fresh one at the same
        path there would be nothing of what was promised. So nothing is written to either.
        """
        for path, identity in self._files.items():
            if _identity(path) != identity:
                raise DatabaseReplacedError(
                    f"{path} was removed or replaced while this process used it: put it back, or stop this process,"
                    " restore the database and start again"
                )

    async def ping(self) -> None:
        self.check_files()
        await super().ping()

    async def revision(self) -> int:
        return _read(self._reader, "SELECT revision FROM catalog_revision")

    async def listen(self, on_change: Callable[[], None]) -> None:
        """Returns at once: this process makes all changes itself."""

    async def is_dead(self, session: AsyncSession, executor: str) -> bool:
        return executor != self.executor

    async def close(self) -> None:
        await super().close()
        self._reader.close()
        os.close(self._owner_lock)

    async def _begin_write(self, session: AsyncSession) -> None:
        self.check_files()
        await session.connection()

    async def _exclude_changes(self, session: AsyncSession) -> None:
        """BEGIN IMMEDIATE has done it, for admissions too."""

    async def _commit_change(self, session: AsyncSession) -> None:
        """The end of the session's transaction commits; there is nobody to be told."""
        await session.execute(update(CatalogRevision).values(revision=CatalogRevision.revision + 1))


class PostgresqlDatabase(Database):
    dialect = "postgresql"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self.connect,
            pool_pre_ping=True,
            pool_timeout=CONNECT_SECONDS,
            hide_parameters=True,  # logs hold the text of errors
        )
        event.listen(engine.sync_engine, "handle_error", _name_loss)
        super().__init__(engine, engine)

    async def connect(self, settings: Mapping[str, str] | None = None) -> asyncpg.Connection:
        """A connection, with these settings of the server beside the usual ones. Raises DatabaseUnreachableError."""
        try:
            connection = await asyncpg.connect(
                self._dsn,
                timeout=CONNECT_SECONDS,
                command_timeout=STATEMENT_SECONDS,
                server_settings={**_SERVER_SETTINGS, **(settings or {})},
            )
            try:
                await connection.execute(_DURABLE)
            except BaseException:
                connection.terminate()
                raise
        except (asyncpg.PostgresError, *_LOST) as error:
            raise DatabaseUnreachableError(str(error) or type(error).__name__) from error
        return connection

    async def listen(self, on_change: Callable[[], None]) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                connection = await self.connect()
                try:
                    await _listen(connection, on_change)
                finally:
                    connection.terminate()
            except (DatabaseUnreachableError, asyncpg.PostgresError, *_LOST) as error:
                _log.warning("not listening for changes of the catalog", error=str(error) or type(error).__name__)
            await asyncio.sleep(LISTEN_RETRY_SECONDS)

    async def is_dead(self, session: AsyncSession, executor: str) -> bool:
        lock = select(func.pg_try_advisory_xact_lock(executor_key(executor)))
        return executor != self.executor and (await session.execute(lock)).scalar_one()

    async def _begin_write(self, session: AsyncSession) -> None:
        await session.execute(_LIMITED)

    async def _exclude_changes(self, session: AsyncSession) -> None:
        await session.execute(select(func.pg_advisory_xact_lock(*CHANGE_LOCK)))

    async def _commit_change(self, session: AsyncSession) -> None:
        """In one message: a process that stops at any moment holds up no admission."""
        connection = await (await session.connection()).get_raw_connection()
        driver = connection.driver_connection
        assert isinstance(driver, asyncpg.Connection)  # noqa: S101 -- the engine has no other
        try:
            await driver.execute(_COMMIT_CHANGE)
        except (asyncpg.LockNotAvailableError, *_LOST) as error:
            raise DatabaseUnreachableError(str(error) or type(error).__name__) from error


_SERVER_SETTINGS = {
    "application_name": "naru",
    # A statement must see what was committed while it waited for an advisory lock.
    "default_transaction_isolation": "read committed",
    # A process that hangs while it reads; for one that writes see `_LIMITED`.
    "idle_in_transaction_session_timeout": "60000",
    # The locks of a process whose machine died end with these, in about 25 seconds.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# A process that hangs in a transaction holds up those of others for so long, and whoever waits gives up after that.
_LIMITED = text(
    "SELECT set_config('idle_in_transaction_session_timeout', '2000', true), set_config('lock_timeout', '3000', true)"
)
# The shared side of the lock is held by groups of admissions, for milliseconds. They queue behind this, so it gives up
# early. The transaction that COMMIT AND CHAIN begins is empty: it is for SQLAlchemy to commit.
_COMMIT_CHANGE = """
SET LOCAL lock_timeout = 1000;
SELECT pg_advisory_xact_lock({}, {});
UPDATE catalog_revision SET revision = revision + 1;
SELECT pg_notify('{}', '');
COMMIT AND CHAIN
""".format(*CATALOG_LOCK, CHANNEL)
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
_PRAGMAS = (
    f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
)


def executor_key(executor: str) -> int:
    """The key of an executor's advisory lock: 64 bits, signed."""
    return int.from_bytes(bytes.fromhex(executor)[:8], signed=True)


def _own(path: Path) -> int:
    """Takes the lock of an SQLite file, which ends with this process, and returns its descriptor."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseUnreachableError(f"{lock}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 20).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise DatabaseInUseError(
            f"{path} belongs to another process (pid {owner or 'unknown'}, which holds {lock.name}): an SQLite file is"
            " for one process; stop that one, or use PostgreSQL"
        ) from None
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # a full disk
        os.close(descriptor)
        raise DatabaseUnreachableError(f"{lock}: {error.strerror}") from error
    return descriptor


def _read(connection: sqlite3.Connection, query: str) -> int:
    """Returns the only value of the only row. Raises DatabaseUnreachableError."""
    try:
        # To the last row: an open cursor would hold up checkpoints.
        rows: list[tuple[int]] = connection.execute(query).fetchall()
    except sqlite3.DatabaseError as error:
        raise DatabaseUnreachableError(str(error)) from error
    return rows[0][0]


def _companions(path: Path) -> tuple[Path, Path]:
    """The files in which SQLite keeps what was committed last, and who reads what."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _uri(path: Path) -> str:
    """The path in SQLite's form, which takes `mode=rw`: a file that is gone must not come back empty."""
    return f"file:{quote(str(path))}"


def _make_private(path: Path) -> None:
    """Makes a new file for this user alone; SQLite gives its companions the same mode. An old one keeps its mode."""
    with suppress(OSError):  # whatever is in the way, opening it says so next
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _prepare_connection(connection: Any, record: Any) -> None:
    # None: the driver begins nothing by itself, so that `_begin` decides how.
    connection.isolation_level = None
    cursor = connection.cursor()
    for statement in _PRAGMAS:
        cursor.execute(statement)
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _name_loss(context: ExceptionContext) -> None:
    """SQLAlchemy wraps these in classes that say nothing of a lost connection, or not at all."""
    error = context.original_exception
    if not isinstance(error, Exception) or context.is_pre_ping:
        return
    if context.is_disconnect or isinstance(error, _LOST) or isinstance(error.__cause__, _LOST):
        context.is_disconnect = True
        raise DatabaseUnreachableError(str(error) or type(error).__name__) from error


async def _listen(connection: asyncpg.Connection, on_change: Callable[[], None]) -> None:
    """Returns or raises when the connection is lost."""
    lost = asyncio.Event()
    connection.add_termination_listener(lambda _: lost.set())
    await connection.add_listener(CHANNEL, lambda *_: on_change())
    on_change()
    while not lost.is_set():
        try:
            async with asyncio.timeout(LISTEN_PING_SECONDS):
                await lost.wait()
        except TimeoutError:
            await connection.execute("SELECT 1", timeout=CONNECT_SECONDS)
