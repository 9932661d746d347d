"""`tools/call`: one call, from its parameters to its result."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.failures.table import TABLE, Failure
from gateway.frame import Frame, Item, Progress
from gateway.mcp import jsonrpc
from gateway.mcp.failed import call_headers, error_meta, failure_frame, text_content
from gateway.mcp.params import call_tool_params
from gateway.mcp.progress import progress_of
from gateway.mcp.request import Request
from gateway.mcp.results import Shapes
from gateway.registry_client import RegistryClient
from naru.v1 import wire
from naru.v1.errors_pb2 import Reason
from naru.v1.execution_pb2 import CallToolEvent, CallToolRequest

_MAX_CORRELATION = 256


def call_of(request: Request) -> CallToolRequest:
    """Reads the parameters of `tools/call`. Raises ProtocolError."""
    params = call_tool_params(request.message, request.meta)
    modern = request.modern
    return CallToolRequest(
        name=params.name,
        arguments=params.arguments,
        requested_lane=request.lane,
        stream=request.streams,
        on_disconnect=CallToolRequest.CANCEL if modern else CallToolRequest.CONTINUE,
        client_capabilities=request.meta.client_capabilities if modern else b"",
        session_id=request.session_id,
        jsonrpc_id=request.id.decode() if len(request.id) <= _MAX_CORRELATION else "",
    )


async def run(
    client: RegistryClient, shapes: Shapes, request: Request, call: CallToolRequest
) -> AsyncGenerator[Item, None]:
    """Runs a call: yields a frame that names it, its progress, and its last frame."""
    call_id = ""
    try:
        async with aclosing(client.call_tool(request.sender, call)) as events:
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "result":
                    yield _last(shapes, request, event.result)
                elif kind == "accepted":
                    call_id = event.accepted.call_id
                    yield Frame(b"", last=False, headers=call_headers(call_id), call_id=call_id)
                elif request.progress_token is not None:
                    yield _progress(request.progress_token, event.progress)
    except Failure as failure:
        yield failure_frame(shapes, request, failure, call_id)


def _progress(token: bytes, progress: CallToolEvent.Progress) -> Progress:
    value = int(progress.progress_digits) if progress.progress_digits else progress.progress
    total: float | None = progress.total if progress.HasField("total") else None
    if progress.total_digits:
        total = int(progress.total_digits)
    return progress_of(token, value, total, progress.message)


def _last(shapes: Shapes, request: Request, result: CallToolEvent.Result) -> Frame:
    content = result.content or b"[]"
    error = b""
    outcome = "tool_error" if result.is_error else "ok"
    if result.HasField("failure"):
        reason = Reason.Name(result.failure.reason) if result.failure.reason in Reason.values() else ""
        outcome = reason = reason if reason in TABLE else "INTERNAL"
        text, error = error_meta(request, reason, wire.unpack_facts(result.failure.facts))
        content = text_content(text) if content == b"[]" else content
    body = shapes.call(
        request.dialect, content, result.structured_content, is_error=result.is_error, meta=result.meta, error=error
    )
    headers = call_headers(result.call_id)
    return Frame(jsonrpc.result(request.id, body), headers=headers, outcome=outcome, call_id=result.call_id)
