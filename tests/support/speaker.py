"""Defines the kinds of clients, and the JSON-RPC requests and headers that each of them sends."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.support.wire import Header

BOTH = "application/json, text/event-stream"
JSON_ONLY = "application/json"
SSE_ONLY = "text/event-stream"
NDJSON_ONLY = "application/x-ndjson"

VERSION_META = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_META = "io.modelcontextprotocol/clientCapabilities"


class Speaker(NamedTuple):
    """A kind of client. `revision` is what it names in headers, if anything; `modern` wants all of 2026-07-28."""

    name: str
    accept: str | None
    revision: str = ""
    modern: bool = False

    def accepting(self, accept: str | None) -> "Speaker":
        return self._replace(accept=accept)


AGENT_BUILDER = Speaker("agent-builder", JSON_ONLY)
XDATA = Speaker("xdata", SSE_ONLY)
NDJSON = Speaker("ndjson", NDJSON_ONLY)
UNNAMED = Speaker("unnamed", BOTH)
V_2024_11_05 = Speaker("2024-11-05", BOTH, "2024-11-05")
V_2025_03_26 = Speaker("2025-03-26", BOTH, "2025-03-26")
V_2025_06_18 = Speaker("2025-06-18", BOTH, "2025-06-18")
LEGACY = Speaker("2025-11-25", BOTH, "2025-11-25")
MODERN = Speaker("2026-07-28", BOTH, "2026-07-28", modern=True)
MODERN_SSE = Speaker("2026-07-28-sse", SSE_ONLY, "2026-07-28", modern=True)
LEGACY_REVISIONS = (V_2024_11_05, V_2025_03_26, V_2025_06_18, LEGACY)
EVERYBODY = (AGENT_BUILDER, XDATA, NDJSON, UNNAMED, *LEGACY_REVISIONS, MODERN)


class Json(str):
    """JSON text that goes into a message as it is."""

    __slots__ = ()


def text_of(value: object) -> str:
    """JSON text of a value; the parts that are Json stay as they are."""
    if isinstance(value, Json):
        return value
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}:{text_of(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def sentinel(text: str) -> str:
    """The form in which a mirrored header carries text that is not plain ASCII."""
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


class Message(NamedTuple):
    """A request as one kind of client sends it."""

    headers: Sequence[Header]
    body: bytes


def message(
    speaker: Speaker,
    method: str,
    params: Mapping[str, object] | None = None,
    *,
    id: object = 1,
    meta: Mapping[str, object] | None = None,
) -> Message:
    """Builds the JSON-RPC request (id None: a notification) and the headers that this client sends with it."""
    own: dict[str, object] = {VERSION_META: speaker.revision, CAPABILITIES_META: {}} if speaker.modern else {}
    own |= meta or {}
    members: dict[str, object] = {"jsonrpc": "2.0"}
    if id is not None:
        members["id"] = id
    members["method"] = method
    if params is not None or own:
        members["params"] = {**(params or {}), **({"_meta": own} if own else {})}
    return Message(headers_of(speaker, method, params or {}), text_of(members).encode())


def headers_of(speaker: Speaker, method: str, params: Mapping[str, object]) -> list[Header]:
    headers: list[Header] = [("Content-Type", "application/json")]
    if speaker.accept is not None:
        headers.append(("Accept", speaker.accept))
    if speaker.revision:
        headers.append(("MCP-Protocol-Version", speaker.revision))
    if speaker.modern:
        headers.append(("Mcp-Method", method))
        if method == "tools/call":
            name = str(params["name"])
            plain = name.isascii() and name.isprintable() and name == name.strip()
            headers.append(("Mcp-Name", name if plain else sentinel(name)))
    return headers


def replaced(headers: Iterable[Header], extra: Iterable[Header]) -> list[Header]:
    """Headers of the same name give way to those of `extra`; one that is empty in `extra` is only taken away."""
    extra = list(extra)
    names = {name.lower() for name, _ in extra}
    return [pair for pair in headers if pair[0].lower() not in names] + [pair for pair in extra if pair[1]]
