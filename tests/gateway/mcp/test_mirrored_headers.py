"""gateway/mcp/mirrored_headers.py: the ladder of 2026-07-28."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.body import each, gathered
from gateway.mcp.jsonrpc import Message, ProtocolError, decode
from gateway.mcp.mirrored_headers import Mirrored, check_modern, decode_value
from gateway.mcp.params import meta_of
from gateway.mcp.revisions import SUPPORTED

CLAIM = '"io.modelcontextprotocol/protocolVersion":"2026-07-28"'
CAPABLE = '"io.modelcontextprotocol/clientCapabilities":{}'
GOOD = f"{CLAIM},{CAPABLE}"


def request(meta: str = GOOD, method: str = "tools/call", params: str = '"name":"echo"') -> Message:
    members = ",".join(filter(None, [params, f'"_meta":{{{meta}}}' if meta is not None else ""]))
    message = decode(f'{{"jsonrpc":"2.0","id":"abc","method":"{method}","params":{{{members}}}}}'.encode())
    assert isinstance(message, Message)
    return message


def headers(
    *more: tuple[bytes, bytes],
    version: bytes | None = b"2026-07-28",
    method: bytes | None = b"tools/call",
    name: bytes | None = b"echo",
) -> Mirrored:
    mirrored = [(b"mcp-protocol-version", version), (b"mcp-method", method), (b"mcp-name", name)]
    raw = [(b"host", b"x"), *((key, value) for key, value in mirrored if value is not None), *more]
    scope = {"headers": raw}
    return Mirrored(*(each(scope, gathered(scope), key) for key, _ in mirrored))


READ = request(method="resources/read", params='"uri":"a://b"')
UNKNOWN = request(meta=GOOD.replace("2026-07-28", "v999.0.0"))


def check(raw: Mirrored, message: Message) -> tuple[str, str] | None:
    try:
        check_modern(raw, message, meta_of(message))
    except ProtocolError as error:
        refused = error
    else:
        return None
    assert (refused.id, refused.status) == (b'"abc"', 400)
    return refused.reason, refused.detail


def reason(raw: Mirrored, message: Message) -> str | None:
    refused = check(raw, message)
    return refused[0] if refused else None


def test_a_good_request_passes():
    assert check(headers(), request()) is None
    assert check(headers(name=None, method=b"tools/list"), request(method="tools/list", params="")) is None
    assert check(headers(name=b"  echo\t", version=b" 2026-07-28 "), request()) is None
    assert check(headers((b"mcp-param-region", b"kr"), (b"mcp-session-id", b"x")), request()) is None


@pytest.mark.parametrize(
    ("raw", "message", "expected"),
    [
        # Repeated routing headers come before everything.
        (headers((b"mcp-protocol-version", b"2025-11-25")), request(meta=""), "HEADER_MISMATCH"),
        (headers((b"mcp-method", b"tools/list")), request(meta=""), "HEADER_MISMATCH"),
        (headers((b"mcp-name", b"other")), request(meta=""), "HEADER_MISMATCH"),
        # What is said twice alike counts once.
        (headers((b"mcp-protocol-version", b"2026-07-28")), request(), None),
        (headers((b"mcp-method", b"tools/call"), (b"mcp-name", b"echo")), request(), None),
        # Then what _meta has to hold, before any header is compared.
        (headers(), request(meta=""), "INVALID_PARAMS"),
        (headers(), request(meta=CAPABLE), "INVALID_PARAMS"),
        (headers(), request(meta=CLAIM), "INVALID_PARAMS"),
        (headers(version=None, method=None, name=None), request(meta=CLAIM), "INVALID_PARAMS"),
        (headers(version=b"1999-01-01"), request(meta=CLAIM), "INVALID_PARAMS"),
        (headers(), request(meta=f'"io.modelcontextprotocol/protocolVersion":5,{CAPABLE}'), "INVALID_PARAMS"),
        (headers(), request(meta=f'{CLAIM},"io.modelcontextprotocol/clientCapabilities":[]'), "INVALID_PARAMS"),
        (headers(), request(meta=f'{GOOD},"io.modelcontextprotocol/logLevel":"loud"'), "INVALID_PARAMS"),
        (headers(), request(meta=f'{GOOD},"io.modelcontextprotocol/logLevel":7'), "INVALID_PARAMS"),
        (headers(), request(meta=f'{GOOD},"progressToken":{{}}'), "INVALID_PARAMS"),
        (headers(), request(meta=f'{GOOD},"io.modelcontextprotocol/logLevel":"info"'), None),
        # Then the headers.
        (headers(version=None), request(), "HEADER_MISMATCH"),
        (headers(version=b"2025-11-25"), request(), "HEADER_MISMATCH"),
        (headers(), request(meta=GOOD.replace("2026-07-28", "2025-11-25")), "HEADER_MISMATCH"),
        (headers(), UNKNOWN, "HEADER_MISMATCH"),
        (headers(method=None), request(), "HEADER_MISMATCH"),
        (headers(method=b"tools/list"), request(), "HEADER_MISMATCH"),
        (headers(method=b"TOOLS/CALL"), request(), "HEADER_MISMATCH"),
        (headers(name=None), request(), "HEADER_MISMATCH"),
        (headers(name=b"Echo"), request(), "HEADER_MISMATCH"),
        (headers(name=b""), request(), "HEADER_MISMATCH"),
        (headers(method=b"prompts/get", name=None), request(method="prompts/get"), "HEADER_MISMATCH"),
        (
            headers(method=b"resources/read"),
            request(method="resources/read", params='"uri":"a://b"'),
            "HEADER_MISMATCH",
        ),
        (
            headers(method=b"resources/read", name=b"a://b"),
            request(method="resources/read", params='"uri":"a://b"'),
            None,
        ),
        # A method without a name, and a name that the method itself has to refuse.
        (headers(method=b"tools/list", name=b"echo"), request(method="tools/list", params=""), None),
        (headers(name=None), request(params=""), None),
        (headers(), request(params='"name":5'), None),
        # The version comes last.
        (
            headers(version=b"v999.0.0"),
            request(meta=GOOD.replace("2026-07-28", "v999.0.0")),
            "UNSUPPORTED_PROTOCOL_VERSION",
        ),
    ],
)
def test_the_ladder(raw, message, expected):
    assert reason(raw, message) == expected


def test_faults_name_what_is_missing():
    assert check(headers(), request(meta=CAPABLE)) == (
        "INVALID_PARAMS",
        "params._meta must have io.modelcontextprotocol/protocolVersion",
    )
    assert check(headers(), request(meta=CLAIM)) == (
        "INVALID_PARAMS",
        "params._meta must have io.modelcontextprotocol/clientCapabilities",
    )


def test_an_unsupported_version_is_told_what_is_supported():
    message = request(meta=GOOD.replace("2026-07-28", "2099-01-01"))
    with pytest.raises(ProtocolError) as caught:
        check_modern(headers(version=b"2099-01-01"), message, meta_of(message))
    assert caught.value.facts == {
        "supported": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
        "requested": "2099-01-01",
    }


@pytest.mark.parametrize("version", [b"2026-05-11", b"v1", b"", b"\xff"])
@pytest.mark.parametrize("meta", ["", CAPABLE, '"progressToken":1'])
def test_an_unknown_version_without_meta_is_named_rather_than_what_meta_lacks(version, meta):
    message = request(meta=meta)
    with pytest.raises(ProtocolError) as caught:
        check_modern(headers(version=version), message, meta_of(message))
    assert (caught.value.reason, caught.value.status) == ("UNSUPPORTED_PROTOCOL_VERSION", 400)
    assert caught.value.facts == {"requested": version.decode("latin-1"), "supported": list(SUPPORTED)}


@pytest.mark.parametrize(
    ("value", "name", "passes"),
    [
        ("=?base64?64+E6rWs?=", "도구", True),
        ("=?base64?SGVsbG8=?=", "Hello", True),
        ("=?base64??=", "", True),
        ("SGVsbG8=", "SGVsbG8=", True),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8=", True),
        ("=?BASE64?64+E6rWs?=", "도구", False),
        ("=?BASE64?64+E6rWs?=", "=?BASE64?64+E6rWs?=", True),
        ("=?base64?SGVsbG8?=", "Hello", False),
        ("=?base64?SGVs!!!bG8=?=", "Hello", False),
        ("=?base64?SGVsbG9=?=", "Hello", False),
        ("=?base64?/w==?=", "\\u00ff", False),
        ("=?base64?SGVsbG8=?=", "=?base64?SGVsbG8=?=", False),
    ],
)
def test_names_outside_ascii_come_in_base64(value, name, passes):
    message = request(params=f'"name":"{name}"')
    assert reason(headers(name=value.encode()), message) == (None if passes else "HEADER_MISMATCH")


@pytest.mark.parametrize("name", ["도구", "é"])
def test_raw_text_outside_ascii_is_refused(name):
    message = request(params=f'"name":"{name}"')
    assert reason(headers(name=name.encode()), message) == "HEADER_MISMATCH"
    if name == "é":
        assert reason(headers(name=name.encode("latin-1")), message) == "HEADER_MISMATCH"


@given(st.text())
def test_every_name_passes_in_base64(name):
    assert decode_value(f"=?base64?{base64.b64encode(name.encode()).decode()}?=") == name


@given(st.text(alphabet=st.characters(min_codepoint=0, max_codepoint=255)))
def test_any_value_is_read(value):
    decode_value(value)
