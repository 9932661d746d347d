"""The xData contract: progress over SSE with keep-alive, the envelope last, lanes, credentials, errors."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ops.admin import Credential
from tests.support.pair import Pair
from tests.support.scripted_endpoint import ndjson
from tests.support.speaker import AGENT_BUILDER, LEGACY, UNNAMED, XDATA, Json, Speaker
from tests.support.wire import Reply, parse_events

pytestmark = pytest.mark.asyncio(loop_scope="session")

LANE_KEY = "xdata.kr/lane"
ERROR_KEY = "xdata.kr/error"
NEXT_KEY = "xdata.kr/next"
HANGUL = re.compile("[가-힣]")
ENDPOINT_PROGRESS: list[dict[str, object]] = [
    {"progress": 1, "total": 3, "message": "하나"},
    {"progress": 2, "total": 3},
    {"progress": 3.5},
]


@pytest.fixture
def gate(pair: Pair) -> Iterator[asyncio.Event]:
    """Yields the event that the endpoint's gated modes wait for. It is set when the test has ended."""
    pair.endpoint.gate.clear()
    yield pair.endpoint.gate
    pair.endpoint.gate.set()


@pytest.fixture(scope="module")
def lite(pair: Pair) -> Credential:
    return pair.admin.create_account("Light", "lite")


def check_progress_frames(frames: list[Any], token: object) -> None:
    for frame in frames:
        assert set(frame) == {"jsonrpc", "method", "params"}  # no result, no error, no id
        assert frame["method"] == "notifications/progress"
        assert frame["params"]["progressToken"] == token
        assert type(frame["params"]["progressToken"]) is type(token)
    values = [frame["params"]["progress"] for frame in frames]
    assert values == sorted(set(values))


async def until(pieces: AsyncIterator[bytes], *marks: bytes) -> bytes:
    """Reads a stream until it has said all of this."""
    seen = b""
    while not all(mark in seen for mark in marks):
        seen += await anext(pieces)
    return seen


@pytest.mark.parametrize(("id", "token"), [(7, 7), ("호출-1", "호출-1"), (0, 0)])
async def test_progress_then_the_envelope(pair: Pair, id: object, token: object):
    tool = pair.tool("/ndjson")
    reply = await pair.call(tool, {}, speaker=XDATA, id=id)
    assert reply.status == 200
    assert reply.header("content-type") == "text/event-stream"
    assert reply.header("cache-control") == "no-cache, no-transform"
    assert reply.header("x-accel-buffering") == "no"
    *progress, envelope = reply.messages
    check_progress_frames(progress, token)
    assert [frame["params"] for frame in progress] == [
        {"progressToken": token, **update} for update in ENDPOINT_PROGRESS
    ]
    # The last `data:` is the whole answer of the JSON form.
    json_form = await pair.call(tool, {}, speaker=AGENT_BUILDER, id=id)
    assert envelope == json_form.json
    assert envelope["id"] == id
    assert reply.body.rstrip().splitlines()[-1].startswith(b"data: ")


async def test_a_progress_token_of_its_own_wins_over_the_request_id(pair: Pair):
    tool = pair.tool("/ndjson")
    *progress, envelope = (await pair.call(tool, {}, speaker=XDATA, id=7, meta={"progressToken": "t-1"})).messages
    assert len(progress) == len(ENDPOINT_PROGRESS)
    check_progress_frames(progress, "t-1")
    assert envelope["id"] == 7


async def test_integral_progress_has_no_fraction(pair: Pair):
    tool = pair.tool(ndjson({"progress": 1.0, "total": 3.0}, {"progress": 2.5}, {"result": {}}))
    text = (await pair.call(tool, {}, speaker=XDATA)).body
    assert b'"progress":1,' in text
    assert b'"total":3}' in text
    assert b'"progress":2.5}' in text


async def test_keep_alive_comments_while_the_tool_is_silent(pair: Pair, gate: asyncio.Event):
    tool = pair.tool("/gate")
    async with pair.streaming(tool, {}, id=5, gateway=pair.quick) as stream:
        assert stream.head.status == 200
        assert stream.head.header("x-naru-call-id")
        seen = b""
        while seen.count(b"\n\n") < 3:
            seen += await anext(stream.pieces)
        assert [event.comment for event in parse_events(seen)] == ["keep-alive"] * 3
        gate.set()
        rest = parse_events(b"".join([piece async for piece in stream.pieces]))
    *comments, last = rest
    assert {event.comment for event in comments} <= {"keep-alive"}
    assert last.message["id"] == 5
    assert last.message["result"]["structuredContent"] == {"passed": True}


