"""One call: who asked for what, what it was admitted as, when it has to end, and what its RPC hasn't been told yet."""

import asyncio
from collections import deque
from typing import NamedTuple, TypeAlias

from naru.v1 import errors_pb2, execution_pb2
from registry_service.identity.caller import Caller
from registry_service.identity.credentials import AccountEntry
from registry_service.ledger.ledger import new_call_id
from registry_service.telemetry.metrics import PROGRESS_DROPPED
from registry_service.tools.active_tool import ActiveTool
from registry_service.upstreams.answer import Answer
from registry_service.upstreams.upstream import Prepared

# To record and tell the outcome, a tenth of a client's time limit is kept, at most this. If half of that has gone by
# and nothing is recorded, the other half is for telling that.
ANSWER_SECONDS = 0.5
# Progress that a slow client has not fetched yet; the oldest goes first.
PROGRESS_KEPT = 64
# A message of progress is cut to so many characters.
MESSAGE_KEPT = 2000

Event: TypeAlias = execution_pb2.CallToolEvent
# The greatest double: a number beyond it is no progress.
_MOST = 1.7976931348623157e308


class Mailbox:
    """Holds what a streaming RPC has not been told yet. One reads, and looks again each time that `news` returns.

    News stay until they are read: they are kept first and rung for afterwards, and `news` forgets the ringing before
    the reader looks. So none can be missed; one ring too many costs a look.
    """

    __slots__ = ("_progress", "_reported", "_rung")

    def __init__(self) -> None:
        self._progress: deque[Event.Progress] = deque(maxlen=PROGRESS_KEPT)
        self._reported = float("-inf")
        self._rung = asyncio.Event()

    def report(self, progress: float, total: float | None, message: str) -> None:
        """Keeps an endpoint's progress, if it is progress: the contract promises that it grows."""
        rises = self._reported < progress <= _MOST
        if not rises or len(self._progress) == PROGRESS_KEPT:
            PROGRESS_DROPPED.inc()
        if rises:
            self._reported = progress
            known = total is not None and abs(total) <= _MOST
            self._progress.append(
                Event.Progress(
                    progress=progress,
                    total=total if known else None,
                    message=message[:MESSAGE_KEPT],
                    progress_digits=_digits(progress),
                    total_digits=_digits(total) if known else "",
                )
            )
            self.ring()

    def ring(self) -> None:
        """Has the reader look: at the progress here, at the call, at its task."""
        self._rung.set()

    async def news(self) -> None:
        """Waits until somebody has rung since the last time."""
        await self._rung.wait()
        self._rung.clear()

    def next_progress(self) -> Event.Progress | None:
        """Returns the oldest progress that was not read, if there is any."""
        return self._progress.popleft() if self._progress else None


class Ready(NamedTuple):
    """A call that passed every check and can be admitted. `revision` is the catalog revision it was checked against."""

    revision: int
    account: AccountEntry
    lane: str
    tool: ActiveTool
    request: Prepared
    # The admin named the version, which may be inactive.
    trial: bool


class Call:
    """The state of one call that its RPC watches. `client_seconds` is the client's time limit, None without one."""

    __slots__ = (
        "abandoned",
        "admitted",
        "call_id",
        "caller",
        "client_deadline",
        "client_seconds",
        "cut",
        "mailbox",
        "rpc",
    )

    def __init__(self, rpc: execution_pb2.CallToolRequest, caller: Caller, client_seconds: float | None) -> None:
        self.call_id = new_call_id()
        self.rpc = rpc
        self.caller = caller
        self.client_seconds = client_seconds
        # By the event loop's clock.
        self.client_deadline = None if client_seconds is None else asyncio.get_running_loop().time() + client_seconds
        self.admitted: Ready | None = None
        # The RPC is over, and nobody waits for the result.
        self.abandoned = False
        # The process stops before the call has ended.
        self.cut = False
        # Rung on admission, on progress and at the end; None for an RPC that does not stream.
        self.mailbox = Mailbox() if rpc.stream else None

    def admit(self, ready: Ready) -> None:
        """Notes that the ledger holds the call."""
        self.admitted = ready
        self.ring()

    def ring(self) -> None:
        """Has the RPC look, if it streams."""
        if self.mailbox is not None:
            self.mailbox.ring()

    def told_by(self, share: float) -> float | None:
        """Returns when this share of the time that is kept for the answer has to be left, by the event loop's clock."""
        if self.client_deadline is None or self.client_seconds is None:
            return None
        return self.client_deadline - share * min(ANSWER_SECONDS, self.client_seconds / 10)


class Limit(NamedTuple):
    """The time limit that fires first: `tool`, `client` or `server`. `at` is of the event loop's clock."""

    name: str
    seconds: float
    at: float


def time_limit(call: Call, wanted: float | None, default: float, most: float, now: float) -> Limit:
    """Returns the limit of a call whose tool wants so many seconds. A client's counts only if it fires first."""
    seconds = min(default if wanted is None else wanted, most)
    limit = Limit("tool" if seconds == wanted else "server", seconds, now + seconds)
    at = call.told_by(1)
    if at is None or call.client_seconds is None or limit.at <= at:
        return limit
    return Limit("client", call.client_seconds, at)


class Outcome(NamedTuple):
    """Holds what goes to the ledger, and what the RPC gets: an answer or an error.

    `seconds` is the time since the admission, `http_status` the endpoint's (0 for none), `detail` a short phrase.
    """

    state: "execution_pb2.Call.State.ValueType"
    reason: "errors_pb2.Reason.ValueType"
    answer: Answer | None
    error: BaseException | None
    seconds: float
    http_status: int
    detail: str


def _digits(value: float | None) -> str:
    """Returns the digits of an integer that a double would round; empty for any other number."""
    return str(value) if isinstance(value, int) and float(value) != value else ""
