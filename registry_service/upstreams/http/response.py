"""From what an endpoint answered to what an MCP client is told. Pure: bytes in, JSON text out.

JSON is never rebuilt: digits, key order and unknown members of the endpoint's text reach the client as they are.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from naru.v1 import errors_pb2
from registry_service.errors import Fact, ToolResponseInvalidError
from registry_service.tools.json_schema import SchemaCheck, Violation
from registry_service.upstreams.http.media_type import Kind, Media, decode_leniently, decode_text
from registry_service.upstreams.mcp_content import ContentBlock

# What a client is shown of the body of an HTTP error, in bytes.
ERROR_BODY_BYTES = 64 * 1024

_JSON_SPACE = " \t\r\n"


class Answer(NamedTuple):
    """What the tool said. The bytes are JSON text; empty `structured` and `meta` mean none.

    `reason` is unspecified where Naru knows no more than the tool said; `facts` go with it. `unchecked` is what
    `structured` must still be held to, where that takes long.
    """

    content: bytes
    structured: bytes = b""
    is_error: bool = False
    meta: bytes = b""
    reason: "errors_pb2.Reason.ValueType" = errors_pb2.REASON_UNSPECIFIED
    facts: Mapping[str, Fact] = {}
    unchecked: SchemaCheck | None = None


class Expected(NamedTuple):
    """What the definition promises of an answer: how it is to be read, and the check of its structured content."""

    result: str
    output: SchemaCheck | None


class _ToolResult(msgspec.Struct):
    """An MCP `CallToolResult`, read as far as a client would trip over it."""

    content: msgspec.Raw = msgspec.Raw()
    structured: msgspec.Raw = msgspec.field(name="structuredContent", default=msgspec.Raw())
    is_error: bool | None = msgspec.field(name="isError", default=None)
    meta: dict[str, msgspec.Raw] | None = msgspec.field(name="_meta", default=None)


_encode = msgspec.json.Encoder().encode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_decode_json = msgspec.json.Decoder().decode
_decode_result = msgspec.json.Decoder(_ToolResult).decode
_decode_blocks = msgspec.json.Decoder(list[ContentBlock]).decode
_decode_members = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def from_body(body: bytes, media: Media, expected: Expected, uri: str) -> Answer:
    """Maps a whole body that came with a 2xx; `uri` names it, should it become an embedded resource.

    Raises ToolResponseInvalidError.
    """
    if not body:
        raise ToolResponseInvalidError(detail="empty body")
    if media.kind is Kind.JSON:
        return from_json(decode_text(body, media.charset), expected)
    if media.kind is Kind.UNKNOWN:
        return _from_unlabelled(body, expected, uri)
    if expected.result == "mcp":
        raise ToolResponseInvalidError(detail="not JSON")
    if expected.output is not None:
        raise ToolResponseInvalidError(detail="no structured content, which outputSchema demands")
    if media.kind is Kind.TEXT:
        return Answer(text_content(decode_text(body, media.charset)))
    return Answer(_media_content(body, media, uri))


def from_nothing(expected: Expected) -> Answer:
    """Maps a 204 or 205: done, and nothing to tell. Raises ToolResponseInvalidError where something was promised."""
    if expected.result == "mcp" or expected.output is not None:
        raise ToolResponseInvalidError(detail="empty body")
    return Answer(b"[]")


def from_json(text: str, expected: Expected) -> Answer:
    """Maps JSON text, be it a whole body or the result in a stream. Raises ToolResponseInvalidError."""
    text = text.strip(_JSON_SPACE)
    if expected.result == "mcp":
        return _from_tool_result(text, expected.output)
    raw = text.encode()
    unchecked = None
    if expected.output is not None:
        unchecked = _enforce(expected.output, raw)
    else:
        parse_with(_check_json, raw)
    structured = raw if expected.output is not None or text.startswith("{") else b""
    return Answer(text_content(readable(text)), structured, unchecked=unchecked)


def from_stream_error(text: str) -> Answer:
    """Maps the `error` of a stream, JSON text: its `message` where it has one, else the whole text."""
    error = parse_with(_decode_json, text.encode())
    message = error.get("message") if isinstance(error, dict) else error
    return Answer(text_content(message if isinstance(message, str) else readable(text)), is_error=True)


def from_http_error(body: bytes, media: Media) -> bytes:
    """Makes content of the body of an HTTP error, at most ERROR_BODY_BYTES of it; empty where there is no text."""
    if media.kind in (Kind.IMAGE, Kind.AUDIO, Kind.BINARY):
        return b"[]"
    text = decode_leniently(body[:ERROR_BODY_BYTES], media.charset)
    if media.kind is Kind.JSON:
        text = readable(text)
    return text_content(text) if text.strip() else b"[]"


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


# Where msgspec's message says where: nothing else of it goes on.
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
    except RecursionError:
        raise ToolResponseInvalidError(detail="nested too deep") from None


def _enforce(output: SchemaCheck, raw: bytes) -> SchemaCheck | None:
    """Returns the check where it takes long, and is left to whoever can wait for it."""
    if not output.is_light(raw):
        parse_with(_check_json, raw)
        return output
    refuse(output.violations(parse_with(_decode_json, raw)))
    return None


def refuse(violations: list[Violation]) -> None:
    """Raises ToolResponseInvalidError if there are violations of an output schema."""
    if violations:
        at = violations[0].pointer or "/"
        raise ToolResponseInvalidError(detail=f"structured content violates outputSchema at {at[:200]}")


def _from_unlabelled(body: bytes, expected: Expected, uri: str) -> Answer:
    """Without a Content-Type, JSON is taken for JSON, text for text, and the rest as it is."""
    try:
        text = decode_text(body, "")
    except ToolResponseInvalidError:
        return from_body(body, Media(Kind.BINARY, "application/octet-stream", ""), expected, uri)
    try:
        return from_json(text, expected)
    except ToolResponseInvalidError:
        if expected.result == "mcp" or expected.output is not None:
            raise
        return Answer(text_content(text))


def _media_content(body: bytes, media: Media, uri: str) -> bytes:
    data = b64encode(body)
    essence = _encode(media.essence)
    if media.kind is Kind.BINARY:
        resource = b'{"uri":' + _encode(uri) + b',"mimeType":' + essence + b',"blob":"' + data + b'"}'
        return b'[{"type":"resource","resource":' + resource + b"}]"
    kind = b"image" if media.kind is Kind.IMAGE else b"audio"
    return b'[{"type":"' + kind + b'","data":"' + data + b'","mimeType":' + essence + b"}]"


def _from_tool_result(text: str, output: SchemaCheck | None) -> Answer:
    raw = text.encode()
    result: _ToolResult = parse_with(_decode_result, raw)
    structured = bytes(result.structured)
    is_error = bool(result.is_error)
    if structured == b"null" and (output is None or is_error or output.violations(None)):
        structured = b""  # what encoders write who do not leave out what is absent
    unchecked = None
    if output is not None and not is_error:
        if not structured:
            raise ToolResponseInvalidError(detail="no structured content, which outputSchema demands")
        unchecked = _enforce(output, structured)
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
