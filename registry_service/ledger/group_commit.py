"""Writes admissions and settlements in groups, by one task: while one group is being written, the next gathers."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, auto

import structlog

from naru.v1 import execution_pb2
from registry_service.errors import CallOutcomeUnknownError, ServiceUnavailableError
from registry_service.ledger.journal import ROW_FAULTS, Entry, Journal, OutcomeInDoubtError, Settlement
from registry_service.storage.database import DatabaseUnreachableError
from registry_service.storage.models import now_micros
from registry_service.storage.trouble import UNREACHABLE, cause_of
from registry_service.telemetry.metrics import LEDGER_COMMIT_SECONDS, LEDGER_GROUP_SIZE

MAX_GROUP = 512
# A group waits for more calls until this long after the last one began, for each call that is under way: a lone call
# hardly ever does, ten or more wait for 5 ms. A commit costs the CPU of ten calls in it, whatever its size.
GATHER_SECONDS_PER_CALL = 0.0005
MAX_GATHER_SECONDS = 0.005
# An admission whose recording is in doubt is waited for so long; then its caller hears that it is not known.
DOUBT_SECONDS = 3.0
RETRY_SECONDS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)

_log = structlog.get_logger()


class State(Enum):
    """Describes what the writer knows of the database."""

    # It has not started.
    NEW = auto()
    # The last group or probe was written.
    WRITABLE = auto()
    # One write failed, and the next attempt has not ended: admissions wait for it.
    SHAKEN = auto()
    # Two in a row failed: admissions are refused until something was written.
    AWAY = auto()
    # A write failed after the end was asked for: there is no further attempt.
    GIVEN_UP = auto()


class GroupCommit:
    """The writer.

    When the database is away, admissions are refused and settlements kept, until it is back or the process ends. After
    a failure, admissions wait until something has been written again: the settlements that wait, or a probe.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._state = State.NEW
        # In a row, and what the last was of.
        self._failures = 0
        self._cause = UNREACHABLE
        self._entries: list[Entry] = []
        self._settlements: list[Settlement] = []
        # Admissions whose answer was lost: whether they were written is found out on the next connection.
        self._doubtful: list[Entry] = []
        self._running = 0
        self._closing = asyncio.Event()
        self._wake = asyncio.Event()
        self._gathered = asyncio.Event()
        self._last_begin = 0.0
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Opens the journal and proves that it can be written. Raises DatabaseUnreachableError."""
        await self._journal.open(self._wake.set)
        try:
            await self._probe()
        except OutcomeInDoubtError as error:
            raise DatabaseUnreachableError(str(error)) from error

    def start(self) -> None:
        self._state = State.WRITABLE
        self._writer = asyncio.create_task(self._write_groups(), name="ledger writer")

    @property
    def is_writable(self) -> bool:
        """False after two failed writes in a row, until a write or a probe succeeds."""
        return self._state in (State.WRITABLE, State.SHAKEN)

    @property
    def trouble(self) -> str:
        """Returns what prevents writing, as `cause_of` names it. It is empty while nothing does."""
        return "" if self.is_writable else self._cause

    @property
    def is_running(self) -> bool:
        """False before the start, and once the end was asked for."""
        return self._writer is not None

    def admit(self, entry: Entry) -> None:
        """Takes an admission into the next group. Raises ServiceUnavailableError."""
        if not self.is_writable or self._closing.is_set():
            raise ServiceUnavailableError("the ledger cannot be written", cause=self.trouble or "shutting_down")
        self._entries.append(entry)
        self._wake.set()

    def settle(self, settlement: Settlement) -> None:
        """Takes an outcome into the next group."""
        self._settlements.append(settlement)
        self._wake.set()

    def settle_as_cancelled(self, call_id: str) -> None:
        self.settle(Settlement(execution_pb2.Call.CANCELLED, 0, now_micros(), None, 0, "", call_id, None))

    async def close(self) -> None:
        """Writes what is waiting, with one more attempt if the database is away, and gives up the rest."""
        self._closing.set()
        self._wake.set()
        self._gathered.set()
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                await asyncio.wait({writer})
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.wait({writer})
            self._give_up()
            await self._journal.close()

    async def _write_groups(self) -> None:
        while await self._is_wanted():
            asking = 0 if self._failures else MAX_GROUP
            entries = [entry for entry in self._entries[:asking] if not entry.admitted.cancelled()]
            settlements = self._settlements[:MAX_GROUP]
            del self._entries[:asking], self._settlements[:MAX_GROUP]
            if not entries and not settlements:
                continue
            try:
                await self._write(entries, settlements)
            except asyncio.CancelledError:
                self._doubtful += entries
                self._settlements[:0] = settlements
                raise
            except Exception as error:  # noqa: BLE001 -- the supervisor of the writer: told to all who wait, and logged
                _log.exception("a group of the ledger failed")
                _fail(entries, settlements, error)

    async def _is_wanted(self) -> bool:
        """As `_is_time_to_write`, whatever comes of opening the journal: without a writer all would wait for ever."""
        while True:
            try:
                return await self._is_time_to_write()
            except Exception as error:  # noqa: BLE001 -- the supervisor of the writer: logged, refused, and tried again
                _log.exception("the ledger could not be opened")
                self._refuse_all(error)

    def _refuse_all(self, error: Exception) -> None:
        self._note_failure(error)
        self._state = State.AWAY if self._state is State.SHAKEN else self._state
        _refuse(self._entries)
        self._entries.clear()

    async def _is_time_to_write(self) -> bool:
        """Waits for something to write and a journal to write it in; False when it is time to end instead."""
        while self._state is not State.GIVEN_UP:
            if not self._journal.is_open():
                await self._reopen()
            elif self._failures and not self._settlements:
                self._note_recovery()  # the probe of `_reopen` was written
            elif self._entries or self._settlements:
                await self._gather()
                return True
            elif self._closing.is_set():
                break
            else:
                self._wake.clear()
                await self._wake.wait()
        return False

    async def _gather(self) -> None:
        """Waits for others to join the group, unless the last commit is long enough ago."""
        loop = asyncio.get_running_loop()
        patience = min((self._running + len(self._entries)) * GATHER_SECONDS_PER_CALL, MAX_GATHER_SECONDS)
        rest = self._last_begin + patience - loop.time()
        if rest > 0 and not self._closing.is_set():
            self._gathered.clear()
            timer = loop.call_later(rest, self._gathered.set)
            await self._gathered.wait()
            timer.cancel()
        self._last_begin = loop.time()

    async def _write(self, entries: Sequence[Entry], settlements: Sequence[Settlement]) -> None:
        began = time.perf_counter()
        try:
            revision = await self._journal.write(entries, settlements)
        except ROW_FAULTS as error:
            await self._write_halves(entries, settlements, error)
        except DatabaseUnreachableError as error:
            self._note_failure(error)
            _refuse(entries)
            self._settlements[:0] = settlements
        except OutcomeInDoubtError as error:
            self._note_failure(error)
            self._doubtful += entries
            self._settlements[:0] = settlements
            asyncio.get_running_loop().call_later(DOUBT_SECONDS, _leave_in_doubt, entries)
        else:
            self._note_recovery()
            LEDGER_COMMIT_SECONDS.observe(time.perf_counter() - began)
            LEDGER_GROUP_SIZE.observe(len(entries) + len(settlements))
            for entry in entries:
                self._decide(entry, admitted=entry.revision == revision)
            self._acknowledge(settlements)

    async def _write_halves(
        self, entries: Sequence[Entry], settlements: Sequence[Settlement], error: Exception
    ) -> None:
        """Finds the row at fault, which alone must fail."""
        size = len(entries) + len(settlements)
        if size == 1:
            _log.error("a row of the ledger cannot be written", error=type(error).__name__)
            _fail(entries, settlements, error)
            return
        middle = size // 2
        rest = max(middle - len(entries), 0)
        await self._write(entries[:middle], settlements[:rest])
        await self._write(entries[middle:], settlements[rest:])

    def _decide(self, entry: Entry, *, admitted: bool) -> None:
        if admitted:
            self._running += 1
        if not entry.admitted.done():
            entry.admitted.set_result(admitted)
        elif admitted:
            self.settle_as_cancelled(entry.call_id)

    def _acknowledge(self, settlements: Sequence[Settlement]) -> None:
        self._running = max(self._running - len(settlements), 0)
        for settlement in settlements:
            if settlement.settled is not None and not settlement.settled.done():
                settlement.settled.set_result(None)

    async def _reopen(self) -> None:
        """Tries once to open the journal anew and to write to it, after a pause that grows with each failure."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]):
                await self._closing.wait()
        try:
            await self._journal.open(self._wake.set)
            await self._decide_doubtful()
            await self._probe()
        except (DatabaseUnreachableError, OutcomeInDoubtError) as error:
            self._refuse_all(error)

    async def _probe(self) -> None:
        """Writes something. Opening is not enough: it succeeds on a full disk, or while another holds the file's lock.

        Raises DatabaseUnreachableError or OutcomeInDoubtError.
        """
        await self._journal.write((), ())

    async def _decide_doubtful(self) -> None:
        if self._doubtful:
            written = await self._journal.written([entry.call_id for entry in self._doubtful])
            for entry in self._doubtful:
                if entry.call_id in written:
                    self._decide(entry, admitted=True)
                else:
                    _refuse([entry])
            self._doubtful.clear()

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._cause = cause_of(error)
        if self._failures == 1:
            _log.warning("the ledger cannot be written", cause=self._cause, error=str(error))
        if self._closing.is_set():
            self._state = State.GIVEN_UP
        else:
            self._state = State.SHAKEN if self._state is State.WRITABLE else State.AWAY

    def _note_recovery(self) -> None:
        if self._failures:
            _log.info("the ledger can be written again", failures=self._failures)
        self._failures = 0
        self._state = State.WRITABLE

    def _give_up(self) -> None:
        """Whoever still waits is told; what was not settled will be found by the next sweep of another process."""
        if self._settlements or self._doubtful:
            _log.error("outcomes were not recorded", calls=len(self._settlements) + len(self._doubtful))
        _refuse(self._entries)
        _leave_in_doubt(self._doubtful)
        for settlement in self._settlements:
            if settlement.settled is not None and not settlement.settled.done():
                settlement.settled.set_exception(
                    CallOutcomeUnknownError("the ledger was closed", call_id=settlement.call_id)
                )
        self._entries, self._settlements, self._doubtful = [], [], []


def _refuse(entries: Sequence[Entry]) -> None:
    for entry in entries:
        if not entry.admitted.done():
            entry.admitted.set_exception(ServiceUnavailableError("the ledger cannot be written"))


def _leave_in_doubt(entries: Sequence[Entry]) -> None:
    for entry in entries:
        if not entry.admitted.done():
            error = CallOutcomeUnknownError("the call may have been recorded", tool=entry.tool, call_id=entry.call_id)
            entry.admitted.set_exception(error)


def _fail(entries: Sequence[Entry], settlements: Sequence[Settlement], error: Exception) -> None:
    for future in (*(entry.admitted for entry in entries), *(settlement.settled for settlement in settlements)):
        if future is not None and not future.done():
            future.set_exception(error)
