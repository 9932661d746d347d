"""The request headers that modern MCP clients mirror from the body, and the ladder that holds both together. Pure."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gateway.mcp.jsonrpc import Message, ProtocolError, string
from gateway.mcp.params import CLIENT_CAPABILITIES, PROTOCOL_VERSION, Meta
from gateway.mcp.revisions import LATEST, SUPPORTED

VERSION = "mcp-protocol-version"
METHOD = "mcp-method"
NAME = "mcp-name"

# The parameter that Mcp-Name repeats, by method.
_NAMED_BY: Mapping[str, str] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_LOG_LEVELS = frozenset({"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"})
_MAX_SHOWN = 100
_VISIBLE = re.compile(r"[\t\x20-\x7e]*")
_SENTINEL = re.compile(r"=\?base64\?(.*)\?=")


class _Named(msgspec.Struct):
    name: Raw = Raw(b"")
    uri: Raw = Raw(b"")


_named = msgspec.json.Decoder(_Named).decode


class Mirrored(NamedTuple):
    """The values of every line of the headers that repeat what the body says."""

    versions: Sequence[str]
    methods: Sequence[str]
    names: Sequence[str]


def check_modern(sent: Mirrored, message: Message, meta: Meta) -> None:
    """Holds a modern request's headers against its body, in the order of the official SDK.

    Raises ProtocolError with status 400: HEADER_MISMATCH for a repeated routing header, UNSUPPORTED_PROTOCOL_VERSION
    (facts: `supported`, `requested`) for a header that names a revision which nobody serves where `_meta` names none,
    INVALID_PARAMS for `_meta` without what each request must say, HEADER_MISMATCH for headers that are missing or say
    something else, then UNSUPPORTED_PROTOCOL_VERSION for the version of `_meta`.
    """
    for name, lines in zip((VERSION, METHOD, NAME), sent, strict=True):
        if len(lines) > 1:
            raise _mismatch(message, f"the {name} header is repeated")
    version = sent.versions[0] if sent.versions else None
    if version is not None and version != LATEST and not meta.claims_version:
        raise _unsupported(message, version)
    _check_meta(message, meta)
    if version != meta.protocol_version:
        raise _mismatch(message, "the mcp-protocol-version header is not the version of params._meta")
    if not sent.methods or sent.methods[0] != message.method:
        raise _mismatch(message, "the mcp-method header is not the method of the body")
    _check_name(message, sent.names)
    if meta.protocol_version != LATEST:
        raise _unsupported(message, meta.protocol_version)


def decode_value(value: str) -> str | None:
    """Decodes a mirrored value: as is, or `=?base64?…?=` around the base64 of UTF-8. None where it is malformed."""
    if not _VISIBLE.fullmatch(value):
        return None
    match = _SENTINEL.fullmatch(value)
    if match is None:
        return value
    try:
        decoded = base64.b64decode(match[1], validate=True)
        # The one canonical form only: padding there, unused bits zero.
        return decoded.decode() if base64.b64encode(decoded).decode() == match[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _check_meta(message: Message, meta: Meta) -> None:
    fault = meta.fault
    if not fault and not meta.claims_version:
        fault = f"params._meta must have {PROTOCOL_VERSION}"
    elif not fault and not meta.client_capabilities:
        fault = f"params._meta must have {CLIENT_CAPABILITIES}"
    elif not fault and meta.protocol_version is None:
        fault = f"{PROTOCOL_VERSION} must be a string"
    elif not fault and meta.client_capabilities[:1] != b"{":
        fault = f"{CLIENT_CAPABILITIES} must be an object"
    elif not fault and meta.log_level and string(meta.log_level) not in _LOG_LEVELS:
        fault = "the log level is unknown"
    if fault:
        raise ProtocolError("INVALID_PARAMS", fault, message.id)


def _check_name(message: Message, lines: Sequence[str]) -> None:
    member = _NAMED_BY.get(message.method)
    if member is None:
        return
    named = _named(message.params)
    body_name = string(bytes(named.name if member == "name" else named.uri))
    if body_name is None:
        return  # the parameters have no such name: the method itself says so
    if not lines or decode_value(lines[0]) != body_name:
        raise _mismatch(message, f"the mcp-name header is not params.{member} of the body")


def _unsupported(message: Message, requested: str | None) -> ProtocolError:
    facts = {"supported": list(SUPPORTED), "requested": (requested or "")[:_MAX_SHOWN]}
    return ProtocolError("UNSUPPORTED_PROTOCOL_VERSION", "the protocol version is not served", message.id, facts)


def _mismatch(message: Message, detail: str) -> ProtocolError:
    return ProtocolError("HEADER_MISMATCH", detail, message.id)
