"""The health that balancers and gateways ask for: it follows the database and the ledger, and not a busy event loop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from grpc_health.v1 import health, health_pb2

from naru.v1 import execution_pb2, wire
from registry_service.storage.database import UNAVAILABLE, Database
from registry_service.storage.trouble import cause_of

PING_SECONDS: Final = 2.0
EXECUTION: Final = execution_pb2.DESCRIPTOR.services_by_name["Execution"].full_name

# The patience with a ping is spent in slices of this length.
_SLICE_SECONDS: Final = 0.25
_LATE_SECONDS: Final = 0.1
_ERROR_LIMIT: Final = 300
_NO_ANSWER: Final[tuple[type[BaseException], ...]] = (TimeoutError, *UNAVAILABLE)

_log = structlog.get_logger()


class Health:
    """The health of each service and of the whole, which is named by an empty text.

    `cause` is a word for what keeps services from serving. Whoever checks hears it in the trailers.
    """

    def __init__(self, database: Database) -> None:
        self.servicer = _Servicer(self)
        self.cause = "starting"
        self._database = database
        self._names: Sequence[str] = ("",)

    async def start(self, services: Sequence[str]) -> None:
        """Says NOT_SERVING of these services and of the whole."""
        self._names = ("", *services)
        await self.set(serving=False)

    async def set(self, *, serving: bool, writable: bool = True) -> None:
        """Without a ledger to write to, calls cannot run; the rest can, but balancers ask for the whole."""
        good, bad = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self.servicer.set(name, good if serving and (writable or name not in ("", EXECUTION)) else bad)

    async def keep(self, ledger_trouble: Callable[[], str]) -> None:
        """Keeps it true until cancelled. It begins as SERVING. `ledger_trouble` is empty while it can be written."""
        serving = writable = True
        while True:
            await asyncio.sleep(PING_SECONDS)
            before = serving, writable
            # The ledger speaks of its own losses. A database may answer that cannot be written.
            error, trouble = await failure_of_ping(self._database), ledger_trouble()
            serving, writable = error is None, not trouble
            self.cause = trouble if error is None else cause_of(error)
            if serving != before[0] and error is None:
                _log.warning("database is back")
            elif serving != before[0]:
                _log.warning("database cannot be used", cause=self.cause, error=str(error)[:_ERROR_LIMIT])
            if (serving, writable) != before:
                await self.set(serving=serving, writable=writable)


class _Servicer(health.aio.HealthServicer):  # type: ignore[misc]
    """The usual one, which also says why."""

    def __init__(self, told: Health) -> None:
        super().__init__()
        self._health = told

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        """Answers, with the cause in the trailers if a service does not serve."""
        answer = await super().Check(request, context)
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            context.set_trailing_metadata(((wire.CAUSE_KEY, self._health.cause),))
        return answer


async def failure_of_ping(database: Database) -> BaseException | None:
    """Pings the database, and returns why it didn't answer. A ping that broke while the loop was late is repeated.

    Drivers have time limits of their own, which run out while the loop is held up.
    """
    error: BaseException | None = None
    for last in (False, True):
        pinging = asyncio.create_task(database.ping())
        try:
            was_late = await _wait_on_time(pinging)
            if not pinging.done():
                return TimeoutError(f"no answer within {PING_SECONDS:g} s")
            error = pinging.exception()
        finally:
            pinging.cancel()
            await asyncio.wait({pinging})
        if error is not None and not isinstance(error, _NO_ANSWER):
            raise error
        if error is None or last or not was_late:
            break
    return error


async def _wait_on_time(task: "asyncio.Task[None]") -> bool:
    """Waits for PING_SECONDS of a loop that is on time. Returns True if the loop was late meanwhile.

    A slice that ends late counts by so much less as it took longer: what the task waits for may have waited for the
    loop all the while.
    """
    patience, was_late = PING_SECONDS, False
    while patience > 0 and not task.done():
        began = time.monotonic()
        await asyncio.wait({task}, timeout=_SLICE_SECONDS)
        took = max(time.monotonic() - began, _SLICE_SECONDS)
        was_late = was_late or took > _SLICE_SECONDS + _LATE_SECONDS
        patience -= _SLICE_SECONDS * _SLICE_SECONDS / took
    return was_late
