"""Calls: admission, the endpoint, settlement. Each runs as a task of the process, whatever becomes of its RPC."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

import structlog

from naru.v1 import errors_pb2, execution_pb2, wire
from registry_service.catalog import AccountEntry, Catalog, ToolEntry, View
from registry_service.errors import (
    CallOutcomeUnknownError,
    Fact,
    NaruError,
    ResultTooLargeError,
    ServiceUnavailableError,
    ToolFailedError,
    ToolTimedOutError,
)
from registry_service.identity.caller import Caller
from registry_service.ledger.ledger import Admission, Ledger, new_call_id
from registry_service.storage.models import now_micros
from registry_service.telemetry.metrics import CALLS_RUNNING, PROGRESS_DROPPED, observe_call
from registry_service.upstreams.egress import Attempt
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.http.request import Request, call_headers, child_of
from registry_service.upstreams.http.response import Answer

# How often a call is prepared anew because the catalog changed before it could be admitted.
ADMISSION_ATTEMPTS = 5
# How long an outcome may take to be recorded before the client hears that it is not known.
SETTLE_SECONDS = 10.0
# What is left of a client's time limit to record the outcome and tell it: a tenth, at most this. If half of it has gone
# by and nothing is recorded, the other half is for telling that.
ANSWER_SECONDS = 0.5
# Progress that a slow client has not fetched yet; the oldest goes first.
PROGRESS_KEPT = 64
# Of a message of progress, in characters.
MESSAGE_KEPT = 2000
# How long calls that were cut may take to be recorded.
CUT_SECONDS = 1.0

_NAME_LOGGED = 64
_ERROR_LOGGED = 300
_OUTCOMES = {number: name.lower() for name, number in execution_pb2.Call.State.items()}
_SUCCEEDED, _TOOL_ERROR = execution_pb2.Call.SUCCEEDED, execution_pb2.Call.TOOL_ERROR

Event: TypeAlias = execution_pb2.CallToolEvent

_log = structlog.get_logger()


class Ready(NamedTuple):
    """A call that nothing but its admission keeps from running; `revision` is that of the view it was decided on."""

    revision: int
    account: AccountEntry
    lane: str
    tool: ToolEntry
    request: Request


class Call:
    """The state of one call that its RPC watches. `client_seconds` is the client's time limit, None without one."""

    __slots__ = (
        "abandoned",
        "admitted",
        "call_id",
        "caller",
        "changed",
        "client_deadline",
        "client_seconds",
        "cut",
        "progress",
        "reported",
        "rpc",
    )

    def __init__(self, rpc: execution_pb2.CallToolRequest, caller: Caller, client_seconds: float | None) -> None:
        self.call_id = new_call_id()
        self.rpc = rpc
        self.caller = caller
        self.client_seconds = client_seconds
        # Of the event loop's clock.
        self.client_deadline = None if client_seconds is None else asyncio.get_running_loop().time() + client_seconds
        self.admitted: Ready | None = None
        # The RPC is over, and nobody waits for the result.
        self.abandoned = False
        # The process stops before the call has ended.
        self.cut = False
        self.progress: deque[Event.Progress] = deque(maxlen=PROGRESS_KEPT)
        self.reported = float("-inf")
        # Set on admission, on progress and at the end, for an RPC that streams.
        self.changed = asyncio.Event() if rpc.stream else None

    def report(self, progress: float, total: float | None, message: str) -> None:
        """Keeps an endpoint's progress for the RPC, if it is progress: the contract promises that it grows."""
        rises = progress > self.reported
        if not rises or len(self.progress) == PROGRESS_KEPT:
            PROGRESS_DROPPED.inc()
        if rises:
            self.reported = progress
            self.progress.append(Event.Progress(progress=progress, total=total, message=message[:MESSAGE_KEPT]))
            self.tell()

    def tell(self) -> None:
        """Wakes the RPC, if it streams."""
        if self.changed is not None:
            self.changed.set()


class Limit(NamedTuple):
    """The time limit that fires first: `tool`, `client` or `server`. `at` is of the event loop's clock."""

    name: str
    seconds: float
    at: float


class Outcome(NamedTuple):
    """What goes to the ledger, and what the RPC gets: an answer or an error."""

    state: "execution_pb2.Call.State.ValueType"
    reason: "errors_pb2.Reason.ValueType"
    answer: Answer | None
    error: BaseException | None


