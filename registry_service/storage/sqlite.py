"""SQLite: a file that one process owns, by a lock beside it."""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, event, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from registry_service.storage.database import (
    Database,
    DatabaseInUseError,
    DatabaseReplacedError,
    DatabaseUnreachableError,
)
from registry_service.storage.models import CatalogRevision

SQLITE_BUSY_MS = 5_000
_ROOM_BYTES = 64 * 1024
_PRAGMAS = (
    f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
)


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
            # SQLite itself speaks of an I/O error where there is no room for its companions.
            full = ": no space left on the disk" if shutil.disk_usage(self.path.parent).free < _ROOM_BYTES else ""
            raise DatabaseUnreachableError(f"{self.path}: {error}{full}") from error
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

    async def _exclude_migrations(self, connection: AsyncConnection) -> None:
        """BEGIN IMMEDIATE has done it, and the file is this process's."""

    async def _begin_write(self, session: AsyncSession) -> None:
        self.check_files()
        await session.connection()

    async def _exclude_changes(self, session: AsyncSession) -> None:
        """BEGIN IMMEDIATE has done it, for admissions too."""

    async def _commit_change(self, session: AsyncSession) -> None:
        """The end of the session's transaction commits; there is nobody to be told."""
        await session.execute(update(CatalogRevision).values(revision=CatalogRevision.revision + 1))


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
