"""Turns what an upstream said into what an MCP client gets. Pure: JSON text in, JSON text out.

JSON is never rebuilt: digits, key order and unknown members of the upstream's text reach the client as they are.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from naru.v1 import errors_pb2
from registry_service.errors import Fact, ToolResponseInvalidError
from registry_service.tools.schema_check import SchemaCheck
from registry_service.tools.violation import Violation
from registry_service.upstreams import strict_json
from registry_service.upstreams.mcp_content import ContentBlock

_JSON_SPACE = " \t\r\n"


class Answer(NamedTuple):
    """Holds what the tool said. The bytes are JSON text; empty `structured` and `meta` mean none.

    `reason` is unspecified where Naru knows no more than the tool said; `facts` go with it. `note` is for those who run
    the tool. `unchecked` is what `structured` must still be held to, where that takes long.
    """

    content: bytes
    structured: bytes = b""
    is_error: bool = False
    meta: bytes = b""
    reason: "errors_pb2.Reason.ValueType" = errors_pb2.REASON_UNSPECIFIED
    facts: Mapping[str, Fact] = {}
    unchecked: SchemaCheck | None = None
    note: str = ""


class Expected(NamedTuple):
    """Holds what the definition promises of an answer: how to read it, and the check of its structured content."""

    result: str
    output: SchemaCheck | None


class _ToolResult(msgspec.Struct):
    """An MCP `CallToolResult`, read as far as a client would trip over it."""

    content: msgspec.Raw = msgspec.Raw()
    structured: msgspec.Raw = msgspec.field(name="structuredContent", default=msgspec.Raw())
    is_error: bool | None = msgspec.field(name="isError", default=None)
    meta: dict[str, msgspec.Raw] | None = msgspec.field(name="_meta", default=None)


_encode = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_decode_result = msgspec.json.Decoder(_ToolResult).decode
_decode_blocks = msgspec.json.Decoder(list[ContentBlock]).decode
_decode_members = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def from_json(text: str, expected: Expected) -> Answer:
    """Maps JSON text, be it a whole body or the result in a stream. Raises ToolResponseInvalidError."""
    raw = strict_json.without_lone_surrogates(text.strip(_JSON_SPACE)).encode()
    value = strict_json.read(raw)
    if expected.result == "mcp":
        return _from_tool_result(raw, expected.output)
    unchecked = None if expected.output is None else _enforce(expected.output, raw, value)
    structured = raw if expected.output is not None or isinstance(value, dict) else b""
    return Answer(text_content(readable(raw.decode())), structured, unchecked=unchecked)


def from_nothing(expected: Expected, text: str = "") -> Answer:
    """Maps an answer without content. Raises ToolResponseInvalidError where something was promised."""
    if expected.result == "mcp" or expected.output is not None:
        raise ToolResponseInvalidError(detail="empty body")
    return Answer(text_content(text) if text else b"[]")


def text_content(text: str) -> bytes:
    """Makes content of one text block."""
    return b'[{"type":"text","text":' + _encode(text) + b"}]"


# Possessive, and satisfied by the end of the text: of what is no JSON, it would else look for a closing quote from each
# quote on, again and again.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def readable(text: str) -> str:
    """Shows letters for `\\uXXXX` in JSON text, as many an encoder escapes everything beyond ASCII. Equal as JSON."""
    if "\\u" not in text:
        return text
    return _STRING.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    literal = match[0]
    if "\\u" not in literal:
        return literal
    try:
        return _encode(_decode_json(literal)).decode()
    except msgspec.DecodeError:  # the text of an HTTP error may be cut, or never have been JSON
        return literal


# The place in msgspec's message. Nothing else of the message is passed on.
_PLACE = re.compile(r"at `(\$[^`]*)`\Z")


def parse_with(decode: Any, raw: bytes | str) -> Any:
    """Decodes with a msgspec decoder; raises ToolResponseInvalidError, which says where but not what."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        at = _PLACE.search(str(error))
        raise ToolResponseInvalidError(detail=f"not the shape that is due, at {at[1][:200] if at else '$'}") from None
    except msgspec.DecodeError:
        raise ToolResponseInvalidError(detail="not JSON") from None


def _enforce(output: SchemaCheck, raw: bytes, value: object) -> SchemaCheck | None:
    """Returns the check where it takes long, and is left to whoever can wait for it."""
    if not output.is_light(raw):
        return output
    refuse(output.violations(value))
    return None


def refuse(violations: list[Violation]) -> None:
    """Raises ToolResponseInvalidError if there are violations of an output schema."""
    if violations:
        at = violations[0].pointer or "/"
        raise ToolResponseInvalidError(detail=f"structured content violates outputSchema at {at[:200]}")


def _from_tool_result(raw: bytes, output: SchemaCheck | None) -> Answer:
    result: _ToolResult = parse_with(_decode_result, raw)
    structured = bytes(result.structured)
    is_error = bool(result.is_error)
    if structured == b"null" and (output is None or is_error or output.violations(None)):
        structured = b""  # what encoders write who do not leave out what is absent
    unchecked = None
    if output is not None and not is_error:
        if not structured:
            raise ToolResponseInvalidError(detail="no structured content, which outputSchema demands")
        unchecked = _enforce(output, structured, _decode_json(structured))
    meta = b"" if result.meta is None else _encode(result.meta)
    return Answer(_content(bytes(result.content), structured), structured, is_error, meta, unchecked=unchecked)


def _content(content: bytes, structured: bytes) -> bytes:
    if content in (b"", b"null"):
        if not structured:
            raise ToolResponseInvalidError(detail="neither content nor structuredContent")
        return text_content(readable(structured.decode()))
    if b"null" in content:
        content = _encode([_without_nulls(block) for block in parse_with(_decode_members, content)])
    parse_with(_decode_blocks, content)
    return content


def _without_nulls(block: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Leaves out members that are null: no client takes them, and many an encoder writes them for what is absent."""
    kept = {name: value for name, value in block.items() if bytes(value) != b"null"}
    resource = kept.get("resource")
    if resource is not None and bytes(resource).startswith(b"{"):
        kept["resource"] = msgspec.Raw(_encode(_without_nulls(parse_with(_decode_object, bytes(resource)))))
    return kept
