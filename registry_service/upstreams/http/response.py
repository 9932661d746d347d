"""From the body of an HTTP answer to what an MCP client gets. Pure: bytes in, JSON text out."""

import re
from base64 import b64encode
from collections.abc import Sequence

import msgspec

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError
from registry_service.upstreams import strict_json
from registry_service.upstreams.answer import Answer, Expected, from_json, readable, text_content
from registry_service.upstreams.http.media_type import Kind, Media, decode_leniently, decode_text
from registry_service.upstreams.secrets import without_secrets

# A client is shown at most so many bytes of the body of an HTTP error.
ERROR_BODY_BYTES = 64 * 1024

# Control characters that no text has; ESC colours the text of many a tool.
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# Those that JSON has no short form for.
_CONTROLS = tuple(chr(code) for code in range(32) if chr(code) not in "\b\t\n\f\r")

_encode = msgspec.json.Encoder().encode


def from_body(body: bytes, media: Media, expected: Expected, uri: str, limit: int) -> Answer:
    """Maps a whole body that came with a 2xx; `uri` names it, should it become an embedded resource.

    `limit` is that of results: as JSON a text may have twice as many bytes. Raises ToolResponseInvalidError,
    ResultTooLargeError.
    """
    if not body:
        raise ToolResponseInvalidError(detail="empty body")
    if media.kind is Kind.JSON:
        return from_json(decode_text(body, media.charset), expected)
    if media.kind is Kind.UNKNOWN:
        return _from_unlabelled(body, expected, uri, limit)
    if expected.result == "mcp":
        raise ToolResponseInvalidError(detail="not JSON")
    if expected.output is not None:
        raise ToolResponseInvalidError(detail="no structured content, which outputSchema demands")
    if media.kind is Kind.TEXT:
        return Answer(_bounded_text(decode_text(body, media.charset), limit))
    return Answer(_media_content(body, media, uri))


def from_stream_error(text: str, secrets: Sequence[str]) -> Answer:
    """Maps the `error` of a stream, JSON text: its `message` where it has one, else the whole text."""
    error = strict_json.read(text.encode())
    message = error.get("message") if isinstance(error, dict) else error
    shown = message if isinstance(message, str) else readable(text)
    return Answer(text_content(without_secrets(shown, secrets)), is_error=True)


def from_http_error(body: bytes, media: Media, secrets: Sequence[str]) -> bytes:
    """Makes content of the body of an HTTP error, at most ERROR_BODY_BYTES of it; empty where there is no text."""
    if media.kind in (Kind.IMAGE, Kind.AUDIO, Kind.BINARY):
        return b"[]"
    text = decode_leniently(body, media.charset)
    if media.kind is Kind.JSON:
        text = readable(text)
    shown = without_secrets(text, secrets).encode()[:ERROR_BODY_BYTES].decode(errors="ignore")
    return text_content(shown) if shown.strip() and _is_text(text) else b"[]"


def _is_text(text: str) -> bool:
    """Returns False for what was decoded and isn't text: compressed or otherwise binary."""
    if _BINARY.search(text):
        return False
    return text.count("\ufffd") <= len(text) // 10


def _from_unlabelled(body: bytes, expected: Expected, uri: str, limit: int) -> Answer:
    """Without a Content-Type, JSON is taken for JSON, text for text, and the rest as it is."""
    try:
        text = decode_text(body, "")
    except ToolResponseInvalidError:
        return from_body(body, Media(Kind.BINARY, "application/octet-stream", ""), expected, uri, limit)
    try:
        return from_json(text, expected)
    except ToolResponseInvalidError:
        if expected.result == "mcp" or expected.output is not None:
            raise
        return Answer(_bounded_text(text, limit))


def _bounded_text(text: str, limit: int) -> bytes:
    """Makes content of a text, unless it becomes too long: JSON takes six bytes for a control character."""
    if len(text) + 5 * sum(map(text.count, _CONTROLS)) > 2 * limit:
        raise ResultTooLargeError(limit_bytes=limit)
    return text_content(text)


def _media_content(body: bytes, media: Media, uri: str) -> bytes:
    data = b64encode(body)
    essence = _encode(media.essence)
    if media.kind is Kind.BINARY:
        resource = b'{"uri":' + _encode(uri) + b',"mimeType":' + essence + b',"blob":"' + data + b'"}'
        return b'[{"type":"resource","resource":' + resource + b"}]"
    kind = b"image" if media.kind is Kind.IMAGE else b"audio"
    return b'[{"type":"' + kind + b'","data":"' + data + b'","mimeType":' + essence + b"}]"
