"""The Execution service: which call may run, and what its RPC hears of it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import msgspec

from naru.v1 import errors_pb2, execution_pb2, execution_pb2_grpc, wire
from registry_service.calls.runner import Call, Calls, Event, Ready
from registry_service.catalog import AccountEntry, Catalog, ToolEntry, View
from registry_service.errors import (
    ArgumentsInvalidError,
    CallNotFoundError,
    Fact,
    MissingClientCapabilityError,
    NaruError,
    ToolBusyError,
    ToolFailedError,
)
from registry_service.identity.caller import CALLER, Caller
from registry_service.identity.credentials import authenticate
from registry_service.ledger.ledger import CALL_ID, Ledger
from registry_service.rpc.pagination import timestamp
from registry_service.storage.database import Database
from registry_service.storage.models import Call as CallRow
from registry_service.tools.checks import Checks
from registry_service.tools.json_schema import Violation
from registry_service.upstreams.http.client import EndpointClient

_decode = msgspec.json.Decoder().decode

# How long a call that is not streamed may take before its id is told, and the metadata that tells it.
TELL_SECONDS = 0.5


class ExecutionServicer(execution_pb2_grpc.ExecutionServicer):
    """`default_timeout` and `max_timeout` are in seconds."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        ledger: Ledger,
        database: Database,
        endpoints: EndpointClient,
        checks: Checks,
        pepper: bytes,
        default_timeout: float,
        max_timeout: float,
    ) -> None:
        self._catalog = catalog
        self._database = database
        self._endpoints = endpoints
        self._checks = checks
        self._pepper = pepper
        self._calls = Calls(
            catalog=catalog,
            ledger=ledger,
            endpoints=endpoints,
            prepare=self._prepare,
            default_timeout=default_timeout,
            max_timeout=max_timeout,
        )

    async def drain(self, grace: float) -> None:
        """Lets running calls end within `grace` seconds, then cuts the rest. The gate must be shut before."""
        await self._calls.drain(grace)

    async def CallTool(  # type: ignore[override]  # noqa: N802 -- the contract's name; a coroutine that writes
        self, request: execution_pb2.CallToolRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        call = Call(request, CALLER.get(), context.time_remaining())
        task = self._calls.start(call)
        try:
            if call.changed is not None:
                await _follow(call, call.changed, task, context)
            else:
                await _await_end(call, task, context)
            await context.write(task.result())
        finally:
            if not task.done():
                call.abandoned = True
                # Of a call that is not admitted yet nothing has happened, and so nothing will.
                if request.on_disconnect != execution_pb2.CallToolRequest.CONTINUE or call.admitted is None:
                    task.cancel()

    async def _prepare(self, view: View, call: Call) -> Ready:
        """Raises whatever forbids the call; nothing of it has happened then, and it costs no usage."""
        rpc = call.rpc
        account = authenticate(view, self._pepper, call.caller.credential)
        lane = account.plan.lane(rpc.requested_lane)
        tool = view.resolve(rpc.name, account, lane)
        _check_capabilities(tool, rpc.client_capabilities)
        arguments = rpc.arguments or b"{}"
        if tool.arguments.is_light(arguments):
            _check_arguments(tool, arguments)
        elif violations := await self._checks.violations(tool.arguments, arguments, account.client_id):
            raise _invalid(tool, violations)
        # Nothing may wait between this and the count of what runs.
        most = tool.definition.max_concurrency
        if most is not None and tool.running.count >= most:
            raise ToolBusyError(tool=tool.name, max_concurrency=most, safe_to_retry=True)
        try:
            request = self._endpoints.prepare(tool, lane, arguments)
        except ToolFailedError as error:
            error.facts = {"tool": tool.name, **error.facts}
            raise
        return Ready(view.revision, account, lane, tool, request)

    async def GetCall(  # noqa: N802 -- the contract's name
        self, request: execution_pb2.GetCallRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> execution_pb2.Call:
        """An account sees its own calls only; those of others are not there for it."""
        caller = CALLER.get()
        account = None if caller.admin else await self._account(caller)
        row = None
        if CALL_ID.fullmatch(request.call_id):
            async with self._database.sessions() as session:
                row = await session.get(CallRow, request.call_id)
        if row is None or (account is not None and row.client_id != account.client_id):
            raise CallNotFoundError(call_id=request.call_id[:64])
        return _message(row)

    async def _account(self, caller: Caller) -> AccountEntry:
        try:
            return authenticate(self._catalog.view, self._pepper, caller.credential)
        except NaruError:
            return authenticate(await self._catalog.fresh(), self._pepper, caller.credential)


async def _await_end(call: Call, task: "asyncio.Task[Event]", context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    """Waits until the call has ended. One that takes long tells its id first: the link may break before its end.

    It looks at the task itself each time, so that no end can be missed. The task isn't awaited: an RPC that ends early
    would cancel it, and what becomes of it then is decided elsewhere.
    """
    patience: float | None = TELL_SECONDS
    while not (await asyncio.wait((task,), timeout=patience))[0]:
        if call.admitted is not None:
            patience = None
            await context.send_initial_metadata(((wire.CALL_ID_KEY, call.call_id),))


async def _follow(
    call: Call, changed: asyncio.Event, task: "asyncio.Task[Event]", context: "grpc.aio.ServicerContext[Any, Any]"
) -> None:
    """Writes `accepted` and progress until the call has ended. A slow client holds up nothing but itself.

    It looks at all there is after `changed` was cleared, and sleeps only if there was nothing: nothing can be missed.
    """
    told = False
    while True:
        changed.clear()
        if call.admitted is not None and not told:
            told = True
            await context.write(_accepted(call, call.admitted))
        while call.progress:
            await context.write(Event(progress=call.progress.popleft()))
        if task.done():
            return
        await changed.wait()


def _accepted(call: Call, ready: Ready) -> Event:
    tool = ready.tool
    return Event(accepted=Event.Accepted(call_id=call.call_id, tool=tool.name, version=tool.version, lane=ready.lane))


def _check_capabilities(tool: ToolEntry, declared: bytes) -> None:
    """`declared` is empty where the client's revision knows no such demand."""
    required = tool.definition.required_client_capabilities
    if required and declared and not _covers(_decode(declared), wanted := _decode(required)):
        raise MissingClientCapabilityError(required_capabilities=wanted)


def _covers(declared: object, required: object) -> bool:
    """Whether every member that is required, at any depth, is declared."""
    if not isinstance(required, Mapping):
        return True
    return isinstance(declared, Mapping) and all(
        name in declared and _covers(declared[name], value) for name, value in required.items()
    )


def _check_arguments(tool: ToolEntry, arguments: bytes) -> None:
    try:
        value = _decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        raise _invalid(tool, [Violation("", "is not JSON that can be read")]) from None
    if not isinstance(value, dict):
        raise _invalid(tool, [Violation("", "must be an object")])
    if violations := tool.arguments.violations(value):
        raise _invalid(tool, violations)


def _invalid(tool: ToolEntry, violations: list[Violation]) -> ArgumentsInvalidError:
    told: list[Fact] = [{"pointer": at, "message": message} for at, message in violations]
    return ArgumentsInvalidError(tool=tool.name, violations=told)


def _message(row: CallRow) -> execution_pb2.Call:
    return execution_pb2.Call(
        call_id=row.call_id,
        client_id=row.client_id,
        tool=row.tool,
        version=row.version,
        lane=row.lane,
        state=execution_pb2.Call.State.ValueType(row.state),
        reason=errors_pb2.Reason.ValueType(row.reason),
        session_id=row.session_id,
        jsonrpc_id=row.request_id,
        create_time=timestamp(row.create_time),
        settle_time=None if row.settle_time is None else timestamp(row.settle_time),
    )
