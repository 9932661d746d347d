"""gateway/mcp/params.py: parameters and `_meta`, with faults that name the member."""

import json

import pytest

from gateway.mcp.jsonrpc import Message, ProtocolError
from gateway.mcp.params import (
    NO_META,
    CallToolParams,
    Meta,
    call_tool_params,
    initialize_version,
    list_tools_cursor,
    meta_of,
)


def message(params: str | bytes, method: str = "tools/call") -> Message:
    return Message(b"5", method, params.encode() if isinstance(params, str) else params)


def with_meta(raw: str) -> Message:
    return message(f'{{"_meta":{raw}}}')


def fault(read, params: str, meta: Meta = NO_META) -> str:
    with pytest.raises(ProtocolError) as caught:
        read(message(params), meta)
    assert (caught.value.reason, caught.value.id, caught.value.status) == ("INVALID_PARAMS", b"5", 200)
    return caught.value.detail


def test_call_params_keep_arguments_as_sent():
    params = '{"arguments":{"b":1.0, "a":9007199254740993,"x":1E400},"task":{},"name":"text_stats"}'
    assert call_tool_params(message(params), NO_META) == CallToolParams(
        "text_stats", b'{"b":1.0, "a":9007199254740993,"x":1E400}'
    )
    assert call_tool_params(message('{"name":"\\u0065cho\\n"}'), NO_META) == CallToolParams("echo\n", b"")


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ("{}", "name"),
        ('{"name":5}', "params.name"),
        ('{"name":null}', "params.name"),
        ('{"name":"x","arguments":[]}', "params.arguments"),
        ('{"name":"x","arguments":null}', "params.arguments"),
        ('{"name":"x","arguments":"s3cret"}', "params.arguments"),
    ],
)
def test_call_params_that_have_another_shape_are_named(params, names):
    detail = fault(call_tool_params, params)
    assert names in detail
    assert "s3cret" not in detail


def test_cursors():
    assert list_tools_cursor(message("{}"), NO_META) is None
    assert list_tools_cursor(message('{"cursor":""}'), NO_META) == ""
    assert list_tools_cursor(message('{"cursor":"b2Zm"}'), NO_META) == "b2Zm"
    assert "params.cursor" in fault(list_tools_cursor, '{"cursor":5}')


def test_initialize_version():
    assert initialize_version(message('{"protocolVersion":"2025-06-18","capabilities":{}}'), NO_META) == "2025-06-18"
    assert "protocolVersion" in fault(initialize_version, "{}")
    assert "params.protocolVersion" in fault(initialize_version, '{"protocolVersion":5}')


def test_meta():
    meta = meta_of(
        message(
            json.dumps(
                {
                    "_meta": {
                        "progressToken": 0,
                        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                        "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
                        "io.modelcontextprotocol/logLevel": "info",
                        "traceparent": "00-a-b-01",
                        "tracestate": "x=1",
                        "unknown": [1],
                    }
                }
            )
        )
    )
    assert meta == Meta(
        progress_token=b"0",
        protocol_version="2026-07-28",
        claims_version=True,
        client_capabilities=b'{"sampling": {}}',
        log_level=b'"info"',
        traceparent="00-a-b-01",
        tracestate="x=1",
    )


def test_meta_under_an_escaped_key_is_seen():
    assert meta_of(message('{"\\u005fmeta":{"progressToken":"t"}}')).progress_token == b'"t"'
    assert meta_of(message('{"_\\u006deta":{"progress\\u0054oken":"t"}}')).progress_token == b'"t"'


@pytest.mark.parametrize("params", ["{}", '{"name":"_meta"}', '{"arguments":{"_meta":{"progressToken":1}}}'])
def test_meta_elsewhere_is_not_meta(params):
    assert meta_of(message(params)) == NO_META


@pytest.mark.parametrize("token", ['""', '"t-1"', "0", "-5", "9007199254740993", "1.0", '"토큰"'])
def test_progress_tokens_keep_their_text(token):
    assert meta_of(with_meta(f'{{"progressToken":{token}}}')).progress_token == token.encode()


def test_a_progress_token_that_every_frame_would_repeat_is_bounded():
    assert meta_of(with_meta('{"progressToken":"%s"}' % ("t" * 4094))).fault == ""
    meta = meta_of(with_meta('{"progressToken":"%s"}' % ("t" * 4095)))
    assert meta.fault == "params._meta.progressToken must not be longer than 4096 bytes"
    assert meta.progress_token is None


@pytest.mark.parametrize("token", ["true", "1.5", "{}", "[]"])
def test_a_progress_token_of_another_type_is_a_fault(token):
    meta = meta_of(with_meta(f'{{"progressToken":{token}}}'))
    assert meta.progress_token is None
    assert "progressToken" in fault(call_tool_params, '{"name":"x"}', meta)


@pytest.mark.parametrize("raw", ["false", "[]", '"x"', "5"])
def test_meta_that_is_no_object_is_a_fault(raw):
    meta = meta_of(with_meta(raw))
    assert "params._meta" in fault(list_tools_cursor, "{}", meta)
    assert not meta.claims_version


def test_null_is_how_some_clients_write_what_is_absent():
    assert meta_of(with_meta("null")) == NO_META
    assert meta_of(with_meta('{"progressToken":null}')) == Meta()


def test_values_of_other_types_in_meta_are_told_apart_from_absent_ones():
    meta = meta_of(message('{"_meta":{"io.modelcontextprotocol/protocolVersion":5,"traceparent":7}}'))
    assert meta.claims_version
    assert meta.protocol_version is None
    assert (meta.traceparent, meta.fault) == ("", "")
