"""Runs calls: each is a task of the process, from its admission to its settlement, whatever becomes of its RPC."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog

from naru.v1 import errors_pb2, execution_pb2, wire
from registry_service.calls.admission import Admissions, leave
from registry_service.calls.call import Call, Event, Outcome, Ready, time_limit
from registry_service.errors import (
    CallOutcomeUnknownError,
    Fact,
    NaruError,
    ResultTooLargeError,
    ServiceUnavailableError,
    ToolFailedError,
    ToolTimedOutError,
)
from registry_service.ledger.ledger import Ledger
from registry_service.telemetry.metrics import CALLS_RUNNING, observe_call
from registry_service.telemetry.traces import trace_id_of
from registry_service.upstreams.answer import Answer
from registry_service.upstreams.upstream import Attempt, Context, Upstream

# How long an outcome may take to be recorded before the client hears that it is not known.
SETTLE_SECONDS = 10.0
# How long calls that were cut may take to be recorded.
CUT_SECONDS = 1.0

_NAME_LOGGED = 128
_ERROR_LOGGED = 300
_DETAIL_KEPT = 200
_OUTCOMES = {number: name.lower() for name, number in execution_pb2.Call.State.items()}
_SUCCEEDED, _TOOL_ERROR = execution_pb2.Call.SUCCEEDED, execution_pb2.Call.TOOL_ERROR

_log = structlog.get_logger()


class Calls:
    """The calls of this process. `default_timeout` and `max_timeout` are in seconds."""

    def __init__(
        self,
        *,
        admissions: Admissions,
        ledger: Ledger,
        upstream: Upstream[Any],
        default_timeout: float,
        max_timeout: float,
    ) -> None:
        self._admissions = admissions
        self._ledger = ledger
        self._upstream = upstream
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
        call.ring()
        error = None if task.cancelled() else task.exception()
        if call.abandoned and error is not None and not isinstance(error, NaruError):
            _log.error("call failed", call_id=call.call_id, exc_info=error)

    async def _run(self, call: Call) -> Event:
        try:
            ready = await self._admissions.admit(call)
            call.admit(ready)
            try:
                return await self._execute(call, ready)
            finally:
                leave(ready)
        except NaruError as error:
            if call.admitted is None:
                _log_refusal(call, error)
            raise
        except asyncio.CancelledError:
            # Whoever cancelled it: an RPC that still waits must hear something, since gRPC sends nothing for a handler
            # that ends cancelled. Where the client has gone, nobody hears this.
            if call.admitted is None:
                raise ServiceUnavailableError("the service stops", cause="shutting_down") from None
            raise _unknown(call, call.admitted, "the call was cancelled") from None

    async def _execute(self, call: Call, ready: Ready) -> Event:
        started = time.perf_counter()
        CALLS_RUNNING.inc()
        try:
            outcome = await self._outcome(call, ready, started)
            try:
                await self._settle(call, ready, outcome)
            finally:
                _record(call, ready, outcome, time.perf_counter() - started)
        finally:
            CALLS_RUNNING.dec()
        if outcome.error is not None:
            raise outcome.error
        return _result(call, ready, outcome.answer or Answer(b"[]"))

    async def _outcome(self, call: Call, ready: Ready, started: float) -> Outcome:
        attempt = Attempt()
        answer: Answer | None = None
        failure: BaseException | None = None
        detail = ""
        try:
            answer = await self._ask(call, ready, attempt)
            state, reason = _TOOL_ERROR if answer.is_error else _SUCCEEDED, answer.reason
            detail = answer.note[:_DETAIL_KEPT]
        except ToolFailedError as error:
            error.facts = _facts(call, ready, error.facts, never=isinstance(error, ResultTooLargeError))
            failure, state, reason = error, execution_pb2.Call.FAILED, error.reason
            detail = _detail(error)
        except asyncio.CancelledError as error:
            failure, state, reason = error, execution_pb2.Call.CANCELLED, errors_pb2.REASON_UNSPECIFIED
            if call.cut:
                failure = _unknown(call, ready, "the service stopped")
                state, reason = execution_pb2.Call.UNKNOWN, failure.reason
        except Exception as error:  # noqa: BLE001 -- whatever happened, the call must be settled; it is raised afterwards
            failure, state, reason = error, execution_pb2.Call.FAILED, errors_pb2.INTERNAL
        seconds = time.perf_counter() - started
        return Outcome(state, reason, answer, failure, seconds, attempt.status, detail)

    async def _ask(self, call: Call, ready: Ready, attempt: Attempt) -> Answer:
        caller = call.caller
        now = asyncio.get_running_loop().time()
        limit = time_limit(call, ready.tool.definition.timeout, self._default_timeout, self._max_timeout, now)
        context = Context(call.call_id, limit.at - now, caller.request_id, caller.traceparent, caller.tracestate)
        try:
            async with asyncio.timeout_at(limit.at):
                report = None if call.mailbox is None else call.mailbox.report
                return await self._upstream.call(ready.request, context, attempt, report)
        except TimeoutError:
            safe = not attempt.connected or ready.request.idempotent
            raise ToolTimedOutError(
                timeout_seconds=round(limit.seconds, 3), limit=limit.name, safe_to_retry=safe
            ) from None

    async def _settle(self, call: Call, ready: Ready, outcome: Outcome) -> None:
        """Records the outcome. The ledger keeps at it when this gives up."""
        until = asyncio.get_running_loop().time() + SETTLE_SECONDS
        if (told_by := call.told_by(1 / 2)) is not None:
            until = min(until, told_by)
        try:
            async with asyncio.timeout_at(until):
                await self._ledger.settle(
                    call.call_id,
                    outcome.state,
                    outcome.reason,
                    seconds=outcome.seconds,
                    http_status=outcome.http_status,
                    detail=outcome.detail,
                )
        except TimeoutError:
            raise _unknown(call, ready, "the outcome could not be recorded in time") from outcome.error


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
    reason = errors_pb2.Reason.Name(outcome.reason) if outcome.reason else ""
    observe_call(tool.name, tool.version, ready.lane, name, reason, seconds)
    _log.info(
        "call",
        call_id=call.call_id,
        client_id=ready.account.client_id,
        tool=tool.name,
        version=tool.version,
        lane=ready.lane,
        outcome=name,
        reason=reason,
        duration_ms=round(seconds * 1000, 3),
        **({"trial": True} if ready.trial else {}),
        **_ids(call),
        **_cause(outcome),
    )


def _detail(error: ToolFailedError) -> str:
    """Says what went wrong in a few words, without the names that the answer itself chose."""
    if isinstance(error, ToolTimedOutError):
        return f"the {error.facts['limit']}'s limit of {error.facts['timeout_seconds']} s"
    return str(error.facts.get("detail", "")).partition(" at ")[0][:_DETAIL_KEPT]


def _cause(outcome: Outcome) -> dict[str, Fact]:
    """Returns why the endpoint failed, for those who run it."""
    cause: dict[str, Fact] = {"http_status": outcome.http_status} if outcome.http_status else {}
    if isinstance(outcome.error, ToolFailedError):
        cause |= {"error": str(outcome.error)[:_ERROR_LOGGED], "detail": outcome.detail}
    elif outcome.answer is not None:
        cause |= {**outcome.answer.facts, **({"detail": outcome.detail} if outcome.detail else {})}
    return cause


def _log_refusal(call: Call, error: NaruError) -> None:
    """A call that was not admitted. The name is the client's, and may be anything."""
    _log.info(
        "call refused",
        tool=call.rpc.name[:_NAME_LOGGED],
        client_id=call.caller.credential.shown_id if call.caller.credential else "",
        reason=errors_pb2.Reason.Name(error.reason),
        error=str(error)[:_ERROR_LOGGED] if isinstance(error, ToolFailedError) else "",
        **_ids(call),
    )


def _ids(call: Call) -> dict[str, str]:
    """Returns the ids that connect the logs: of the HTTP request, of the trace, and of the client's session if any."""
    ids = {"request_id": call.caller.request_id, "trace_id": trace_id_of(call.caller.traceparent)}
    return ids | {"session_id": call.rpc.session_id} if call.rpc.session_id else ids
