"""PostgreSQL: shared by replicas, of which each may stop at any moment without holding up the others for long."""

import asyncio
from collections.abc import Callable, Mapping

import asyncpg
import structlog
from sqlalchemy import event, func, select, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from registry_service.storage.database import Database, DatabaseUnreachableError

# Keys of advisory locks: two 32-bit numbers, of which the first is "naru". Executors have the space of 64-bit keys.
CATALOG_LOCK = (0x6E617275, 1)
MIGRATION_LOCK = (0x6E617275, 2)
CHANGE_LOCK = (0x6E617275, 3)
CHANNEL = "naru_catalog"

CONNECT_SECONDS = 5.0
STATEMENT_SECONDS = 30.0
LISTEN_PING_SECONDS = 15.0
LISTEN_RETRY_SECONDS = 1.0

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
# The same for changes of the tables, whose locks stop everything. Between two of them much is imported and read.
_IDLE_MIGRATION = text("SELECT set_config('idle_in_transaction_session_timeout', '10000', true)")
_LOCKING_MIGRATION = text("SELECT set_config('lock_timeout', '3000', true)")
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
# Errors of asyncpg when the server is away, goes away, or does not answer in time (TimeoutError is an OSError).
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

_log = structlog.get_logger()


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

    async def _exclude_migrations(self, connection: AsyncConnection) -> None:
        # First the limit on idling: a process that hangs once it has the lock holds up the others no longer than it.
        # The one on locks comes after: another process's migration is waited for.
        await connection.execute(_IDLE_MIGRATION)
        await connection.execute(select(func.pg_advisory_xact_lock(*MIGRATION_LOCK)))
        await connection.execute(_LOCKING_MIGRATION)

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


def executor_key(executor: str) -> int:
    """The key of an executor's advisory lock: 64 bits, signed."""
    return int.from_bytes(bytes.fromhex(executor)[:8], signed=True)


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