class Calls:
    """The calls of this process. `prepare` makes one ready on a view of the catalog, or raises why it may not run."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        ledger: Ledger,
        endpoints: EndpointClient,
        prepare: Callable[[View, Call], Awaitable[Ready]],
        default_timeout: float,
        max_timeout: float,
    ) -> None:
        self._catalog = catalog
        self._ledger = ledger
        self._endpoints = endpoints
        self._prepare = prepare
        self._default_timeout = default_timeout
        self._max_timeout = max_timeout
        self._running: dict[asyncio.Task[Event], Call] = {}

    def start(self, call: Call) -> "asyncio.Task[Event]":
        """Runs a call as a task, which returns the event with its result or raises NaruError.

        Cancelling the task closes the endpoint's connection and records CANCELLED.
        """
        task = asyncio.get_running_loop().create_task(self._run(call))
        self._running[task] = call
        task.add_done_callback(self._ended)
        return task

    async def drain(self, grace: float) -> None:
        """Waits `grace` seconds for the running calls; cuts those that are left, and waits until they are recorded.

        A call that was cut is recorded as UNKNOWN, and its client hears CALL_OUTCOME_UNKNOWN.
        """
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace)
        for task, call in self._running.items():
            call.cut = True
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=CUT_SECONDS)

    def _ended(self, task: "asyncio.Task[Event]") -> None:
        call = self._running.pop(task)
        call.tell()
        error = None if task.cancelled() else task.exception()
        if call.abandoned and error is not None and not isinstance(error, NaruError):
            _log.error("call failed", call_id=call.call_id, exc_info=error)

    async def _run(self, call: Call) -> Event:
        try:
            return await self._admit_and_execute(call)
        except NaruError as error:
            if call.admitted is None:
                _log_refusal(call, error)
            raise
        except asyncio.CancelledError:
            if not call.cut:
                raise
            if call.admitted is None:
                raise ServiceUnavailableError("the service stops", cause="shutting_down") from None
            # It had ended, and was being recorded.
            raise _unknown(call, call.admitted, "the service stopped") from None

    async def _admit_and_execute(self, call: Call) -> Event:
        view = self._catalog.view
        for _ in range(ADMISSION_ATTEMPTS):
            try:
                ready = await self._prepare(view, call)
            except NaruError:
                # Another replica may have changed what forbids the call.
                newest = await self._catalog.fresh()
                if newest.revision == view.revision:
                    raise
                view = newest
                continue
            ready.tool.running.count += 1
            try:
                if await self._ledger.admit(_admission(call, ready)):
                    return await self._execute(call, ready)
            finally:
                ready.tool.running.count -= 1
            view = await self._catalog.fresh()
        raise ServiceUnavailableError(
            "the catalog changes too often for a call to be admitted", cause="catalog_changes"
        )

    async def _execute(self, call: Call, ready: Ready) -> Event:
        call.admitted = ready
        call.tell()
        started = time.perf_counter()
        outcome = Outcome(execution_pb2.Call.FAILED, errors_pb2.INTERNAL, None, None)
        CALLS_RUNNING.inc()
        try:
            outcome = await self._outcome(call, ready)
            await self._settle(call, ready, outcome)
        finally:
            CALLS_RUNNING.dec()
            _record(call, ready, outcome, time.perf_counter() - started)
        if outcome.error is not None:
            raise outcome.error
        return _result(call, ready, outcome.answer or Answer(b"[]"))

    async def _outcome(self, call: Call, ready: Ready) -> Outcome:
        try:
            answer = await self._ask(call, ready)
        except ToolFailedError as error:
            error.facts = _facts(call, ready, error.facts, never=isinstance(error, ResultTooLargeError))
            return Outcome(execution_pb2.Call.FAILED, error.reason, None, error)
        except asyncio.CancelledError as error:
            if not call.cut:
                return Outcome(execution_pb2.Call.CANCELLED, errors_pb2.REASON_UNSPECIFIED, None, error)
            unknown = _unknown(call, ready, "the service stopped")
            return Outcome(execution_pb2.Call.UNKNOWN, unknown.reason, None, unknown)
        except Exception as error:  # noqa: BLE001 -- whatever happened, the call must be settled; it is raised afterwards
            return Outcome(execution_pb2.Call.FAILED, errors_pb2.INTERNAL, None, error)
        state = _TOOL_ERROR if answer.is_error else _SUCCEEDED
        return Outcome(state, answer.reason, answer, None)

    async def _ask(self, call: Call, ready: Ready) -> Answer:
        caller, attempt = call.caller, Attempt()
        limit = self._limit(call, ready.tool)
        left = limit.at - asyncio.get_running_loop().time()
        headers = call_headers(call.call_id, caller.request_id, child_of(caller.traceparent), caller.tracestate)
        headers["X-Naru-Deadline-Ms"] = str(max(0, int(left * 1000)))
        try:
            async with asyncio.timeout_at(limit.at):
                return await self._endpoints.call(
                    ready.request, headers, attempt, call.report if call.rpc.stream else None
                )
        except TimeoutError:
            safe = not attempt.connected or ready.request.idempotent
            raise ToolTimedOutError(
                timeout_seconds=round(limit.seconds, 3), limit=limit.name, safe_to_retry=safe
            ) from None

    def _limit(self, call: Call, tool: ToolEntry) -> Limit:
        wanted = tool.definition.timeout
        seconds = min(self._default_timeout if wanted is None else wanted, self._max_timeout)
        limit = Limit("tool" if seconds == wanted else "server", seconds, asyncio.get_running_loop().time() + seconds)
        if call.client_deadline is None or call.client_seconds is None:
            return limit
        client = call.client_deadline - _reserve(call.client_seconds)
        return limit if limit.at <= client else Limit("client", call.client_seconds, client)

    async def _settle(self, call: Call, ready: Ready, outcome: Outcome) -> None:
        """The ledger keeps at it when this gives up."""
        until = asyncio.get_running_loop().time() + SETTLE_SECONDS
        if call.client_deadline is not None and call.client_seconds is not None:
            until = min(until, call.client_deadline - _reserve(call.client_seconds) / 2)
        try:
            async with asyncio.timeout_at(until):
                await self._ledger.settle(call.call_id, outcome.state, outcome.reason)
        except TimeoutError:
            raise _unknown(call, ready, "the outcome could not be recorded in time") from outcome.error


def _reserve(client_seconds: float) -> float:
    return min(ANSWER_SECONDS, client_seconds / 10)


def _admission(call: Call, ready: Ready) -> Admission:
    return Admission(
        call_id=call.call_id,
        client_id=ready.account.client_id,
        tool=ready.tool.name,
        version=ready.tool.version,
        lane=ready.lane,
        session_id=call.rpc.session_id,
        request_id=call.rpc.jsonrpc_id,
        revision=ready.revision,
        create_time=now_micros(),
    )


def _unknown(call: Call, ready: Ready, message: str) -> CallOutcomeUnknownError:
    return CallOutcomeUnknownError(message, tool=ready.tool.name, call_id=call.call_id)


def _facts(call: Call, ready: Ready, facts: Mapping[str, Fact], *, never: bool = False) -> dict[str, Fact]:
    """Adds what every failure of an admitted call tells."""
    safe = not never and facts.get("safe_to_retry", ready.request.idempotent)
    return {"tool": ready.tool.name, "call_id": call.call_id, **facts, "safe_to_retry": safe}


def _result(call: Call, ready: Ready, answer: Answer) -> Event:
    failure = None
    if answer.reason:
        facts = _facts(call, ready, answer.facts)
        failure = errors_pb2.Failure(reason=answer.reason, facts=wire.pack_facts(facts))
    return Event(
        result=Event.Result(
            call_id=call.call_id,
            content=answer.content,
            structured_content=answer.structured,
            is_error=answer.is_error,
            meta=answer.meta,
            failure=failure,
        )
    )


def _record(call: Call, ready: Ready, outcome: Outcome, seconds: float) -> None:
    """Ids and names, never arguments or results."""
    name, tool = _OUTCOMES[outcome.state], ready.tool
    observe_call(tool.name, ready.lane, name, seconds)
    _log.info(
        "call",
        call_id=call.call_id,
        client_id=ready.account.client_id,
        tool=tool.name,
        version=tool.version,
        lane=ready.lane,
        outcome=name,
        reason=errors_pb2.Reason.Name(outcome.reason) if outcome.reason else "",
        duration_ms=round(seconds * 1000, 3),
        **_ids(call),
        **_cause(outcome),
    )


def _cause(outcome: Outcome) -> dict[str, Fact]:
    """Why the endpoint failed, for those who run it; without the names that the answer itself chose."""
    if not isinstance(outcome.error, ToolFailedError):
        return {} if outcome.answer is None else {**outcome.answer.facts}
    facts = outcome.error.facts
    detail = str(facts.get("detail", "")).partition(" at ")[0]
    return {"error": str(outcome.error)[:_ERROR_LOGGED], "detail": detail, "http_status": facts.get("http_status")}


def _log_refusal(call: Call, error: NaruError) -> None:
    """A call that was not admitted. The name is the client's, and may be anything."""
    _log.info(
        "call refused",
        tool=call.rpc.name[:_NAME_LOGGED],
        client_id=call.caller.credential.client_id[:_NAME_LOGGED] if call.caller.credential else "",
        reason=errors_pb2.Reason.Name(error.reason),
        error=str(error)[:_ERROR_LOGGED] if isinstance(error, ToolFailedError) else "",
        **_ids(call),
    )


def _ids(call: Call) -> dict[str, str]:
    """What leads from one log to another: of the HTTP request, of the trace, and of what the client calls a session."""
    trace = call.caller.traceparent.split("-")
    ids = {"request_id": call.caller.request_id, "trace_id": trace[1] if len(trace) > 1 else ""}
    return ids | {"session_id": call.rpc.session_id} if call.rpc.session_id else ids
