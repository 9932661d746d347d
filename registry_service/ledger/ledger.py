"""Records which calls were admitted, and what became of them.

Admitted means recorded: when `admit()` returns True, the call's row and its usage are durable. Acknowledged means
settled: when `settle()` returns, the outcome is. Both wait for a group commit.
"""

import asyncio
import re
import secrets
import time
from asyncio import Future
from dataclasses import dataclass

import structlog

from registry_service.errors import CallOutcomeUnknownError
from registry_service.ledger.group_commit import GroupCommit
from registry_service.ledger.journal import Entry, Journal, Settlement
from registry_service.ledger.orphans import Orphans
from registry_service.ledger.postgresql_journal import PostgresqlJournal
from registry_service.ledger.sqlite_journal import SqliteJournal
from registry_service.storage.database import UNAVAILABLE, Database
from registry_service.storage.models import now_micros
from registry_service.storage.postgresql import PostgresqlDatabase
from registry_service.storage.sqlite import SqliteDatabase

SWEEP_SECONDS = 15.0
ORPHAN_SECONDS = 2.0

_log = structlog.get_logger()


@dataclass(slots=True)
class Admission:
    """A call that asks to be admitted, decided on the catalog's `revision`. `create_time` is in microseconds."""

    call_id: str
    client_id: str
    tool: str
    version: str
    lane: str
    session_id: str
    request_id: str
    revision: int
    create_time: int
    trial: bool = False


# The form of the ids that `new_call_id` makes.
CALL_ID = re.compile(r"[0-9a-f]{32}")


def new_call_id() -> str:
    """32 hexadecimal digits, of which the first 12 are the time in milliseconds.

    In the order of time, since random keys would touch a page of the table's index for each call.
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


class Ledger:
    """Admits and settles calls, and settles those of processes that died."""

    def __init__(
        self, database: Database, *, sweep_seconds: float = SWEEP_SECONDS, orphan_seconds: float = ORPHAN_SECONDS
    ) -> None:
        self._writer = GroupCommit(_journal(database))
        self._orphans = Orphans(database)
        self._sweep_seconds = sweep_seconds
        self._orphan_seconds = orphan_seconds
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes its place in the database, and settles the calls of processes that died as UNKNOWN.

        On PostgreSQL this takes `orphan_seconds` when there are some. May be called again after it has failed.
        Raises one of database.UNAVAILABLE.
        """
        await self._writer.open()
        if await self._orphans.settle():
            await asyncio.sleep(self._orphan_seconds)
            await self._orphans.settle()
        self._writer.start()
        self._sweeper = asyncio.create_task(self._sweep(), name="ledger sweeper")

    @property
    def is_writable(self) -> bool:
        """False after two failed writes in a row, until a write or a probe succeeds."""
        return self._writer.is_writable

    @property
    def trouble(self) -> str:
        """Returns what prevents writing, such as `disk_full`. It is empty while nothing does."""
        return self._writer.trouble

    async def admit(self, admission: Admission) -> bool:
        """Records the call and counts it, durably, and returns True; or False when the catalog has changed since.

        A caller that is cancelled need do nothing: its call is not recorded, or will be settled as CANCELLED.

        Raises:
            ServiceUnavailableError: nothing was recorded, since the database is away.
            CallOutcomeUnknownError: the database went away while it recorded the call, which will not run.
        """
        admitted: Future[bool] = asyncio.get_running_loop().create_future()
        self._writer.admit(
            Entry(
                admission.call_id,
                admission.client_id,
                admission.tool,
                admission.version,
                admission.lane,
                admission.session_id,
                admission.request_id,
                admission.create_time,
                admission.trial,
                admission.revision,
                admitted,
            )
        )
        try:
            return await admitted
        except asyncio.CancelledError:
            # Both may have happened at once: admitted, and cancelled before this line could know.
            if not admitted.cancelled() and admitted.exception() is None and admitted.result():
                self._writer.settle_as_cancelled(admission.call_id)
            raise

    async def settle(
        self,
        call_id: str,
        state: int,
        reason: int = 0,
        *,
        seconds: float | None = None,
        http_status: int = 0,
        detail: str = "",
    ) -> None:
        """Records the outcome of an admitted call, durably, once; a call that is settled already keeps its outcome.

        Waits as long as the database is away. A caller that is cancelled need do nothing: the outcome will be recorded.

        Args:
            call_id: of a call that `admit()` has returned True for.
            state: a value of the contract's `Call.State`, but RUNNING.
            reason: a value of the contract's `Reason`; 0 means none.
            seconds: how long it ran; None where nobody knows.
            http_status: the endpoint's; 0 where it sent none.
            detail: what went wrong, in a few words.

        Raises:
            CallOutcomeUnknownError: the ledger was closed before the outcome could be recorded.
        """
        if not self._writer.is_running:
            raise CallOutcomeUnknownError("the ledger is closed", call_id=call_id)
        settled: Future[None] = asyncio.get_running_loop().create_future()
        duration = None if seconds is None else round(seconds * 1_000_000)
        self._writer.settle(
            Settlement(state, reason, now_micros(), duration, http_status, _kept(detail), call_id, settled)
        )
        await settled

    async def close(self) -> None:
        """Writes what is waiting, with one more attempt if the database is away, and gives up the rest."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._writer.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self._orphans.settle()
            except UNAVAILABLE as error:
                _log.warning("calls of dead processes were not looked for", error=type(error).__name__)
            except Exception:  # noqa: BLE001 -- the supervisor of the sweeps: logged, and tried again
                _log.exception("calls of dead processes were not looked for")


def _kept(text: str) -> str:
    """Returns the text as every database can hold it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def _journal(database: Database) -> Journal:
    if isinstance(database, SqliteDatabase):
        return SqliteJournal(database)
    assert isinstance(database, PostgresqlDatabase)  # noqa: S101 -- there are two kinds
    return PostgresqlJournal(database)
