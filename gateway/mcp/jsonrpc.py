"""One JSON-RPC 2.0 message: envelope rules, ids and the shapes that answer it. Pure.

A body is scanned by `strict_json` before any of it is used. Its slices are never re-encoded: digits, key order and
unknown members stay as sent.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Raw

from gateway.mcp import strict_json

# Every progress frame repeats the progress token, which may be the id; every answer repeats the id.
MAX_ID_BYTES = 4096

NO_FACTS: Mapping[str, object] = {}
_ABSENT = Raw(b"")


class ProtocolError(Exception):
    """A message that is refused before any tool is looked at.

    `reason` is the name of a `Reason` of the contract, `detail` an English half-sentence that quotes nothing of the
    body but member names, `id` the JSON text of the request's id (None: it could not be read), `facts` what goes into
    `error.data`, and `status` the HTTP status that MCP demands for it (400 for parse, envelope and header faults).
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        id: bytes | None = None,  # noqa: A002  JSON-RPC calls it so
        facts: Mapping[str, object] = NO_FACTS,
        status: int = 400,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.id = id
        self.facts = facts
        self.status = status


class Message(msgspec.Struct, frozen=True):
    """A request, or a notification where `id` is None. `id` and `params` (an object) are JSON text as sent."""

    id: bytes | None
    method: str
    params: bytes


class Response(msgspec.Struct, frozen=True):
    """A posted JSON-RPC response. Naru asks its clients nothing, so nobody waits for it."""

    id: bytes | None


class _Request(msgspec.Struct):
    """The usual envelope, checked by msgspec in one go."""

    jsonrpc: Literal["2.0"]
    method: str
    id: Raw = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


class _Envelope(msgspec.Struct):
    """Any object, to find out what is wrong with it and which id it has."""

    jsonrpc: Raw = _ABSENT
    method: Raw = _ABSENT
    id: Raw = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


_request = msgspec.json.Decoder(_Request).decode
_envelope = msgspec.json.Decoder(_Envelope).decode

_NUMBER = re.compile(rb"-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]+))?")


def decode(body: bytes, *, scanned: bool = False) -> Message | Response:
    """Decodes a request body. `scanned` says that `strict_json.check` has passed it already.

    Raises ProtocolError: PARSE_ERROR (not JSON, or JSON that Naru refuses; no id), INVALID_REQUEST (not one JSON-RPC
    2.0 message; a batch is none since 2025-06-18) or INVALID_PARAMS (`params` is not an object).
    """
    try:
        if not scanned:
            strict_json.check(body)
    except strict_json.RefusedError as refused:
        raise ProtocolError("PARSE_ERROR", str(refused)) from None
    try:
        request = _request(body)
    except msgspec.ValidationError:
        return _odd_message(body)
    except msgspec.DecodeError:
        raise ProtocolError("PARSE_ERROR", "the body is not JSON") from None
    if request.result or request.error:
        return _odd_message(body)
    message_id = None
    if request.id:
        message_id = bytes(request.id)
        _check_id(message_id)
    if not request.params:
        return Message(message_id, request.method, b"{}")
    params = bytes(request.params)
    if params[:1] != b"{":
        raise ProtocolError("INVALID_PARAMS", "params must be an object", message_id, status=200)
    return Message(message_id, request.method, params)


def is_id(raw: bytes) -> bool:
    """Returns whether JSON text is a string or an integral number: an id, or a progress token."""
    return raw[:1] == b'"' or raw.isdigit() or _is_integral(raw)


def result(id: bytes, result: bytes) -> bytes:  # noqa: A002  JSON-RPC calls it so
    """Builds a success response from JSON texts."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result)


def error(id: bytes | None, code: int, message: str, data: Mapping[str, object] = NO_FACTS) -> bytes:  # noqa: A002
    """Builds an error response.

    `id` None becomes null, for a request that could not be parsed; `id` b"" leaves the member out, for HTTP errors that
    answer no request (405, say). `data` holds plain values or `msgspec.Raw`, and is left out when empty.
    """
    fields: dict[str, object] = {"code": code, "message": message}
    if data:
        fields["data"] = data
    member = b"" if id == b"" else b',"id":' + (id or b"null")
    return b'{"jsonrpc":"2.0"%b,"error":%b}' % (member, text(fields))


def notification(method: str, params: bytes) -> bytes:
    """Builds a notification; `params` is JSON text."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (text(method), params)


def obj(members: Mapping[str, bytes]) -> bytes:
    """Joins JSON texts into an object, in order; members whose text is empty are left out."""
    return b"{" + b",".join(b"%b:%b" % (text(name), raw) for name, raw in members.items() if raw) + b"}"


text = msgspec.json.encode


def _is_integral(raw: bytes) -> bool:
    """Returns whether a JSON number has no fraction; 1e3 and 1.0 have none. Exact for any length."""
    match = _NUMBER.fullmatch(raw)
    if match is None:
        return False
    whole, fraction, sign, exponent = match.groups(b"")
    digits = whole + fraction
    significant = digits.rstrip(b"0")
    if not significant:
        return True
    if len(exponent) > 12:  # more than any body has digits
        return sign != b"-"
    shift = int(sign + (exponent or b"0"))
    return shift + len(digits) - len(significant) >= len(fraction)


def _check_id(raw: bytes) -> None:
    """Refuses what is no id; neither it nor one that is too long is repeated in the answer."""
    if not is_id(raw):
        raise ProtocolError("INVALID_REQUEST", "id must be a string or an integer")
    if len(raw) > MAX_ID_BYTES:
        raise ProtocolError("INVALID_REQUEST", f"id must not be longer than {MAX_ID_BYTES} bytes")


def _odd_message(body: bytes) -> Response:
    """Returns a posted response; raises ProtocolError for any other message that is not a request."""
    try:
        envelope = _envelope(body)
    except msgspec.ValidationError:
        batch = body.lstrip()[:1] == b"["
        detail = (
            "the body must be one JSON-RPC message, and is a batch"
            if batch
            else "the body must be one JSON-RPC message, and is not an object"
        )
        raise ProtocolError("INVALID_REQUEST", detail) from None
    message_id = bytes(envelope.id)
    is_response = not envelope.method and bool(envelope.result) != bool(envelope.error)
    if message_id and not (is_response and message_id == b"null"):
        _check_id(message_id)
    known_id = message_id if is_id(message_id) else None
    if string(bytes(envelope.jsonrpc)) != "2.0":
        raise ProtocolError("INVALID_REQUEST", 'jsonrpc must be "2.0"', known_id)
    if is_response:
        return Response(known_id)
    raise ProtocolError("INVALID_REQUEST", _method_fault(envelope), known_id)


def _method_fault(envelope: _Envelope) -> str:
    if not envelope.method:
        return "method is missing"
    if envelope.result or envelope.error:
        return "a message has either method, result or error"
    return "method must be a string"


def string(raw: bytes) -> str | None:
    """Decodes the JSON text of a string; None where it is anything else."""
    if raw[:1] != b'"':
        return None
    decoded: str = msgspec.json.decode(raw, type=str)
    return decoded
