"""From the body of an HTTP answer to what an MCP client gets. Pure: bytes in, JSON text out."""

from base64 import b64encode

import msgspec

from registry_service.errors import ToolResponseInvalidError
from registry_service.upstreams.answer import Answer, Expected, from_json, parse_with, readable, text_content
from registry_service.upstreams.http.media_type import Kind, Media, decode_leniently, decode_text

# What a client is shown of the body of an HTTP error, in bytes.
ERROR_BODY_BYTES = 64 * 1024

_encode = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


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
