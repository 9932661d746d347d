"""The one table of failures: what each reason becomes on the wire.

A failure is a reason (a name of `naru.v1.Reason`) and its facts. It reaches the client as a JSON-RPC error, as a tool
result with `isError`, or as an HTTP error with a JSON-RPC error for its body. docs/errors.md explains each reason to
the people who meet it; a test holds the enum, this table, the sentences and that page together.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from gateway.failures.details_ko import korean
from gateway.failures.sentences import Sentences, next_action, sentence
from gateway.failures.sentences_en import EN
from gateway.failures.sentences_ko import KO
from gateway.failures.violations import worded
from gateway.settings import Locale

SENTENCES: Mapping[Locale, Mapping[str, Sentences]] = {"ko": KO, "en": EN}


class Surface(Enum):
    """The place where a failure shows: as a JSON-RPC error, as a result with `isError`, or as an HTTP error."""

    ERROR = "JSON-RPC error"
    RESULT = "isError result"
    HTTP = "HTTP error"


class Entry(NamedTuple):
    """The way in which a reason reaches a client.

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
    """Returns an entry with a code of MCP or JSON-RPC, which is the same for everybody."""
    return Entry(error_code, Surface.ERROR, code, code, **more)


def _ours(error_code: str, code: int, **more: Any) -> Entry:
    """Returns an entry with a code of ours, which leaves the range that 2026-07-28 reserves."""
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
    """A failure with a name. `facts` are JSON values by name that the client may see."""

    def __init__(self, reason: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts: Mapping[str, Any] = facts or {}


class Wording(NamedTuple):
    """The language and the `_meta` prefix in which the failures of one request are put."""

    locale: Locale
    prefix: str


def describe(
    reason: str, facts: Mapping[str, Any], wording: Wording, *, bare: bool = False
) -> tuple[str, dict[str, Any]]:
    """Returns the sentence, and the object for `error.data` or `_meta["<prefix>/error"]`.

    A bare object holds the four members of the Agent Builder contract only.
    """
    entry, sentences = TABLE[reason], SENTENCES[wording.locale][reason]
    if "violations" in facts:
        facts = {**facts, "violations": worded(facts["violations"], wording.locale)}
    safe = bool(facts.get("safe_to_retry", entry.safe_to_retry))
    data: dict[str, Any] = {
        "reason": reason,
        "error_code": entry.error_code,
        "safe_to_retry": safe,
        "next_action": next_action(sentences, facts, safe_to_retry=safe),
    }
    if not bare:
        if entry.next_method:
            data[f"{wording.prefix}/next"] = {"method": entry.next_method}
        for name, fact in facts.items():
            if fact is not None:
                data.setdefault(_WIRE_NAMES.get(name, name), fact)
    return sentence(sentences, _in_words(facts, wording.locale)), data


# Members that MCP itself names.
_WIRE_NAMES = {"required_capabilities": "requiredCapabilities"}


def _in_words(facts: Mapping[str, Any], locale: Locale) -> Mapping[str, Any]:
    """Returns the facts for a sentence: the detail in its language, or none."""
    detail = facts.get("detail")
    if locale == "en" or detail is None:
        return facts
    words = korean(detail) if isinstance(detail, str) else None
    if words is None:
        return {name: fact for name, fact in facts.items() if name != "detail"}
    return {**facts, "detail": words}
