"""The Agent Builder v0.2 contract, to the letter. The golden files are its own examples."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pair import Pair
from tests.support.scripted_endpoint import Script
from tests.support.speaker import AGENT_BUILDER, Json
from tests.support.wire import Header, Reply

pytestmark = pytest.mark.asyncio(loop_scope="session")

GOLDEN = Path(__file__).with_name("agentbuilder_v0_2")
ERROR_KEY = "xdata.kr/error"
STATS_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


def golden_bytes(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def golden(name: str) -> Any:
    return json.loads(golden_bytes(name))


async def post(pair: Pair, body: bytes | str, *extra: Header) -> Reply:
    return await pair.post(body, *extra, accept="application/json")


def check_fresh(reply: Reply, status: int = 200) -> None:
    """Asserts what holds for every answer: it is JSON, whole, and has no session."""
    assert reply.status == status, reply
    assert reply.header("content-type") == "application/json"
    assert reply.header("content-length") == str(len(reply.body))
    assert reply.header("mcp-session-id") is None


@pytest.fixture(scope="module")
def text_stats(pair: Pair) -> Pair:
    """The tool of the examples: 1.0.0 answers, 2.0.0 never does."""
    _, first = pair.definition(
        Script(chunks=[b'{"characters":5}']), "text_stats",
        inputSchema=STATS_SCHEMA, annotations={"idempotentHint": True},
    )  # fmt: skip
    _, second = pair.definition(
        "/hang", "text_stats", version="2.0.0", active=False, timeout="300ms",
        inputSchema=STATS_SCHEMA, annotations={"idempotentHint": True},
    )  # fmt: skip
    pair.admin.apply({"tools": [first, second]})
    return pair


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json-rpc", "Application/JSON; charset=UTF-8"]
)
async def test_initialize(pair: Pair, content_type: str):
    reply = await post(pair, golden_bytes("initialize-request"), ("Content-Type", content_type))
    check_fresh(reply)
    assert reply.json == golden("initialize-response")


@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05", "2026-07-28", "1999-01-01", "x"])
async def test_the_version_header_is_ignored(pair: Pair, version: str):
    reply = await post(pair, golden_bytes("initialize-request"), ("MCP-Protocol-Version", version))
    check_fresh(reply)
    assert reply.json == golden("initialize-response")


@pytest.mark.parametrize("asked", ["2024-11-05", "2025-06-18", "1999-01-01"])
async def test_initialize_returns_its_one_version_whatever_was_asked_for(pair: Pair, asked: str):
    request = golden("initialize-request")
    request["params"]["protocolVersion"] = asked
    assert (await post(pair, json.dumps(request))).json == golden("initialize-response")


@pytest.mark.parametrize(
    "accept",
    ["application/json", "Application/JSON;q=0.5", "application/json, text/plain", "text/html, application/json"],
)
async def test_who_is_agent_builder_is_told_by_accept_alone(pair: Pair, accept: str):
    reply = await pair.post(golden_bytes("initialize-request"), accept=accept)
    assert reply.json == golden("initialize-response")


@pytest.mark.parametrize(
    "accept", ["*/*", "application/json, */*;q=0.1", "application/json, text/event-stream", "text/event-stream", None]
)
async def test_its_empty_server_info_never_reaches_a_client_that_admits_more(pair: Pair, accept: str | None):
    result = (await pair.post(golden_bytes("initialize-request"), accept=accept)).result
    assert result["serverInfo"]["name"]
    assert result["serverInfo"]["version"]
    assert result["capabilities"] == {"tools": {}}


async def test_initialized_is_accepted_without_a_body(pair: Pair):
    reply = await post(pair, golden_bytes("initialized-notification"))
    assert (reply.status, reply.body) == (202, b"")
    assert reply.header("content-type") is None
    assert reply.header("mcp-session-id") is None


async def test_tools_call(text_stats: Pair):
    text_stats.admin.activate("text_stats", "1.0.0")
    reply = await post(text_stats, golden_bytes("tools-call-request"))
    check_fresh(reply)
    assert reply.json == golden("tools-call-success-response")
    # No initialize, no initialized, no version: the registry alone knows which version runs.
    call = text_stats.admin.get_call(reply.header("x-naru-call-id") or "")
    assert (call.tool, call.version, call.lane) == ("text_stats", "1.0.0", "production")


async def test_the_endpoint_gets_the_arguments_byte_for_byte(pair: Pair):
    tool = pair.tool("/echo")
    request = golden_bytes("tools-call-request").replace(b"text_stats", tool.name.encode())
    await post(pair, request)
    start = request.index(b'"arguments": ') + len('"arguments": ')
    assert pair.requests(tool)[0].body == request[start : request.index(b"}", start) + 1]


async def test_a_tool_that_times_out(text_stats: Pair):
    text_stats.admin.activate("text_stats", "2.0.0")
    reply = await post(text_stats, golden_bytes("tools-call-request"))
    check_fresh(reply)
    answer, expected = reply.json, golden("tools-call-execution-error-response")
    # Sentences may differ, fields may not.
    text, action = answer["result"]["content"][0], answer["result"]["_meta"][ERROR_KEY]
    assert text["text"].strip()
    assert action["next_action"].strip()
    text["text"] = expected["result"]["content"][0]["text"]
    action["next_action"] = expected["result"]["_meta"][ERROR_KEY]["next_action"]
    assert answer == expected


async def test_a_tool_that_times_out_and_is_not_idempotent_is_not_safe_to_retry(pair: Pair):
    tool = pair.tool("/hang", timeout="200ms")
    error = (await pair.call(tool, {}, speaker=AGENT_BUILDER)).result["_meta"][ERROR_KEY]
    assert (error["reason"], error["error_code"], error["safe_to_retry"]) == ("TOOL_TIMED_OUT", "E1302", False)


async def test_tools_list_answers_whole_without_pages(pair: Pair):
    tool = pair.tool("/echo", description="글자 수를 센다.", title="글자")
    reply = await post(pair, '{"jsonrpc":"2.0","id":"목록","method":"tools/list"}')
    check_fresh(reply)
    assert reply.json["id"] == "목록"
    result = reply.result
    assert set(result) == {"tools", "_meta"}
    assert result["_meta"] == {"xdata.kr/lane": "production"}
    assert [listed for listed in result["tools"] if listed["name"] == tool.name] == [
        {"name": tool.name, "title": "글자", "description": "글자 수를 센다.", "inputSchema": {"type": "object"}}
    ]


async def test_ping(pair: Pair):
    reply = await post(pair, '{"jsonrpc":"2.0","id":3,"method":"ping"}')
    check_fresh(reply)
    assert reply.json == {"jsonrpc": "2.0", "id": 3, "result": {}}


async def test_a_session_id_is_no_more_than_a_correlation(pair: Pair):
    tool = pair.tool("/echo")
    reply = await pair.call(tool, {}, ("Mcp-Session-Id", "conversation-7"), speaker=AGENT_BUILDER, id="r-1")
    check_fresh(reply)
    call = pair.admin.get_call(reply.header("x-naru-call-id") or "")
    assert (call.session_id, call.jsonrpc_id) == ("conversation-7", '"r-1"')


async def test_progress_never_reaches_it(pair: Pair):
    tool = pair.tool("/ndjson")
    reply = await pair.call(tool, {}, speaker=AGENT_BUILDER, meta={"progressToken": "t"})
    check_fresh(reply)
    assert reply.result["structuredContent"] == {"done": True, "msg": "안녕"}


async def test_two_active_versions_run_nothing(pair: Pair):
    tool, first = pair.definition("/echo")
    other, second = pair.definition("/echo", tool.name, version="2.0.0", active=False)
    pair.admin.apply({"tools": [first, second]})
    pair.admin.activate(tool.name, "2.0.0", keep_others_active=True)
    reply = await pair.call(tool, {}, speaker=AGENT_BUILDER)
    check_fresh(reply)
    assert reply.error["code"] == -32005
    assert reply.error["data"]["reason"] == "TOOL_VERSION_AMBIGUOUS"
    assert pair.executions(tool) + pair.executions(other) == 0


@pytest.mark.parametrize(
    ("body", "status", "code", "reason"),
    [
        ("{", 200, -32700, "PARSE_ERROR"),
        ('{"id":9,"method":"tools/list"}', 200, -32600, "INVALID_REQUEST"),
        ('{"jsonrpc":"1.0","id":9,"method":"tools/list"}', 200, -32600, "INVALID_REQUEST"),
        ('{"jsonrpc":"2.0","id":9}', 200, -32600, "INVALID_REQUEST"),
        ('{"jsonrpc":"2.0","id":9,"method":5}', 200, -32600, "INVALID_REQUEST"),
        ('{"jsonrpc":"2.0","id":9,"method":"tools/run"}', 200, -32601, "METHOD_NOT_FOUND"),
        ('{"jsonrpc":"2.0","id":9,"method":"server/discover"}', 200, -32601, "METHOD_NOT_FOUND"),
        ('{"jsonrpc":"2.0","id":9,"method":"tools/call"}', 200, -32602, "INVALID_PARAMS"),
        ('{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":7}}', 200, -32602, "INVALID_PARAMS"),
        ('{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"x","arguments":[]}}', 200, -32602,
         "INVALID_PARAMS"),
        ('{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"x","arguments":null}}', 200, -32602,
         "INVALID_PARAMS"),
        ('{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"no_such"}}', 200, -32602, "TOOL_NOT_FOUND"),
    ],
)  # fmt: skip
async def test_bad_requests_are_json_rpc_errors(pair: Pair, body: str, status: int, code: int, reason: str):
    reply = await post(pair, body)
    check_fresh(reply, status)
    assert set(reply.json) == {"jsonrpc", "id", "error"}
    assert reply.json["id"] == (9 if '"id":9' in body else None)
    assert set(reply.error) == {"code", "message", "data"}
    assert (reply.error["code"], reply.error["data"]["reason"]) == (code, reason)
    assert reply.error["data"]["safe_to_retry"] is False


async def test_arguments_that_break_the_schema_are_invalid_params(text_stats: Pair):
    text_stats.admin.activate("text_stats", "1.0.0")
    before = len(text_stats.endpoint.received)
    reply = await text_stats.call("text_stats", {"text": 5, "more": 1}, speaker=AGENT_BUILDER, id="w")
    check_fresh(reply)
    assert reply.json["id"] == "w"
    assert reply.error["code"] == -32602
    data = reply.error["data"]
    assert (data["reason"], data["error_code"], data["safe_to_retry"]) == ("ARGUMENTS_INVALID", "E1204", False)
    assert {violation["pointer"] for violation in data["violations"]} == {"", "/text"}
    assert all(violation["message"] for violation in data["violations"])
    assert len(text_stats.endpoint.received) == before


async def test_execution_errors_are_results_with_four_members(pair: Pair):
    failing = {
        "/500-empty": "TOOL_HTTP_ERROR",
        "/404": "TOOL_HTTP_ERROR",
        "/401": "TOOL_REFUSED",
        "/empty": "TOOL_RESPONSE_INVALID",
        "/commit-then-drop": "TOOL_UNREACHABLE",
    }
    for mode, reason in failing.items():
        reply = await pair.call(pair.tool(mode), {}, speaker=AGENT_BUILDER, id=2)
        check_fresh(reply)
        assert set(reply.result) == {"content", "isError", "_meta"}, mode
        assert reply.result["isError"] is True
        assert [block["type"] for block in reply.result["content"]] == ["text"]
        error = reply.result["_meta"][ERROR_KEY]
        assert set(error) == {"reason", "error_code", "safe_to_retry", "next_action"}, mode
        assert error["reason"] == reason


async def test_a_denied_tool_is_a_result_and_not_a_transport_error(pair: Pair):
    tool = pair.tool("/echo", access={"plans": ["pro"]})
    reply = await pair.call(tool, {}, speaker=AGENT_BUILDER)
    check_fresh(reply)
    assert reply.result["isError"] is True
    assert reply.result["_meta"][ERROR_KEY]["reason"] == "PERMISSION_DENIED"
    assert pair.executions(tool) == 0


async def test_an_id_comes_back_as_it_was_sent(pair: Pair):
    for raw in ("0", "-1", '"1"', "9007199254740993", '"550e8400-e29b-41d4-a716-446655440000"'):
        reply = await pair.ask(AGENT_BUILDER, "tools/list", id=Json(raw))
        assert reply.body.startswith(b'{"jsonrpc":"2.0","id":%b,' % raw.encode())
