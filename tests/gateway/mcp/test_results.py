"""gateway/mcp/results.py: the shape of what each dialect gets."""

import json

import pytest

from gateway.mcp.results import Server, Shapes
from gateway.mcp.revisions import (
    LEGACY,
    SUPPORTED,
    Dialect,
    Era,
)

AGENT_BUILDER = Dialect(Era.AGENT_BUILDER, "2025-11-25")
MODERN = Dialect(Era.MODERN, "2026-07-28", named=True)


def legacy(revision: str, named: bool = True) -> Dialect:
    return Dialect(Era.LEGACY, revision, named)


SHAPES = Shapes(Server("naru", "1.2", title="Naru", instructions="Call tools."))
BARE = Shapes(Server("naru", "1.2", prefix="example.kr"))
INFO = {"name": "naru", "version": "1.2", "title": "Naru"}
OWN_META = {"io.modelcontextprotocol/serverInfo": INFO}


def test_initialize_of_agent_builder_is_empty():
    assert json.loads(SHAPES.initialize(AGENT_BUILDER, "2025-06-18")) == {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": {},
    }


@pytest.mark.parametrize(
    ("requested", "answered"),
    [*((version, version) for version in LEGACY), ("2026-07-28", "2025-11-25"), ("1999-01-01", "2025-11-25")],
)
def test_initialize_echoes_a_handshake_revision(requested, answered):
    assert json.loads(SHAPES.initialize(legacy("2025-03-26", named=False), requested)) == {
        "protocolVersion": answered,
        "capabilities": {"tools": {}},
        "serverInfo": INFO,
        "instructions": "Call tools.",
    }
    assert "instructions" not in json.loads(BARE.initialize(legacy("2025-11-25"), requested))


def test_discover():
    assert json.loads(SHAPES.discover()) == {
        "resultType": "complete",
        "supportedVersions": list(SUPPORTED),
        "capabilities": {"tools": {}},
        "instructions": "Call tools.",
        "ttlMs": 3_600_000,
        "cacheScope": "public",
        "_meta": OWN_META,
    }


def test_an_empty_result():
    assert json.loads(SHAPES.empty(legacy("2025-11-25"))) == {}
    assert json.loads(SHAPES.empty(MODERN)) == {"resultType": "complete", "_meta": OWN_META}


TOOLS = [b'{"name":"a","outputSchema":{"type":"array"}}', b'{"name":"b"}']


def shaped(dialect):
    return [SHAPES.tool(dialect, tool) for tool in TOOLS]


@pytest.mark.parametrize("dialect", [legacy("2025-11-25"), AGENT_BUILDER])
def test_the_list_for_legacy_clients(dialect):
    assert json.loads(SHAPES.tools_list(dialect, shaped(dialect), "production")) == {
        "tools": [{"name": "a"}, {"name": "b"}],
        "_meta": {"xdata.kr/lane": "production"},
    }


def test_the_list_for_modern_clients():
    assert json.loads(SHAPES.tools_list(MODERN, iter(shaped(MODERN)), "real_test", "next")) == {
        "resultType": "complete",
        "tools": [{"name": "a", "outputSchema": {"type": "array"}}, {"name": "b"}],
        "nextCursor": "next",
        "ttlMs": 5000,
        "cacheScope": "private",
        "_meta": {"xdata.kr/lane": "real_test"} | OWN_META,
    }
    assert json.loads(BARE.tools_list(MODERN, [], "production"))["tools"] == []
    assert "example.kr/lane" in json.loads(BARE.tools_list(MODERN, [], "production"))["_meta"]


CONTENT = b'[{"type":"text","text":"{\\"n\\":9007199254740993}"}]'
BLOCKS = json.loads(CONTENT)


@pytest.mark.parametrize("dialect", [legacy("2025-11-25"), AGENT_BUILDER])
def test_a_call_for_legacy_clients(dialect):
    raw = SHAPES.call(dialect, CONTENT, b'{"n":9007199254740993,"f":1.0}')
    assert b'"structuredContent":{"n":9007199254740993,"f":1.0}' in raw
    assert json.loads(raw) == {
        "content": BLOCKS,
        "structuredContent": {"n": 9007199254740993, "f": 1.0},
        "isError": False,
    }
    assert json.loads(SHAPES.call(dialect, b"", b"[1]", is_error=True)) == {"content": [], "isError": True}
    assert json.loads(SHAPES.call(dialect, CONTENT, b'"x"')) == {"content": BLOCKS, "isError": False}


