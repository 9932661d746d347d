"""The parameters of the methods that Naru serves, as typed structures over the raw text. Pure."""

import re

import msgspec
from msgspec import Raw, field

from gateway.mcp.jsonrpc import MAX_ID_BYTES, Message, ProtocolError, is_id, string

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

_ABSENT = Raw(b"")
# Some clients write out every member that they could have sent.
_NULL = b"null"
# How msgspec words what it refuses.
_MISSING = re.compile(r"missing required field `(.+)`")
_PLACE = re.compile(r" - at `\$(.*)`$")


class Meta(msgspec.Struct, frozen=True):
    """The content of `params._meta`. Reading it never fails: `fault` says what is wrong with it, if anything.

    `progress_token`, `client_capabilities` and `log_level` are JSON text (the token a string or an integral number),
    empty or None where absent. `claims_version` says that a protocol version is there, whatever its type.
    """

    progress_token: bytes | None = None
    protocol_version: str | None = None
    claims_version: bool = False
    client_capabilities: bytes = b""
    log_level: bytes = b""
    traceparent: str = ""
    tracestate: str = ""
    fault: str = ""


class CallToolParams(msgspec.Struct, frozen=True):
    """`arguments` is the JSON text of an object as sent, b"" where absent."""

    name: str
    arguments: bytes


class _Members(msgspec.Struct):
    token: Raw = field(name="progressToken", default=_ABSENT)
    version: Raw = field(name=PROTOCOL_VERSION, default=_ABSENT)
    capabilities: Raw = field(name=CLIENT_CAPABILITIES, default=_ABSENT)
    log_level: Raw = field(name=LOG_LEVEL, default=_ABSENT)
    traceparent: Raw = _ABSENT
    tracestate: Raw = _ABSENT


class _WithMeta(msgspec.Struct):
    meta: Raw = field(name="_meta", default=_ABSENT)


class _CallTool(msgspec.Struct):
    name: str
    arguments: Raw = _ABSENT


class _ListTools(msgspec.Struct):
    cursor: str | None = None


class _Initialize(msgspec.Struct):
    version: str = field(name="protocolVersion")


NO_META = Meta()

_with_meta = msgspec.json.Decoder(_WithMeta).decode
_members = msgspec.json.Decoder(_Members).decode
_call_tool = msgspec.json.Decoder(_CallTool).decode
_list_tools = msgspec.json.Decoder(_ListTools).decode
_initialize = msgspec.json.Decoder(_Initialize).decode


def meta_of(message: Message) -> Meta:
    """Reads `params._meta`; NO_META where there is none."""
    params = message.params
    if b'"_meta"' not in params and b"\\u" not in params:  # a key may be written with escapes
        return NO_META
    raw = bytes(_with_meta(params).meta)
    if not raw or raw == _NULL:
        return NO_META
    if raw[:1] != b"{":
        return Meta(fault="params._meta must be an object")
    members = _members(raw)
    token = bytes(members.token)
    token = b"" if token == _NULL else token
    fault = "" if not token or is_id(token) else "params._meta.progressToken must be a string or an integer"
    if len(token) > MAX_ID_BYTES:
        fault = f"params._meta.progressToken must not be longer than {MAX_ID_BYTES} bytes"
    return Meta(
        progress_token=token if token and not fault else None,
        protocol_version=string(bytes(members.version)),
        claims_version=bool(members.version),
        client_capabilities=bytes(members.capabilities),
        log_level=bytes(members.log_level),
        traceparent=string(bytes(members.traceparent)) or "",
        tracestate=string(bytes(members.tracestate)) or "",
        fault=fault,
    )


def call_tool_params(message: Message, meta: Meta) -> CallToolParams:
    """Reads the parameters of `tools/call`. Raises ProtocolError INVALID_PARAMS."""
    _check_meta(message, meta)
    try:
        params = _call_tool(message.params)
    except msgspec.ValidationError as invalid:
        raise _invalid(message, invalid) from None
    arguments = bytes(params.arguments)
    if arguments and arguments[:1] != b"{":
        raise ProtocolError("INVALID_PARAMS", "params.arguments must be an object", message.id, status=200)
    return CallToolParams(params.name, arguments)


def list_tools_cursor(message: Message, meta: Meta) -> str | None:
    """Reads the cursor of `tools/list`: None asks for the first page. Raises ProtocolError INVALID_PARAMS."""
    _check_meta(message, meta)
    try:
        return _list_tools(message.params).cursor
    except msgspec.ValidationError as invalid:
        raise _invalid(message, invalid) from None


def initialize_version(message: Message, meta: Meta) -> str:
    """Reads the revision that `initialize` asks for. Raises ProtocolError INVALID_PARAMS."""
    _check_meta(message, meta)
    try:
        return _initialize(message.params).version
    except msgspec.ValidationError as invalid:
        raise _invalid(message, invalid) from None


def _check_meta(message: Message, meta: Meta) -> None:
    if meta.fault:
        raise ProtocolError("INVALID_PARAMS", meta.fault, message.id, status=200)


def _invalid(message: Message, invalid: msgspec.ValidationError) -> ProtocolError:
    """Turns msgspec's sentence into ours. Every member that is read by its type is a string."""
    missing = _MISSING.search(str(invalid))
    if missing is not None:
        detail = f"params.{missing[1]} is missing"
    else:
        place = _PLACE.search(str(invalid))
        detail = f"params{place[1] if place else ''} must be a string"
    return ProtocolError("INVALID_PARAMS", detail, message.id, status=200)