async def test_progress_is_on_the_way_before_the_result(pair: Pair, gate: asyncio.Event):
    tool = pair.tool("/gated-progress")
    async with pair.streaming(tool, {}) as stream:
        first = parse_events(await until(stream.pieces, b"notifications/progress"))
        assert first[0].message["params"]["message"] == "waits"
        gate.set()
        rest = [event.message async for piece in stream.pieces for event in parse_events(piece)]
    assert [frame["params"]["progress"] for frame in rest[:-1]] == [2]
    assert rest[-1]["result"]["structuredContent"] == {"passed": True}


async def test_the_stream_starts_when_the_call_was_admitted(pair: Pair, gate: asyncio.Event):
    tool = pair.tool("/gate")
    async with pair.streaming(tool, {}) as stream:
        # The head is here, and the tool has not answered.
        call = pair.admin.get_call(stream.head.header("x-naru-call-id") or "")
        assert (call.tool, call.state) == (tool.name, call.State.RUNNING)


async def test_the_fast_reporter_is_slowed_down_and_its_last_word_kept(pair: Pair):
    tool = pair.tool(ndjson(*({"progress": n, "total": 200} for n in range(1, 201)), {"result": {"done": True}}))
    began = asyncio.get_running_loop().time()
    *progress, envelope = (await pair.call(tool, {}, speaker=XDATA)).messages
    seconds = asyncio.get_running_loop().time() - began
    check_progress_frames(progress, 1)
    values = [frame["params"]["progress"] for frame in progress]
    assert values[-1] == 200
    assert len(values) <= 20 + 10 * seconds + 1  # a burst, then ten a second, and the last one
    assert envelope["result"]["structuredContent"] == {"done": True}


async def test_progress_that_does_not_rise_is_dropped(pair: Pair):
    updates = [{"progress": value} for value in (1, 1, 0.5, 2, 2, 3)]
    tool = pair.tool(ndjson(*updates, {"result": {}}))
    *progress, _ = (await pair.call(tool, {}, speaker=XDATA)).messages
    assert [frame["params"]["progress"] for frame in progress] == [1, 2, 3]


@pytest.mark.parametrize("accept", ["*/*", None, "application/json"])
async def test_the_default_is_json_without_progress(pair: Pair, accept: str | None):
    tool = pair.tool("/ndjson")
    reply = await pair.call(tool, {}, speaker=XDATA.accepting(accept))
    assert reply.media_type == "application/json"
    assert reply.result["structuredContent"] == {"done": True, "msg": "안녕"}


@pytest.mark.parametrize(
    ("method", "params"), [("initialize", {"protocolVersion": "2025-11-25"}), ("tools/list", None), ("ping", None)]
)
async def test_every_method_can_be_had_as_one_event(pair: Pair, method: str, params: dict[str, object] | None):
    reply = await pair.ask(XDATA, method, params, id="m")
    assert [event.name for event in reply.events] == ["message"]
    assert reply.messages == [(await pair.ask(UNNAMED, method, params, id="m")).json]


# Lanes


async def lane_of(pair: Pair, *headers: tuple[str, str]) -> str:
    lane = (await pair.ask(UNNAMED, "tools/list", None, *headers)).result["_meta"][LANE_KEY]
    assert isinstance(lane, str)
    return lane


async def test_the_lane_is_the_plans_unless_the_header_names_one(pair: Pair, lite: Credential):
    as_lite = ("Authorization", lite.basic)
    assert await lane_of(pair) == "production"
    assert await lane_of(pair, as_lite) == "real_test"
    assert await lane_of(pair, ("X-MCP-Env-Scope", "real_test")) == "real_test"
    assert await lane_of(pair, as_lite, ("X-MCP-Env-Scope", "production")) == "production"


