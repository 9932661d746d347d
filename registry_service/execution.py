"""The Execution service: what the RPC of a call hears of it, and what the ledger holds of calls."""

import asyncio
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from naru.v1 import errors_pb2, execution_pb2, execution_pb2_grpc, wire
from registry_service.calls.call import Call, Event, Mailbox, Ready
from registry_service.calls.runner import Calls
from registry_service.catalog import Catalog
from registry_service.errors import CallNotFoundError, NaruError, RequestInvalidError
from registry_service.identity.caller import CALLER, Caller
from registry_service.identity.credentials import AccountEntry
from registry_service.ledger.records import Filter, Records
from registry_service.rpc.pagination import PageTokens, duration, page_size, timestamp
from registry_service.storage.models import Call as CallRow

# How long a call that is not streamed may take before its id is told.
TELL_SECONDS = 0.5
# The longest name of an account or a tool, in characters, and the end of the year 9999.
_NAME_MAX = 128
_LAST_SECOND = 253_402_300_799


class ExecutionServicer(execution_pb2_grpc.ExecutionServicer):
    """Carries calls to their clients, and shows what the ledger holds of them."""

    def __init__(self, *, calls: Calls, catalog: Catalog, records: Records, pages: PageTokens) -> None:
        self._calls = calls
        self._catalog = catalog
        self._records = records
        self._pages = pages

    async def CallTool(  # type: ignore[override]  # noqa: N802 -- the contract's name; a coroutine that writes
        self, request: execution_pb2.CallToolRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        call = Call(request, CALLER.get(), context.time_remaining())
        task = self._calls.start(call)
        try:
            if call.mailbox is not None:
                await _follow(call, call.mailbox, task, context)
            else:
                await _await_end(call, task, context)
            await context.write(task.result())
        finally:
            if not task.done():
                call.abandoned = True
                # A call that is not admitted yet has done nothing, and will do nothing.
                if request.on_disconnect != execution_pb2.CallToolRequest.CONTINUE or call.admitted is None:
                    task.cancel()

    async def GetCall(  # noqa: N802 -- the contract's name
        self, request: execution_pb2.GetCallRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> execution_pb2.Call:
        """An account sees its own calls only; those of others are not there for it."""
        caller = CALLER.get()
        account = None if caller.admin else await self._account(caller)
        row = await self._records.get(request.call_id)
        if row is None or (account is not None and row.client_id != account.client_id):
            raise CallNotFoundError(call_id=request.call_id[:64])
        return _message(row)

    async def ListCalls(  # noqa: N802 -- the contract's name
        self, request: execution_pb2.ListCallsRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> execution_pb2.ListCallsResponse:
        size, wanted = page_size(request.page_size), _filter(request)
        # A token continues the list that it was issued for.
        kind = f"calls {wanted!r}"
        before = self._pages.key_after(kind, request.page_token) if request.page_token else None
        rows = await self._records.newest(wanted, before, size + 1)
        more = rows[size - 1].call_id if len(rows) > size else None
        return execution_pb2.ListCallsResponse(
            calls=map(_message, rows[:size]), next_page_token=self._pages.issue(kind, more)
        )

    async def _account(self, caller: Caller) -> AccountEntry:
        try:
            return self._catalog.view.authenticate(caller.credential)
        except NaruError:
            return (await self._catalog.fresh()).authenticate(caller.credential)


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
    call: Call, mailbox: Mailbox, task: "asyncio.Task[Event]", context: "grpc.aio.ServicerContext[Any, Any]"
) -> None:
    """Writes `accepted` and progress until the call has ended. A slow client holds up nothing but itself."""
    accepted = False
    while True:
        await mailbox.news()
        if call.admitted is not None and not accepted:
            accepted = True
            await context.write(_accepted(call, call.admitted))
        while (progress := mailbox.next_progress()) is not None:
            await context.write(Event(progress=progress))
        if task.done():
            return


def _accepted(call: Call, ready: Ready) -> Event:
    tool = ready.tool
    return Event(accepted=Event.Accepted(call_id=call.call_id, tool=tool.name, version=tool.version, lane=ready.lane))


def _filter(request: execution_pb2.ListCallsRequest) -> Filter:
    """Reads the filters of a list. Raises RequestInvalidError."""
    for field in ("client_id", "tool"):
        value = getattr(request, field)
        if len(value) > _NAME_MAX or not (value.isascii() and value.isprintable()):
            raise RequestInvalidError(f"{field} cannot be a name", field=field, detail="not a name")
    for field, known in (("state", execution_pb2.Call.State.values()), ("reason", errors_pb2.Reason.values())):
        if getattr(request, field) not in known:
            raise RequestInvalidError(f"{field} is not a value of its kind", field=field, detail="unknown value")
    return Filter(
        request.client_id,
        request.tool,
        request.state,
        request.reason,
        _micros("create_time_from", request.create_time_from) if request.HasField("create_time_from") else None,
        _micros("create_time_until", request.create_time_until) if request.HasField("create_time_until") else None,
    )


def _micros(field: str, time: Timestamp) -> int:
    if not (0 <= time.seconds <= _LAST_SECOND and 0 <= time.nanos < 10**9):
        raise RequestInvalidError(f"{field} is no time from 1970 to 9999", field=field, detail="out of range")
    return time.seconds * 1_000_000 + time.nanos // 1000


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
        duration=None if row.duration is None else duration(row.duration),
        http_status=row.http_status,
        detail=row.detail,
        trial=row.trial,
    )
