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
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, Literal

from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from registry_service.storage import migrations
from registry_service.storage.models import CatalogRevision


class DatabaseInUseError(Exception):
    """Another process owns the SQLite file; the message names both."""


class DatabaseUnreachableError(Exception):
    """There was no connection, or it was lost. The message says why and holds no password."""


class DatabaseReplacedError(DatabaseUnreachableError):
    """The path of an SQLite file does not lead to the file that this process has open."""


# Errors that sessions and every method here raise when the database is away.
UNAVAILABLE: tuple[type[BaseException], ...] = (DatabaseUnreachableError, OperationalError, PoolTimeoutError)


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

    async def migrate(self) -> None:
        """Brings the tables up to date, in one transaction, and waits for another process that does the same.

        Raises migrations.UnknownRevisionError when the tables are newer than this program.
        """
        async with self.turn, self._writing.begin() as connection:
            await self._exclude_migrations(connection)
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
    async def _exclude_migrations(self, connection: AsyncConnection) -> None:
        """Keeps other processes from migrating until the transaction ends."""

    @abstractmethod
    async def _begin_write(self, session: AsyncSession) -> None:
        """Begins the session's transaction."""

    @abstractmethod
    async def _exclude_changes(self, session: AsyncSession) -> None:
        """Keeps other changes out until the transaction ends."""

    @abstractmethod
    async def _commit_change(self, session: AsyncSession) -> None:
        """Waits for admissions that are being written, keeps others out, raises the revision, tells, and commits."""
