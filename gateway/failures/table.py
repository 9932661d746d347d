"""The one table of failures: what each reason becomes on the wire.

A failure is a reason (a name of `naru.v1.Reason`) and its facts. It reaches the client as a JSON-RPC error, as a tool
result with `isError`, or as an HTTP error with a JSON-RPC error for its body. docs/errors.md explains each reason to
the people who meet it; a test holds the enum, this table, the sentences and that page together.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import grpc

from gateway.failures.sentences import next_action, sentence
from gateway.http.language import Locale
from naru.v1 import wire

# How gRPC words the failures of a request that no connection ever carried. There is no other sign of it in grpc.aio:
# initial metadata that never came says nothing, since the registry may have admitted the call and died before it.
_NEVER_SENT = (
    "connections to all backends failing",
    "failed to connect to all addresses",
    "errors resolving ",
    "DNS resolution failed",
    "empty address list",
    "CLIENT: Sent message larger than max",
)
_TOO_LARGE_REQUEST = ("CLIENT: Sent message larger than max", "SERVER: Received message larger than max")
_TOO_LARGE_RESULT = ("CLIENT: Received message larger than max", "SERVER: Sent message larger than max")
# What a read-only RPC without an ErrorInfo may be asked again for.
_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Surface(Enum):
    """Where a failure shows: as a JSON-RPC error, as a result with `isError`, or as an HTTP error."""

    ERROR = "JSON-RPC error"
    RESULT = "isError result"
    HTTP = "HTTP error"


class Entry(NamedTuple):
    """How a reason reaches a client.

    `code` and `modern_code` are JSON-RPC error codes; those of a RESULT are only used where there is no call to answer.
    `next_method` is the MCP method that helps next; `safe_to_retry` holds where the facts do not say.
    """

    error_code: str
    surface: Surface
    code: int
    modern_code: int
    status: int = 200
    modern_status: int = 200
    safe_to_retry: bool = False
    next_method: str = ""


def _error(error_code: str, code: int, **more: Any) -> Entry:
    """A code of MCP or JSON-RPC is the same for everybody."""
    return Entry(error_code, Surface.ERROR, code, code, **more)


def _ours(error_code: str, code: int, **more: Any) -> Entry:
    """A code of ours leaves the range that 2026-07-28 reserves."""
    return Entry(error_code, Surface.ERROR, code, code + 1000, **more)


def _result(error_code: str, **more: Any) -> Entry:
    return Entry(error_code, Surface.RESULT, -32603, -32603, **more)


def _http(error_code: str, status: int, code: int = -32600, modern_code: int = -32600) -> Entry:
    return Entry(error_code, Surface.HTTP, code, modern_code, status, status)


TABLE: Mapping[str, Entry] = {
    "INTERNAL": _error("E1001", -32603),
    "SERVICE_UNAVAILABLE": _ours("E1002", -32007, safe_to_retry=True),
    "CALL_OUTCOME_UNKNOWN": _ours("E1003", -32008),
    "PARSE_ERROR": _error("E1101", -32700, status=400, modern_status=400),
    "INVALID_REQUEST": _error("E1102", -32600, status=400, modern_status=400),
    "METHOD_NOT_FOUND": _error("E1103", -32601, modern_status=404),
    "INVALID_PARAMS": _error("E1104", -32602),
    "HEADER_MISMATCH": _error("E1105", -32020, status=400, modern_status=400),
    "MISSING_CLIENT_CAPABILITY": _error("E1106", -32021, status=400, modern_status=400),
    "UNSUPPORTED_PROTOCOL_VERSION": _error(
        "E1107", -32022, status=400, modern_status=400, next_method="server/discover"
    ),
    "TOOL_NOT_FOUND": _error("E1201", -32602, next_method="tools/list"),
    "TOOL_NOT_ACTIVE": _error("E1202", -32602, next_method="tools/list"),
    "TOOL_VERSION_AMBIGUOUS": _ours("E1203", -32005),
    "ARGUMENTS_INVALID": Entry("E1204", Surface.RESULT, -32602, -32602, next_method="tools/list"),
    "LANE_INVALID": _ours("E1205", -32006),
    "LANE_NOT_ALLOWED": _ours("E1206", -32006),
    "LANE_NOT_CONFIGURED": _ours("E1207", -32006, next_method="tools/list"),
    "TOOL_UNREACHABLE": _result("E1301"),
    "TOOL_TIMED_OUT": _result("E1302"),
    "TOOL_BUSY": _result("E1303", safe_to_retry=True),
    "TOOL_REFUSED": _result("E1304"),
    "TOOL_HTTP_ERROR": _result("E1305"),
    "TOOL_RESPONSE_INVALID": _result("E1306"),
    "RESULT_TOO_LARGE": _result("E1307"),
    "UNAUTHENTICATED": _http("E1401", 401, -32001, -31001),
    "ACCOUNT_SUSPENDED": _http("E1402", 403, -32010, -31010),
    "PERMISSION_DENIED": _result("E1403", next_method="tools/list"),
    "HOST_NOT_ALLOWED": _http("E1501", 421),
    "ORIGIN_NOT_ALLOWED": _http("E1502", 403),
    "METHOD_NOT_ALLOWED": _http("E1503", 405),
    "NOT_ACCEPTABLE": _http("E1504", 406),
    "UNSUPPORTED_MEDIA_TYPE": _http("E1505", 415),
    "BODY_TOO_LARGE": _http("E1506", 413),
    "AUTHORIZATION_MALFORMED": _http("E1507", 400),
    "PATH_NOT_FOUND": _http("E1508", 404),
    "AUTHORIZATION_TOO_LARGE": _http("E1509", 431),
}


class Failure(Exception):  # noqa: N818  it is what the contract calls a failure, and mostly not a fault of this program
    """A failure with a name. `facts` are what the client may be told, JSON values by name."""

    def __init__(self, reason: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts: Mapping[str, Any] = facts or {}


class Wording(NamedTuple):
    """How the failures of one request are put: in which language, under which `_meta` prefix."""

    locale: Locale
    prefix: str


def describe(
    reason: str, facts: Mapping[str, Any], wording: Wording, *, bare: bool = False
) -> tuple[str, dict[str, Any]]:
    """Returns the sentence, and the object for `error.data` or `_meta["<prefix>/error"]`.

    A bare object holds the four members of the Agent Builder contract only.
    """
    entry = TABLE[reason]
    safe = bool(facts.get("safe_to_retry", entry.safe_to_retry))
    data: dict[str, Any] = {
        "reason": reason,
        "error_code": entry.error_code,
        "safe_to_retry": safe,
        "next_action": next_action(reason, safe_to_retry=safe, locale=wording.locale, detail=facts.get("detail")),
    }
    if not bare:
        if entry.next_method:
            data[f"{wording.prefix}/next"] = {"method": entry.next_method}
        for name, fact in facts.items():
            if fact is not None:
                data.setdefault(_WIRE_NAMES.get(name, name), fact)
    return sentence(reason, facts, wording.locale), data


# Members that MCP itself names.
_WIRE_NAMES = {"required_capabilities": "requiredCapabilities"}


def described_violations(facts: Mapping[str, Any]) -> str:
    """Lists the violations of a schema, a line each, for the models that read nothing but the text of a result."""
    violations = facts.get("violations")
    if not isinstance(violations, list):
        return ""
    return "".join(f"\n- arguments{item.get('pointer', '')}: {item.get('message', '')}" for item in violations)


def failure_of(error: grpc.aio.AioRpcError, *, may_have_run: bool) -> Failure:
    """Names what an RPC failed of. `may_have_run` says that the RPC was one that does something (CallTool).

    A status with an ErrorInfo of the registry tells it. Without one the link failed: a request that provably was not
    sent is SERVICE_UNAVAILABLE; of any other the outcome is unknown, unless the RPC only reads.
    """
    info = wire.unpack_status(error.trailing_metadata())
    if info is not None:
        return _registry_failure(info.reason, info.facts, may_have_run=may_have_run)
    details = error.details() or ""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if any(text in details for text in _TOO_LARGE_RESULT):
            return Failure("RESULT_TOO_LARGE" if may_have_run else "INTERNAL", {"safe_to_retry": False})
        if any(text in details for text in _TOO_LARGE_REQUEST):
            return Failure("BODY_TOO_LARGE")
    if details.startswith(_NEVER_SENT) or error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Failure("SERVICE_UNAVAILABLE")
    if may_have_run:
        return Failure("CALL_OUTCOME_UNKNOWN")
    return Failure("SERVICE_UNAVAILABLE" if error.code() in _TRANSIENT else "INTERNAL")


def _registry_failure(reason: str, facts: dict[str, Any], *, may_have_run: bool) -> Failure:
    if reason in TABLE:
        return Failure(reason, facts)
    if reason == "PAGE_TOKEN_INVALID":
        return Failure("INVALID_PARAMS", {"detail": "params.cursor was not issued by this server"})
    if reason == "TOKEN_INVALID":  # ours, not the client's: the registry refused before it did anything
        return Failure("SERVICE_UNAVAILABLE")
    # A reason that a newer registry knows and we do not.
    return Failure("CALL_OUTCOME_UNKNOWN" if may_have_run else "INTERNAL")


def is_token_refused(error: grpc.aio.AioRpcError) -> bool:
    """Says whether the registry refused the gateway's own token (GATEWAY_REGISTRY_TOKEN)."""
    info = wire.unpack_status(error.trailing_metadata())
    return info is not None and info.reason == "TOKEN_INVALID"
