"""The last frame of a request that failed."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.failures.table import TABLE, Failure, Surface, describe
from gateway.failures.violations import listed, worded
from gateway.frame import Frame
from gateway.mcp import jsonrpc
from gateway.mcp.request import Request
from gateway.mcp.results import Shapes
from gateway.mcp.revisions import Era, arguments_are_protocol_errors


def failure_frame(shapes: Shapes, request: Request, failure: Failure, call_id: str = "") -> Frame:
    """Returns the answer to a request that failed, whatever the failure shows as."""
    named = failure.facts.get("call_id")
    call_id = named if isinstance(named, str) else call_id
    headers = call_headers(call_id)
    retry_after = failure.facts.get("retry_after_seconds")
    if isinstance(retry_after, int | float):
        headers = {**headers, "Retry-After": str(math.ceil(retry_after))}
    entry = TABLE[failure.reason]
    if entry.surface is Surface.RESULT and request.method == "tools/call" and not _as_protocol_error(request, failure):
        body, status = _result(shapes, request, failure), 200
    else:
        body, status = _error(request, failure)
    return Frame(body, status=status, headers=headers, outcome=failure.reason, call_id=call_id)


def protocol_frame(request: Request, error: jsonrpc.ProtocolError) -> Frame:
    """Returns the answer to a message that breaks the rules of JSON-RPC or of its MCP revision."""
    entry = TABLE[error.reason]
    message, data = describe(error.reason, {"detail": error.detail, **error.facts}, request.wording)
    code = entry.modern_code if request.modern else entry.code
    return Frame(jsonrpc.error(error.id, code, message, data), status=error.status, outcome=error.reason)


def error_meta(request: Request, reason: str, facts: Mapping[str, Any]) -> tuple[str, bytes]:
    """Returns the sentence of a failure that is a result, and the JSON text for its `_meta`."""
    bare = request.dialect.era is Era.AGENT_BUILDER
    text, data = describe(reason, facts, request.wording, bare=bare)
    return text, msgspec.json.encode(data)


def text_content(text: str) -> bytes:
    """Returns content blocks (JSON text) that hold this text."""
    return msgspec.json.encode([{"type": "text", "text": text}])


def call_headers(call_id: str) -> Mapping[str, str]:
    """Returns the headers that name a call, if there is one."""
    return {"X-Naru-Call-Id": call_id} if call_id else {}


def _error(request: Request, failure: Failure) -> tuple[bytes, int]:
    entry = TABLE[failure.reason]
    message, data = describe(failure.reason, failure.facts, request.wording)
    code, status = (entry.modern_code, entry.modern_status) if request.modern else (entry.code, entry.status)
    if status == 200 and not request.id:  # a notification: nobody would look for an error in a success
        status = 503 if entry.safe_to_retry else 500
    return jsonrpc.error(request.id, code, message, data), status


def _result(shapes: Shapes, request: Request, failure: Failure) -> bytes:
    text, error = error_meta(request, failure.reason, failure.facts)
    violations = worded(failure.facts.get("violations"), request.wording.locale)
    content = text_content(text + listed(violations))
    return jsonrpc.result(request.id, shapes.call(request.dialect, content, is_error=True, error=error))


def _as_protocol_error(request: Request, failure: Failure) -> bool:
    return failure.reason == "ARGUMENTS_INVALID" and arguments_are_protocol_errors(request.dialect)