async def test_a_call_runs_in_its_lane_and_is_counted_there(pair: Pair):
    account = pair.admin.create_account("Counted", "lite")
    tool, entry = pair.definition("/echo")
    test_path = pair.endpoint_of("/target")
    entry["endpoint"]["real_test"] = {"url": pair.endpoint.url(test_path)}
    pair.admin.apply({"tools": [entry]})
    own = ("Authorization", account.basic)

    in_test = await pair.call(tool, {"a": 1}, own)
    assert in_test.result["structuredContent"]["target"] == test_path
    in_production = await pair.call(tool, {"a": 1}, own, ("X-MCP-Env-Scope", "production"))
    assert in_production.result["structuredContent"] == {"a": 1}
    await pair.call(tool, {"a": 1}, own, ("X-MCP-Env-Scope", "production"))

    request = next(request for request in pair.endpoint.received if request.path == test_path)
    assert request.header("x-naru-lane") == "real_test"
    usage = pair.admin.usage(account.client_id)
    assert sorted(usage.values()) == [1, 1, 2, 2]  # the day's and the month's, in each lane
    assert {lane for lane, _ in usage} == {"real_test", "production"}
    assert {count for (lane, _), count in usage.items() if lane == "production"} == {2}


async def test_a_tool_without_an_endpoint_in_the_lane_is_not_there(pair: Pair):
    tool = pair.tool("/echo")
    in_test = ("X-MCP-Env-Scope", "real_test")
    listed = (await pair.ask(UNNAMED, "tools/list", None, in_test)).result["tools"]
    assert tool.name not in {entry["name"] for entry in listed}
    error = (await pair.call(tool, {}, in_test)).error
    assert (error["code"], error["data"]["reason"]) == (-32006, "LANE_NOT_CONFIGURED")
    assert pair.executions(tool) == 0


@pytest.mark.parametrize("lane", ["staging", "Production", "production, real_test", "프로덕션"])
async def test_an_unknown_lane_fails_tools_only(pair: Pair, lane: str):
    tool = pair.tool("/echo")
    header = ("X-MCP-Env-Scope", lane)
    for reply in (await pair.call(tool, {}, header), await pair.ask(UNNAMED, "tools/list", None, header)):
        assert reply.status == 200
        assert (reply.error["code"], reply.error["data"]["reason"]) == (-32006, "LANE_INVALID")
        assert set(reply.error["data"]["lanes"]) == {"production", "real_test"}
    assert pair.executions(tool) == 0
    assert (await pair.ask(UNNAMED, "ping", None, header)).result == {}
    await_initialize = await pair.ask(UNNAMED, "initialize", {"protocolVersion": "2025-11-25"}, header)
    assert await_initialize.result["protocolVersion"] == "2025-11-25"


# Errors


def check_error_shape(error: Any, code: int, reason: str) -> None:
    assert set(error) == {"code", "message", "data"}
    assert error["code"] == code
    data = error["data"]
    assert data["reason"] == reason
    assert re.fullmatch(r"E\d{4}", data["error_code"])
    assert isinstance(data["safe_to_retry"], bool)
    assert data["next_action"].strip()
    assert None not in data.values()


async def test_the_shape_of_an_error(pair: Pair):
    reply = await pair.call("no_such_tool", {}, speaker=XDATA, id="e")
    assert (reply.status, len(reply.events)) == (200, 1)
    assert set(reply.messages[0]) == {"jsonrpc", "id", "error"}
    assert reply.messages[0]["id"] == "e"
    check_error_shape(reply.error, -32602, "TOOL_NOT_FOUND")
    assert reply.error["data"][NEXT_KEY] == {"method": "tools/list"}
    assert reply.error["data"]["tool"] == "no_such_tool"


async def test_what_has_no_next_has_no_key_for_it(pair: Pair):
    reply = await pair.ask(XDATA, "tools/run")
    assert (reply.status, len(reply.events)) == (200, 1)
    error = reply.error
    check_error_shape(error, -32601, "METHOD_NOT_FOUND")
    assert NEXT_KEY not in error["data"]


async def test_a_failed_tool_says_the_same_in_its_meta(pair: Pair):
    tool = pair.tool("/hang", timeout="200ms", annotations={"readOnlyHint": True})
    reply = await pair.call(tool, {}, speaker=XDATA)
    assert reply.result["isError"] is True
    assert HANGUL.search(reply.result["content"][0]["text"])
    error = reply.result["_meta"][ERROR_KEY]
    assert (error["reason"], error["error_code"], error["safe_to_retry"]) == ("TOOL_TIMED_OUT", "E1302", True)
    assert (error["timeout_seconds"], error["limit"], error["tool"]) == (0.2, "tool", tool.name)
    assert error["call_id"] == reply.header("x-naru-call-id")


