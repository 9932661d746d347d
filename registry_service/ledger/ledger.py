"""What was admitted, and what became of it.

Admitted means recorded: when `admit()` returns True, the call's row and its usage are durable. Acknowledged means
settled: when `settle()` returns, the outcome is. Both wait for a group commit: while one group is being written, the
next gathers.
"""

import asyncio
import re
import secrets
import time
from asyncio import Future
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from naru.v1 import execution_pb2
from registry_service.errors import CallOutcomeUnknownError, ServiceUnavailableError
from registry_service.ledger.journal import ROW_FAULTS, Entry, OutcomeInDoubtError, Settlement, journal
from registry_service.ledger.orphans import Orphans
from registry_service.storage.database import UNAVAILABLE, Database, DatabaseUnreachableError
from registry_service.storage.models import now_micros
from registry_service.telemetry.metrics import LEDGER_COMMIT_SECONDS, LEDGER_GROUP_SIZE

MAX_GROUP = 512
# A group waits for more calls until this long after the last one began, for each call that is under way: a lone call
# hardly ever does, ten or more wait for 5 ms. A commit costs the CPU of ten calls in it, whatever its size.
GATHER_SECONDS_PER_CALL = 0.0005
MAX_GATHER_SECONDS = 0.005
# An admission whose recording is in doubt is waited for so long; then its caller hears that it is not known.
DOUBT_SECONDS = 3.0
RETRY_SECONDS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
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


# What `new_call_id` makes.
CALL_ID = re.compile(r"[0-9a-f]{32}")


def new_call_id() -> str:
    """32 hexadecimal digits, of which the first 12 are the time in milliseconds.

    In the order of time, since random keys would touch a page of the table's index for each call.
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


class Ledger:
    """Writes admissions and settlements in groups, by one task.

    When the database is away, admissions are refused and settlements kept, until it is back or the process ends. After
    a failure, admissions wait until the ledger has been written again: the settlements that wait, or a probe.
    """

    def __init__(
        self, database: Database, *, sweep_seconds: float = SWEEP_SECONDS, orphan_seconds: float = ORPHAN_SECONDS
    ) -> None:
        self._journal = journal(database)
        self._orphans = Orphans(database)
        self._sweep_seconds = sweep_seconds
        self._orphan_seconds = orphan_seconds
        self._entries: list[Entry] = []
        self._settlements: list[Settlement] = []
        # Admissions whose answer was lost: whether they were written is found out on the next connection.
        self._doubtful: list[Entry] = []
        self._running = 0
        # Since the last group that was written.
        self._failures = 0
        self._away = True
        self._closing = asyncio.Event()
        self._hopeless = False
        self._wake = asyncio.Event()
        self._gathered = asyncio.Event()
        self._last_begin = 0.0
        self._writer: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes its place in the database, and settles the calls of processes that died as UNKNOWN.

        On PostgreSQL this takes `orphan_seconds` when there are some. May be called again after it has failed.
        Raises one of database.UNAVAILABLE.
        """
        await self._journal.open(self._wake.set)
        try:
            await self._probe()
        except OutcomeInDoubtError as error:
            raise DatabaseUnreachableError(str(error)) from error
        if await self._orphans.settle():
            await asyncio.sleep(self._orphan_seconds)
            await self._orphans.settle()
        self._away = False
        self._writer = asyncio.create_task(self._write_groups(), name="ledger writer")
        self._sweeper = asyncio.create_task(self._sweep(), name="ledger sweeper")

    @property
    def is_writable(self) -> bool:
        """False from a loss that outlasted one more attempt until something was written, by a probe if by nobody."""
        return not self._away

    async def admit(self, admission: Admission) -> bool:
        """Records the call and counts it, durably, and returns True; or False when the catalog has changed since.

        A caller that is cancelled need do nothing: its call is not recorded, or will be settled as CANCELLED.

        Raises:
            ServiceUnavailableError: nothing was recorded, since the database is away.
            CallOutcomeUnknownError: the database went away while it recorded the call, which will not run.
        """
        if self._away or self._closing.is_set():
            raise ServiceUnavailableError("the ledger cannot be written")
        admitted: Future[bool] = asyncio.get_running_loop().create_future()
        self._entries.append(
            Entry(
                admission.call_id,
                admission.client_id,
                admission.tool,
                admission.version,
                admission.lane,
                admission.session_id,
                admission.request_id,
                admission.create_time,
                admission.revision,
                admitted,
            )
        )
        self._wake.set()
        try:
            return await admitted
        except asyncio.CancelledError:
            # Both may have happened at once: admitted, and cancelled before this line could know.
            if not admitted.cancelled() and admitted.exception() is None and admitted.result():
                self._settle_as_cancelled(admission.call_id)
            raise

    async def settle(self, call_id: str, state: int, reason: int = 0) -> None:
        """Records the outcome of an admitted call, durably, once; a call that is settled already keeps its outcome.

        Waits as long as the database is away. A caller that is cancelled need do nothing: the outcome will be recorded.

        Args:
            call_id: of a call that `admit()` has returned True for.
            state: a value of the contract's `Call.State`, but RUNNING.
            reason: a value of the contract's `Reason`; 0 means none.

        Raises:
            CallOutcomeUnknownError: the ledger was closed before the outcome could be recorded.
        """
        if self._writer is None:
            raise CallOutcomeUnknownError("the ledger is closed", call_id=call_id)
        settled: Future[None] = asyncio.get_running_loop().create_future()
        self._add(Settlement(state, reason, now_micros(), call_id, settled))
        await settled

    async def close(self) -> None:
        """Writes what is waiting, with one more attempt if the database is away, and gives up the rest."""
        self._closing.set()
        self._wake.set()
        self._gathered.set()
        writer, self._writer = self._writer, None
        try:
            if self._sweeper is not None:
                self._sweeper.cancel()
            if writer is not None:
                await asyncio.wait({writer})
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.wait({writer})
            self._give_up()
            await self._journal.close()

    def _settle_as_cancelled(self, call_id: str) -> None:
        self._add(Settlement(execution_pb2.Call.CANCELLED, 0, now_micros(), call_id, None))

    def _add(self, settlement: Settlement) -> None:
        self._settlements.append(settlement)
        self._wake.set()

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
        self._away = True
        _refuse(self._entries)
        self._entries.clear()

    async def _is_time_to_write(self) -> bool:
        """Waits for something to write and a journal to write it in; False when it is time to end instead."""
        while not self._hopeless:
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
            self._settle_as_cancelled(entry.call_id)

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
        self._hopeless = self._closing.is_set()
        if self._failures == 1:
            _log.warning("the ledger cannot be written", error=str(error))
        else:
            self._away = True

    def _note_recovery(self) -> None:
        if self._failures:
            _log.info("the ledger can be written again", failures=self._failures)
        self._failures = 0
        self._away = False

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

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self._orphans.settle()
            except UNAVAILABLE as error:
                _log.warning("calls of dead processes were not looked for", error=type(error).__name__)
            except Exception:  # noqa: BLE001 -- the supervisor of the sweeps: logged, and tried again
                _log.exception("calls of dead processes were not looked for")


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