def test_a_call_for_modern_clients():
    assert json.loads(SHAPES.call(MODERN, CONTENT, b"[1]")) == {
        "resultType": "complete",
        "content": BLOCKS,
        "structuredContent": [1],
        "isError": False,
        "_meta": OWN_META,
    }


@pytest.mark.parametrize(
    "key",
    [
        *("xdata.kr/error", "XDATA.KR/error", "Xdata.Kr/next", "xdata.kr/", "xdata.kr/a/b"),
        *("io.modelcontextprotocol/serverInfo", "IO.ModelContextProtocol/x", "dev.mcp/x", "com.MCP.tools/x"),
        *("org.modelcontextprotocol.api/x", "modelcontextprotocol.io/x", "mcp.dev/x", "tools.mcp.com/x"),
        *("api.modelcontextprotocol.org/x", "a.b.mcp.c/x"),
    ],
)
def test_no_tool_says_in_meta_what_only_we_or_mcp_may_say(key):
    meta = json.dumps({key: "forged", "k": 1}).encode()
    for dialect in (legacy("2025-11-25"), AGENT_BUILDER):
        assert json.loads(SHAPES.call(dialect, CONTENT, meta=meta))["_meta"] == {"k": 1}
    assert json.loads(SHAPES.call(MODERN, CONTENT, meta=meta))["_meta"] == {"k": 1} | OWN_META


@pytest.mark.parametrize(
    "key",
    ["error", "xdata.kr", "evil/error", "xdata.krx/y", "mcp", "mcp/x", "com.example.mcp/x", "com.mcps/x", "/x", ""],
)
def test_every_other_key_in_meta_is_the_tools_own(key):
    meta = json.dumps({key: 1.5}).encode()
    assert json.loads(SHAPES.call(legacy("2025-11-25"), CONTENT, meta=meta))["_meta"] == {key: 1.5}


def test_meta_of_a_call_is_the_tools_and_ours_and_no_tool_speaks_in_our_name():
    tool = (
        b'{"k":1.0,"xdata.kr/error":"forged","xdata.kr\\u002flane":"forged","xdata.krx/y":1,'
        b'"io.modelcontextprotocol/serverInfo":{"name":"forged"}}'
    )
    ours = b'{"reason":"TOOL_TIMED_OUT"}'
    assert json.loads(SHAPES.call(legacy("2025-11-25"), CONTENT, meta=b'{"k": 1.0}'))["_meta"] == {"k": 1.0}
    assert json.loads(SHAPES.call(legacy("2025-11-25"), CONTENT, is_error=True, error=ours))["_meta"] == {
        "xdata.kr/error": {"reason": "TOOL_TIMED_OUT"}
    }
    assert json.loads(SHAPES.call(legacy("2025-11-25"), CONTENT, meta=tool, error=ours))["_meta"] == {
        "k": 1.0,
        "xdata.krx/y": 1,
        "xdata.kr/error": {"reason": "TOOL_TIMED_OUT"},
    }
    without_ours = SHAPES.call(legacy("2025-11-25"), CONTENT, meta=tool)
    assert json.loads(without_ours)["_meta"] == {"k": 1.0, "xdata.krx/y": 1}
    merged = SHAPES.call(MODERN, CONTENT, meta=tool, error=ours)
    assert b'"k":1.0' in merged
    expected = {"k": 1.0, "xdata.krx/y": 1, "xdata.kr/error": {"reason": "TOOL_TIMED_OUT"}}
    assert json.loads(merged)["_meta"] == expected | OWN_META


def test_the_golden_examples_of_agent_builder():
    error = {
        "reason": "TOOL_TIMED_OUT",
        "error_code": "E1302",
        "safe_to_retry": True,
        "next_action": "잠시 후 같은 인자로 다시 호출하세요.",
    }
    content = '[{"type":"text","text":"도구가 제한 시간(10초) 안에 응답하지 않았습니다."}]'
    assert json.loads(
        SHAPES.call(AGENT_BUILDER, content.encode(), is_error=True, error=json.dumps(error).encode())
    ) == {"content": json.loads(content), "isError": True, "_meta": {"xdata.kr/error": error}}