@pytest.mark.parametrize(
    ("accept_language", "korean"),
    [(None, True), ("ko", True), ("ko-KR,ko;q=0.9,en;q=0.8", True), ("en", False), ("en-US,en;q=0.9,ko;q=0.8", False),
     ("fr", True), ("ko;q=0.1, en;q=0.2", False)],
)  # fmt: skip
async def test_sentences_are_korean_or_english(pair: Pair, accept_language: str | None, korean: bool):
    headers = [("Accept-Language", accept_language)] if accept_language else []
    error = (await pair.call("no_such_tool", {}, *headers, speaker=XDATA)).error
    tool = pair.tool("/500-empty")
    failed = (await pair.call(tool, {}, *headers, speaker=XDATA)).result
    for sentence in (
        error["message"], error["data"]["next_action"],
        failed["content"][0]["text"], failed["_meta"][ERROR_KEY]["next_action"],
    ):  # fmt: skip
        assert bool(HANGUL.search(sentence)) is korean, sentence


async def test_an_error_of_the_http_level_is_json_whatever_was_accepted(pair: Pair):
    reply = await pair.call("x", {}, ("Content-Type", "text/plain"), speaker=XDATA)
    assert reply.status == 415
    check_error_shape(reply.error, -32600, "UNSUPPORTED_MEDIA_TYPE")
    assert "id" not in reply.json


async def test_a_body_that_cannot_be_parsed_has_a_null_id(pair: Pair):
    reply = await pair.post("{", accept="text/event-stream")
    assert reply.status == 200
    assert reply.messages[-1]["id"] is None
    check_error_shape(reply.error, -32700, "PARSE_ERROR")


# Credentials


@pytest.mark.parametrize("speaker", [XDATA, AGENT_BUILDER, LEGACY], ids=lambda speaker: speaker.name)
async def test_basic_and_bearer_carry_the_same_value(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    for authorization in (pair.credential.basic, pair.credential.bearer):
        reply = await pair.call(tool, {"a": 1}, ("Authorization", authorization), speaker=speaker)
        assert reply.result["structuredContent"] == {"a": 1}


def challenges(reply: Reply) -> list[str]:
    return reply.head.all("www-authenticate")


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "initialize", "notifications/initialized"])
async def test_no_credential_no_answer(pair: Pair, method: str):
    tool = pair.tool("/echo")
    params = {"name": tool.name, "protocolVersion": "2025-11-25"}
    request_id = None if method.startswith("notifications/") else 1
    for authorization, expected in (
        ("", ["Bearer"]),
        ("Negotiate abc", ["Bearer"]),
        ("Bearer bm9ib2R5Om5vdGhpbmc=", ['Bearer error="invalid_token"']),
        ("Basic bm9ib2R5Om5vdGhpbmc=",
         ['Bearer error="invalid_token"', 'Basic realm="mcp", charset="UTF-8"']),
    ):  # fmt: skip
        reply = await pair.ask(XDATA, method, params, ("Authorization", authorization), id=request_id)
        assert (reply.status, challenges(reply)) == (401, expected), authorization
        check_error_shape(reply.error, -32001, "UNAUTHENTICATED")
        assert "resource_metadata" not in str(reply.head.headers)
    assert pair.executions(tool) == 0


async def test_a_wrong_secret_is_refused_like_an_unknown_account(pair: Pair):
    wrong = Credential(pair.credential.client_id, pair.credential.secret[:-1] + "x")
    unknown = Credential("nrci_" + "a" * 21, pair.credential.secret)
    replies = [await pair.ask(XDATA, "tools/list", None, ("Authorization", one.basic)) for one in (wrong, unknown)]
    assert [reply.status for reply in replies] == [401, 401]
    assert replies[0].body == replies[1].body
    assert challenges(replies[0]) == challenges(replies[1])


async def test_numbers_keep_their_digits_in_the_stream(pair: Pair):
    tool = pair.tool("/echo")
    reply = await pair.call(tool, Json('{"n":9007199254740993,"f":1.0}'), speaker=XDATA, id=Json("9007199254740993"))
    data = reply.events[-1].data
    assert '"id":9007199254740993,' in data
    assert '"structuredContent":{"n":9007199254740993,"f":1.0}' in data
