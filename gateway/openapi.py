"""The OpenAPI document of the gateway: what goes in and comes out over HTTP, written from the table of failures.

It says nothing of single tools: those are an account's own, and `tools/list` describes them.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from gateway.failures.table import TABLE, Surface
from gateway.mcp.revisions import SUPPORTED
from gateway.settings import Settings

_JSON: Final = "application/json"
_SCHEMAS: Final = "#/components/schemas/"
# Statuses that the HTTP server itself gives, before there is a request to look at.
_SERVER_STATUSES: Final = {408: "the request took too long to come", 431: "the headers are too large"}


def document(settings: Settings) -> bytes:
    """Returns the document as JSON text (OpenAPI 3.1)."""
    paths: dict[str, Any] = {path: {"post": _post(settings)} for path in settings.mcp_paths}
    paths |= {"/healthz": {"get": _healthz()}, "/readyz": {"get": _readyz()}, "/openapi.json": {"get": _openapi()}}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Naru",
                "version": version("naru"),
                "description": "HTTP tools for AI agents, over the Model Context Protocol (MCP).",
            },
            "servers": [{"url": "/", "description": "The origin that this document came from."}],
            "paths": paths,
            "components": {"schemas": _schemas(settings), "securitySchemes": _SECURITY_SCHEMES},
        }
    )


_SECURITY_SCHEMES: Final = {
    "basic": {"type": "http", "scheme": "basic", "description": "An account's client id and secret."},
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "base64(client_id:client_secret)",
        "description": "The value of the Basic scheme, for clients that can send nothing but a token.",
    },
}


def _post(settings: Settings) -> dict[str, Any]:
    return {
        "operationId": "sendMessage",
        "summary": "Sends one JSON-RPC message of MCP",
        "description": "Methods: initialize, ping, server/discover, tools/list, tools/call, and notifications. "
        "`Accept` decides how a 200 is carried. Failures of a tool are results with `isError`.",
        "security": [{"basic": []}, {"bearer": []}],
        "parameters": _parameters(),
        "requestBody": {"required": True, "content": {_JSON: {"schema": _ref("Request")}}},
        "responses": {
            "200": _answered(),
            "202": {"description": "A notification was taken. There is no body.", "headers": _headers("X-Request-Id")},
            **_refusals(settings),
        },
    }


def _answered() -> dict[str, Any]:
    stream = "then the Response with the request's id, which is the last."
    return {
        "description": "The answer to a request. A JSON-RPC error is a 200, too, for clients of the handshake era.",
        "headers": _headers("X-Request-Id", "X-Naru-Call-Id", "Retry-After"),
        "content": {
            _JSON: {"schema": _ref("Response")},
            "text/event-stream": {
                "schema": {"type": "string"},
                "x-messages": [_ref("Progress"), _ref("Response")],
                "description": "Events `message`, each with one line of `data:` that is JSON: any number of Progress, "
                f"{stream} Lines that start with `:` keep the connection alive.",
            },
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "x-messages": [_ref("Progress"), _ref("Response")],
                "description": f"One JSON message a line: any number of Progress, {stream} Empty lines keep the "
                "connection alive.",
            },
        },
    }


def _refusals(settings: Settings) -> dict[str, Any]:
    """Describes each status of a refusal with the reasons that have it."""
    reasons: dict[int, list[str]] = {}
    for reason, entry in TABLE.items():
        for status in {entry.status, entry.modern_status} if entry.surface is not Surface.RESULT else ():
            if status >= 400:
                reasons.setdefault(status, []).append(reason)
    for status in _SERVER_STATUSES:
        reasons.setdefault(status, []).append("INVALID_REQUEST")
    more = {401: ("WWW-Authenticate",), 405: ("Allow",)}
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(sorted(set(names)))}. Always JSON.",
            "headers": _headers("X-Request-Id", *more.get(status, ())),
            "content": {_JSON: {"schema": _refusal_schema(sorted(set(names)))}},
        }
        for status, names in sorted(reasons.items())
    }


def _refusal_schema(reasons: Sequence[str]) -> dict[str, Any]:
    data = {"type": "object", "properties": {"reason": {"enum": reasons}}}
    error = {"type": "object", "required": ["data"], "properties": {"data": data}}
    return {"allOf": [_ref("Error"), {"type": "object", "properties": {"error": error}}]}


def _parameters() -> list[dict[str, Any]]:
    texts: Mapping[str, str] = {
        "X-MCP-Env-Scope": "Runs the call in this lane, `real_test` or `production`, where the plan allows it.",
        "Accept-Language": "Language of sentences: Korean, or English where it is preferred.",
        "mcp-session-id": "Correlates requests in logs and records. It proves nothing and is never issued.",
        "X-Request-Id": "Names the request in logs; made up where it is absent.",
        "traceparent": "Trace context (W3C), which is passed on to the tool's endpoint.",
    }
    revision = {
        "name": "MCP-Protocol-Version",
        "in": "header",
        "description": "The revision of MCP that the client speaks.",
        "schema": {"enum": list(SUPPORTED)},
    }
    return [
        revision,
        *(
            {"name": name, "in": "header", "description": said, "schema": {"type": "string"}}
            for name, said in texts.items()
        ),
    ]


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in names}


_HEADERS: Final = {
    "X-Request-Id": "Names the request in Naru's logs.",
    "X-Naru-Call-Id": "Names the call in the ledger, where one was admitted.",
    "Retry-After": "Seconds after which the same request may be sent again.",
    "WWW-Authenticate": "The schemes that are taken.",
    "Allow": "The methods that are served here.",
}


def _healthz() -> dict[str, Any]:
    return _get("isAlive", "Says that the process lives", {"200": "It does."}, _ref("Health"))


def _readyz() -> dict[str, Any]:
    said = {"200": "A call could be served now.", "503": "It could not: `troubles` names what is in the way."}
    return _get("isReady", "Says whether a call could be served", said, _ref("Health"))


def _openapi() -> dict[str, Any]:
    described = _get("describe", "Returns this document", {"200": "This document."}, {"type": "object"})
    described["responses"]["200"]["headers"] = _headers("X-Request-Id")
    return described


def _get(operation: str, summary: str, said: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    responses = {status: {"description": text, "content": {_JSON: {"schema": schema}}} for status, text in said.items()}
    return {"operationId": operation, "summary": summary, "security": [], "responses": responses}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _SCHEMAS + name}


def _schemas(settings: Settings) -> dict[str, Any]:
    """Returns the schemas of messages and of health. Those of JSON-RPC have its version."""
    jsonrpc = {
        "Request": _message(
            ["method"],
            id={"type": ["string", "integer"], "description": "Absent in notifications."},
            method={"type": "string"},
            params={"type": "object"},
        ),
        "Result": _message(["id", "result"], id=_ID, result={"type": "object"}),
        "Error": _message(["error"], id=_ERROR_ID, error=_ERROR),
        "Progress": _message(["method", "params"], method={"const": "notifications/progress"}, params=_PROGRESS),
    }
    return {
        **jsonrpc,
        "Response": {
            "description": "Holds either `result` or `error`.",
            "oneOf": [_ref("Result"), _ref("Error")],
        },
        "ErrorData": _error_data(settings.meta_prefix),
        "Health": {
            "type": "object",
            "required": ["status"],
            "properties": {
                "status": {"type": "string"},
                "troubles": {"type": "array", "items": {"type": "string"}},
            },
        },
    }


def _message(required: Sequence[str], **members: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["jsonrpc", *required],
        "properties": {"jsonrpc": {"const": "2.0"}, **members},
    }


_ID: Final = {"type": ["string", "integer", "null"]}
_ERROR_ID: Final = {**_ID, "description": "null for what could not be parsed; absent where HTTP itself refused."}
_ERROR: Final = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "integer"},
        "message": {"type": "string", "description": "A sentence for the customer's AI."},
        "data": _ref("ErrorData"),
    },
}
_PROGRESS: Final = {
    "type": "object",
    "required": ["progressToken", "progress"],
    "properties": {
        "progressToken": {"type": ["string", "integer"]},
        "progress": {"type": "number"},
        "total": {"type": "number"},
        "message": {"type": "string"},
    },
}


def _error_data(prefix: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "Further members are facts of the failure, such as `violations` or `retry_after_seconds`.",
        "required": ["reason", "error_code", "safe_to_retry", "next_action"],
        "properties": {
            "reason": {"type": "string"},
            "error_code": {"type": "string", "pattern": "^E[0-9]{4}$"},
            "safe_to_retry": {"type": "boolean", "description": "The identical request may be sent again."},
            "next_action": {"type": "string", "description": "What helps, as a sentence."},
            f"{prefix}/next": {
                "type": "object",
                "description": "The MCP call that helps next.",
                "properties": {"method": {"type": "string"}},
            },
        },
    }
