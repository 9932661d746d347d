"""The journal on SQLite: groups are transactions on a connection of their own."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from registry_service.ledger.journal import PROBE, ROW_FAULTS, Entry, OutcomeInDoubtError, Settlement, usage
from registry_service.storage.database import DatabaseUnreachableError
from registry_service.storage.sqlite import SqliteDatabase

# The room that a large group takes on the disk.
ROOM_BYTES = 1024 * 1024

_T = TypeVar("_T")

# In these statements 1 is the contract's `RUNNING` and 6 its `UNKNOWN`, which a late true outcome replaces.
_SQLITE_ADMIT = (
    "INSERT INTO calls (call_id, client_id, tool, version, lane, session_id, request_id, create_time, trial,"
    " executor, state, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 0)"
)
_SQLITE_COUNT = (
    "INSERT INTO usage (client_id, lane, period, calls) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (client_id, lane, period) DO UPDATE SET calls = calls + excluded.calls"
)
_SQLITE_SETTLE = (
    "UPDATE calls SET state = ?, reason = ?, settle_time = ?, duration = ?, http_status = ?, detail = ?"
    " WHERE call_id = ? AND state IN (1, 6)"
)
_SQLITE_FIND = "SELECT call_id FROM calls WHERE call_id = ?"


class SqliteJournal:
    """One connection. Statements run on the event loop, and only COMMIT, which waits for the disk, on a thread.

    The driver gives up the interpreter's lock around each statement. A thread would have to win it back from a busy
    event loop row by row, at up to 5 ms each, while the rows themselves take microseconds: they are in memory.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._connection: sqlite3.Connection | None = None
        self._busy_ms = 0

    def is_open(self) -> bool:
        return self._connection is not None

    async def open(self, on_loss: Callable[[], None]) -> None:
        """A file is never lost: `on_loss` is not called."""
        self._drop()
        connection = await self._visit(self._database.connect)
        self._busy_ms = connection.execute("PRAGMA busy_timeout").fetchone()[0]
        connection.execute("PRAGMA busy_timeout = 0")
        self._connection = connection

    async def write(self, entries: Sequence[Entry], settlements: Sequence[Settlement]) -> int:
        async with self._database.turn:
            try:
                self._database.check_files()
                if not entries and not settlements:
                    await self._visit(_find_room, self._database.path.parent)
                await self._begin(patient=bool(entries or settlements))
                revision = self._fill(entries, settlements)
            except ROW_FAULTS:
                self._opened().rollback()
                raise
            except (sqlite3.DatabaseError, OSError) as error:
                self._drop()
                raise DatabaseUnreachableError(str(error)) from error
            except DatabaseUnreachableError:
                self._drop()
                raise
            except BaseException:  # a transaction that stayed open would be in the way of all others
                self._opened().rollback()
                raise
            try:
                await self._visit(self._opened().execute, "COMMIT")
            except sqlite3.DatabaseError as error:
                self._drop()
                raise OutcomeInDoubtError(str(error)) from error
            return revision

    async def written(self, call_ids: Sequence[str]) -> set[str]:
        try:
            found = [self._opened().execute(_SQLITE_FIND, (call_id,)).fetchall() for call_id in call_ids]
        except sqlite3.DatabaseError as error:
            self._drop()
            raise DatabaseUnreachableError(str(error)) from error
        return {row[0] for rows in found for row in rows}

    async def close(self) -> None:
        self._drop()
        self._thread.shutdown()

    async def _visit(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Runs on the thread. To its end, even if the caller is cancelled: a connection is for one at a time."""
        visit = asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        try:
            return await asyncio.shield(visit)
        except asyncio.CancelledError:
            await asyncio.wait({visit})
            raise

    async def _begin(self, *, patient: bool) -> None:
        """No writer of this process is in the way; whoever else is gets the usual time to finish, if `patient`."""
        connection = self._opened()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or not patient:
                raise
            await self._visit(_begin_patiently, connection, self._busy_ms)

    def _fill(self, entries: Sequence[Entry], settlements: Sequence[Settlement]) -> int:
        connection = self._opened()
        revision: int = connection.execute("SELECT revision FROM catalog_revision").fetchall()[0][0]
        current = [entry for entry in entries if entry.revision == revision]
        if current:
            executor = self._database.executor
            connection.executemany(_SQLITE_ADMIT, [(*entry[:9], executor) for entry in current])
            connection.executemany(_SQLITE_COUNT, usage(current))
        if settlements:
            connection.executemany(_SQLITE_SETTLE, [settlement[:7] for settlement in settlements])
        if not entries and not settlements:
            connection.execute(PROBE)
        return revision

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise DatabaseUnreachableError("the ledger's connection is closed")
        return self._connection

    def _drop(self) -> None:
        """Closes; what was begun is rolled back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _find_room(directory: Path) -> None:
    """Raises OSError on a full disk. The probe's own page would fit where a group does not, and health would flap."""
    with TemporaryFile(dir=directory) as file:
        file.write(bytes(ROOM_BYTES))
        file.flush()


def _begin_patiently(connection: sqlite3.Connection, busy_ms: int) -> None:
    connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
    try:
        connection.execute("BEGIN IMMEDIATE")
    finally:
        connection.execute("PRAGMA busy_timeout = 0")
