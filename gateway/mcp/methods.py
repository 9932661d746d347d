"""What each MCP method does: params → RPC → messages.

A handler returns an async generator of what frames.py carries: `Progress`, an `accepted` marker, and exactly one last
`Frame`. Faults of the params are raised before the generator exists; every later failure is its last frame.

Each RPC has a deadline, and none waits for a connection: a registry that is away is an answer, not a delay.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import grpc
import msgspec
from structlog.typing import FilteringBoundLogger

from gateway.failures.table import (
    TABLE,
    Failure,
    Surface,
    Wording,
    describe,
    described_violations,
    failure_of,
    is_token_refused,
)
from gateway.http.accept import Accept, Carriage
from gateway.http.answers import Frame
from gateway.http.authorization import Credential, Unauthenticated, challenges
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message
from gateway.mcp.params import NO_META, Meta, call_tool_params, initialize_version, list_tools_cursor
from gateway.mcp.progress import Progress
from gateway.mcp.revisions import Dialect, Era, Shapes, arguments_are_protocol_errors, progress_token
from gateway.registry_client import Link
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.traces import Trace
from naru.v1 import wire
from naru.v1.accounts_pb2 import AuthenticateRequest
from naru.v1.errors_pb2 import Reason
from naru.v1.execution_pb2 import CallToolEvent, CallToolRequest
from naru.v1.registry_pb2 import ListCatalogRequest, ListCatalogResponse

if TYPE_CHECKING:  # stubs of asynchronous channels exist for the type checker only
    from naru.v1.accounts_pb2_grpc import AccountsAsyncStub
    from naru.v1.execution_pb2_grpc import ExecutionAsyncStub
    from naru.v1.registry_pb2_grpc import RegistryAsyncStub

Items: TypeAlias = AsyncGenerator[Frame | Progress, None]

_MAX_CORRELATION = 256
_UNREAD = Message(id=None, method="", params=b"{}")


class Edge(NamedTuple):
    """What every request needs and no request owns. Times are seconds."""

    accounts: "AccountsAsyncStub"
    registry: "RegistryAsyncStub"
    execution: "ExecutionAsyncStub"
    link: Link
    shapes: Shapes
    metrics: Metrics
    log: FilteringBoundLogger
    token: str
    call_timeout: float
    registry_timeout: float


class Request:
    """One HTTP request on its way through the gateway; endpoint.py fills it in as far as the request gets.

    `headers` are added to whatever answer there will be; `unread` says that the body has not been read. `outcome`,
    `tool` and `call_id` are for logs and metrics.
    """

    __slots__ = (
        "accept",
        "call_id",
        "carriage",
        "credential",
        "dialect",
        "headers",
        "lane",
        "message",
        "meta",
        "outcome",
        "request_id",
        "session_id",
        "status",
        "tool",
        "trace",
        "unread",
        "wording",
    )

    credential: Credential

    def __init__(self, *, request_id: str, trace: Trace, wording: Wording, accept: Accept, dialect: Dialect) -> None:
        self.request_id = request_id
        self.trace = trace
        self.wording = wording
        self.accept = accept
        self.dialect = dialect
        self.message = _UNREAD
        self.meta: Meta = NO_META
        self.carriage = Carriage.JSON
        self.headers: list[tuple[bytes, bytes]] = [(b"x-request-id", request_id.encode())]
        self.lane = ""
        self.session_id = ""
        self.tool = ""
        self.call_id = ""
        self.outcome = "ok"
        self.status = 0
        self.unread = True

    @property
    def id(self) -> bytes:
        """The JSON-RPC id as it was sent; empty before the body was read, and for notifications."""
        return self.message.id or b""

    @property
    def method(self) -> str:
        """The JSON-RPC method; empty before the body was read."""
        return self.message.method


Handler: TypeAlias = Callable[[Edge, Request], Items]


def initialize(edge: Edge, request: Request) -> Items:
    requested = initialize_version(request.message, request.meta)
    return _one(_answer(request, edge.shapes.initialize(request.dialect, requested)))


def ping(edge: Edge, request: Request) -> Items:
    return _one(_answer(request, edge.shapes.empty(request.dialect)))


def discover(edge: Edge, request: Request) -> Items:
    return _one(_answer(request, edge.shapes.discover()))


def list_tools(edge: Edge, request: Request) -> Items:
    cursor = list_tools_cursor(request.message, request.meta)
    if cursor is not None and (request.dialect.era is not Era.MODERN or not cursor):
        raise Failure("INVALID_PARAMS", {"detail": "params.cursor was not issued by this server"})
    return _listing(edge, request, cursor or "")


def call_tool(edge: Edge, request: Request) -> Items:
    params = call_tool_params(request.message, request.meta)
    request.tool = params.name
    modern = request.dialect.era is Era.MODERN
    return _run(
        edge,
        request,
        CallToolRequest(
            name=params.name,
            arguments=params.arguments,
            requested_lane=request.lane,
            stream=request.carriage is not Carriage.JSON,
            on_disconnect=CallToolRequest.CANCEL if modern else CallToolRequest.CONTINUE,
            client_capabilities=request.meta.client_capabilities if modern else b"",
            session_id=request.session_id,
            jsonrpc_id=request.id.decode() if len(request.id) <= _MAX_CORRELATION else "",
        ),
    )


_ANY_ERA: Mapping[str, Handler] = {"tools/list": list_tools, "tools/call": call_tool}
_HANDSHAKE: Mapping[str, Handler] = {**_ANY_ERA, "initialize": initialize, "ping": ping}
METHODS: Mapping[Era, Mapping[str, Handler]] = {
    Era.AGENT_BUILDER: _HANDSHAKE,
    Era.LEGACY: _HANDSHAKE,
    Era.MODERN: {**_ANY_ERA, "server/discover": discover},
}
# Methods whose own RPC checks the credential; for all else Authenticate is asked first.
SELF_AUTHENTICATED = frozenset(_ANY_ERA)
KNOWN_METHODS = frozenset(method for methods in METHODS.values() for method in methods)


async def authenticate(edge: Edge, request: Request) -> None:
    """Raises Failure unless the request's credential is an active account's."""
    await _unary(edge, request, edge.accounts.Authenticate, AuthenticateRequest(), "Authenticate")


async def _listing(edge: Edge, request: Request, cursor: str) -> Items:
    """Lists one page for modern clients; all of them in one answer for the others, who may read no second page."""
    entries: list[tuple[bytes, bytes]] = []
    try:
        while True:
            page = await _catalog_page(edge, request, cursor)
            entries += [(entry.tool, entry.legacy_tool) for entry in page.entries]
            cursor = page.next_page_token
            if not cursor or request.dialect.era is Era.MODERN:
                break
    except Failure as failure:
        yield failure_frame(edge, request, failure)
    else:
        yield _answer(request, edge.shapes.tools_list(request.dialect, entries, page.lane, cursor))


async def _catalog_page(edge: Edge, request: Request, cursor: str) -> ListCatalogResponse:
    page = ListCatalogRequest(requested_lane=request.lane, page_token=cursor)
    return await _unary(edge, request, edge.registry.ListCatalog, page, "ListCatalog")


async def _run(edge: Edge, request: Request, call: CallToolRequest) -> Items:
    """Runs one call. This is the only place that speaks to Execution.

    The stream is read to its end before the result goes out: the RPC then ends on its own instead of being cancelled,
    which costs both sides less and leaves the registry no doubt.
    """
    try:
        await edge.link.connect(edge.registry_timeout)
    except Failure as failure:
        edge.metrics.rpc("CallTool", "UNAVAILABLE")
        yield failure_frame(edge, request, failure)
        return
    rpc = edge.execution.CallTool(call, metadata=_metadata(edge, request), timeout=edge.call_timeout)
    token = progress_token(request.dialect, request.accept, request.meta, request.id)
    try:
        if not call.stream:  # a call that takes long tells its id before its end
            request.call_id = _told_call_id(await rpc.initial_metadata())
        async for event in rpc:
            kind = event.WhichOneof("event")
            if kind == "result":
                last = _call_frame(edge, request, event.result)
                await _ended(rpc)
                edge.metrics.rpc("CallTool", "OK")
                yield last
                return
            if kind == "progress" and token is not None:
                yield _progress(token, event.progress)
            elif kind == "accepted":
                request.call_id = event.accepted.call_id
                yield Frame(b"", last=False, headers=_call_headers(request))
        edge.metrics.rpc("CallTool", "OK")
        yield failure_frame(edge, request, Failure("CALL_OUTCOME_UNKNOWN"))  # a stream that ended without a result
    except grpc.aio.AioRpcError as error:
        yield failure_frame(edge, request, _failed(edge, request, error, "CallTool", may_have_run=True))
    except asyncio.CancelledError:
        request.outcome = "cancelled"
        edge.metrics.rpc("CallTool", "CANCELLED")
        raise
    finally:
        rpc.cancel()


def _told_call_id(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    for key, value in metadata or ():
        if key == wire.CALL_ID_KEY and isinstance(value, str):
            return value
    return ""


async def _ended(rpc: AsyncIterable[CallToolEvent]) -> None:
    """Reads to the end of an RPC whose result is known; how it ends cannot change that any more."""
    try:
        async for _ in rpc:
            pass
    except grpc.aio.AioRpcError:
        return


def _progress(token: bytes, progress: CallToolEvent.Progress) -> Progress:
    total = progress.total if progress.HasField("total") else None
    return Progress(token, progress.progress, total, progress.message)


def _call_frame(edge: Edge, request: Request, result: CallToolEvent.Result) -> Frame:
    request.call_id = result.call_id
    content = result.content or b"[]"
    error = b""
    if result.is_error:
        request.outcome = "tool_error"
    if result.HasField("failure"):
        reason = Reason.Name(result.failure.reason) if result.failure.reason in Reason.values() else ""
        request.outcome = reason = reason if reason in TABLE else "INTERNAL"
        text, error = _error_meta(request, reason, wire.unpack_facts(result.failure.facts))
        content = _text_content(text) if content == b"[]" else content
    body = edge.shapes.call(
        request.dialect, content, result.structured_content, is_error=result.is_error, meta=result.meta, error=error
    )
    return Frame(jsonrpc.result(request.id, body), headers=_call_headers(request))


def failure_frame(edge: Edge, request: Request, failure: Failure) -> Frame:
    """The last frame of a request that failed, whatever the failure shows as."""
    request.outcome = failure.reason
    entry = TABLE[failure.reason]
    call_id = failure.facts.get("call_id")
    if isinstance(call_id, str):
        request.call_id = call_id
    request.headers += challenges(failure)
    retry_after = failure.facts.get("retry_after_seconds")
    if isinstance(retry_after, int | float):
        request.headers.append((b"retry-after", b"%d" % math.ceil(retry_after)))
    if entry.surface is Surface.RESULT and request.method == "tools/call" and not _as_protocol_error(request, failure):
        return _failure_result(edge, request, failure)
    message, data = describe(failure.reason, failure.facts, request.wording)
    modern = request.dialect.era is Era.MODERN
    code, status = (entry.modern_code, entry.modern_status) if modern else (entry.code, entry.status)
    if status == 200 and not request.id:  # a notification: nobody would look for an error in a success
        status = 503 if entry.safe_to_retry else 500
    return Frame(jsonrpc.error(request.id, code, message, data), status=status, headers=_call_headers(request))


def protocol_frame(request: Request, error: jsonrpc.ProtocolError) -> Frame:
    """The answer to a message that breaks the rules of JSON-RPC or of its MCP revision."""
    request.outcome = error.reason
    entry = TABLE[error.reason]
    message, data = describe(error.reason, {"detail": error.detail, **error.facts}, request.wording)
    code = entry.modern_code if request.dialect.era is Era.MODERN else entry.code
    return Frame(jsonrpc.error(error.id, code, message, data), status=error.status)


def _as_protocol_error(request: Request, failure: Failure) -> bool:
    return failure.reason == "ARGUMENTS_INVALID" and arguments_are_protocol_errors(request.dialect)


def _failure_result(edge: Edge, request: Request, failure: Failure) -> Frame:
    text, error = _error_meta(request, failure.reason, failure.facts)
    content = _text_content(text + described_violations(failure.facts))
    body = edge.shapes.call(request.dialect, content, is_error=True, error=error)
    return Frame(jsonrpc.result(request.id, body), headers=_call_headers(request))


def _error_meta(request: Request, reason: str, facts: Mapping[str, Any]) -> tuple[str, bytes]:
    bare = request.dialect.era is Era.AGENT_BUILDER
    text, data = describe(reason, facts, request.wording, bare=bare)
    return text, msgspec.json.encode(data)


def _text_content(text: str) -> bytes:
    return msgspec.json.encode([{"type": "text", "text": text}])


def _answer(request: Request, result: bytes) -> Frame:
    return Frame(jsonrpc.result(request.id, result))


async def _one(frame: Frame) -> Items:
    yield frame


def _call_headers(request: Request) -> Mapping[str, str]:
    return {"X-Naru-Call-Id": request.call_id} if request.call_id else {}


def _metadata(edge: Edge, request: Request) -> tuple[tuple[str, str], ...]:
    trace = request.trace
    metadata = [
        ("authorization", request.credential.metadata),
        (wire.REQUEST_ID_KEY, request.request_id),
        ("traceparent", trace.traceparent),
    ]
    if edge.token:
        metadata.append((wire.SERVICE_TOKEN_KEY, edge.token))
    if trace.tracestate:
        metadata.append(("tracestate", trace.tracestate))
    return tuple(metadata)


_Answered = TypeVar("_Answered")


async def _unary(
    edge: Edge, request: Request, method: Callable[..., Awaitable[_Answered]], message: Any, name: str
) -> _Answered:
    try:
        answer = await method(message, metadata=_metadata(edge, request), timeout=edge.registry_timeout)
    except grpc.aio.AioRpcError as error:
        raise _failed(edge, request, error, name, may_have_run=False) from error
    edge.metrics.rpc(name, "OK")
    return answer


def _failed(edge: Edge, request: Request, error: grpc.aio.AioRpcError, rpc: str, *, may_have_run: bool) -> Failure:
    """Names the failure of an RPC, counts it, and logs what an operator has to look at."""
    code = error.code().name
    edge.metrics.rpc(rpc, code)
    failure = failure_of(error, may_have_run=may_have_run)
    if is_token_refused(error):
        edge.log.error("the registry refuses the gateway's token", setting="GATEWAY_REGISTRY_TOKEN", rpc=rpc)
    elif failure.reason in {"INTERNAL", "SERVICE_UNAVAILABLE", "CALL_OUTCOME_UNKNOWN"}:
        edge.log.warning(
            "rpc failed", rpc=rpc, code=code, details=error.details(), reason=failure.reason,
            request_id=request.request_id, trace_id=request.trace.trace_id,
        )  # fmt: skip
    if failure.reason == "UNAUTHENTICATED":
        return Unauthenticated(basic=request.credential.basic)
    if failure.reason == "INTERNAL":
        return Failure("INTERNAL", {"trace_id": request.trace.trace_id, **failure.facts})
    return failure
