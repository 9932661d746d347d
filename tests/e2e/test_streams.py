"""Streams, keep-alive and time limits, disconnects, progress tokens, on what users of other gateways have reported."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial

import pytest

from naru.v1.execution_pb2 import Call
from ops.stack import Process
from tests.support.pair import Pair
from tests.support.scripted_endpoint import Script, ndjson, sse
from tests.support.speaker import AGENT_BUILDER, LEGACY, LEGACY_REVISIONS, MODERN, NDJSON, UNNAMED, XDATA, Json, Speaker
from tests.support.waiting import eventually
from tests.support.wire import Event, parse_events

pytestmark = pytest.mark.asyncio(loop_scope="session")

by_era = pytest.mark.parametrize("speaker", [LEGACY, MODERN], ids=lambda speaker: speaker.name)
streaming = pytest.mark.parametrize("speaker", [XDATA, NDJSON, LEGACY, MODERN], ids=lambda speaker: speaker.name)

TOKEN = {"progressToken": "t-1"}


@pytest.fixture
def gate(pair: Pair) -> Iterator[asyncio.Event]:
    pair.endpoint.gate.clear()
    yield pair.endpoint.gate
    pair.endpoint.gate.set()


# D: framing, of the tool's streams and of ours


@streaming
@pytest.mark.parametrize("mode", ["/sse-crlf", "/sse-lone-cr", "/sse-crlf-split"])
async def test_line_ends_of_every_kind(pair: Pair, mode: str, speaker: Speaker):
    *progress, envelope = (await pair.call(pair.tool(mode), {}, speaker=speaker, meta=TOKEN)).messages
    assert [frame["params"]["progress"] for frame in progress] == [1]
    assert envelope["result"]["structuredContent"] == {"a": 1}


@streaming
async def test_line_separators_within_text(pair: Pair, speaker: Speaker):
    """`Event` and `messages` split at everything that some client takes for a line end."""
    tool = pair.tool(
        sse('data: {"progress":1,"message":"x\u2028y\u0085"}\n\n'.encode(),
            'data: {"result":{"text":"a\u2028b\u2029c\u0085d"}}\n\n'.encode())
    )  # fmt: skip
    reply = await pair.call(tool, {}, speaker=speaker, meta=TOKEN)
    *progress, envelope = reply.messages
    assert progress[0]["params"]["message"] == "x\u2028y\u0085"
    assert envelope["result"]["structuredContent"] == {"text": "a\u2028b\u2029c\u0085d"}
    assert not {"\u2028", "\u2029", "\u0085"} & set(reply.body.decode())


@streaming
async def test_a_character_cut_in_two(pair: Pair, speaker: Speaker):
    reply = await pair.call(pair.tool("/sse-hangul-split"), {}, speaker=speaker)
    assert reply.result["structuredContent"] == {"msg": "안녕"}
    assert "\ufffd" not in reply.body.decode()
    lines = '{"progress":1,"message":"하나"}\n{"result":{"msg":"안녕"}}\n'.encode()
    cut = Script(
        content_type="application/x-ndjson", framing="chunked", chunks=[lines[i : i + 1] for i in range(len(lines))]
    )
    *progress, envelope = (await pair.call(pair.tool(cut), {}, speaker=speaker, meta=TOKEN)).messages
    assert progress[0]["params"]["message"] == "하나"
    assert envelope["result"]["structuredContent"] == {"msg": "안녕"}


@streaming
async def test_data_in_several_lines(pair: Pair, speaker: Speaker):
    reply = await pair.call(pair.tool("/sse-multi-line"), {}, speaker=speaker)
    assert reply.result["structuredContent"] == {"a": 1}
    joined = pair.tool(sse(b'data: {"result":{\ndata: "a":1}\ndata:}\n\n'))
    assert (await pair.call(joined, {}, speaker=speaker)).result["structuredContent"] == {"a": 1}


@streaming
async def test_events_without_data_are_skipped_and_never_sent(pair: Pair, speaker: Speaker):
    tool = pair.tool(
        sse(b"id: 1\ndata:\n\nretry: 5\n\n: hi\n\nevent: ping\ndata: \n\n", b'data: {"result":{"a":1}}\n\n')
    )
    reply = await pair.call(tool, {}, speaker=speaker, meta=TOKEN)
    assert reply.result["structuredContent"] == {"a": 1}
    assert b"id: " not in reply.body.replace(b'"id": ', b"")
    assert b"retry:" not in reply.body


async def test_no_priming_for_any_revision(pair: Pair):
    tool = pair.tool("/ndjson")
    for speaker in (*LEGACY_REVISIONS, UNNAMED, MODERN, XDATA):
        reply = await pair.call(tool, {}, speaker=speaker.accepting("text/event-stream"), meta=TOKEN)
        assert all(event.data for event in reply.events)  # parse_events admits no id and no retry
        assert len(reply.events) == 4


@streaming
async def test_every_event_is_json(pair: Pair, speaker: Speaker):
    for mode in ("/ndjson", "/hangul", "/euc-kr-text", "/png", "/500", "/html", "/empty", "/sse-error"):
        for item in (await pair.call(pair.tool(mode), {}, speaker=speaker, meta=TOKEN)).messages:
            assert item["jsonrpc"] == "2.0", mode


# E: keep-alive and time limits


async def read_comments(pair: Pair, speaker: Speaker, gate: asyncio.Event) -> list[Event]:
    tool = pair.tool("/gate")
    async with pair.streaming(tool, {}, speaker=speaker, gateway=pair.quick) as stream:
        assert stream.head.header("x-accel-buffering") == "no"
        assert stream.head.header("cache-control") == "no-cache, no-transform"
        seen = b""
        while seen.count(b"\n\n") < 2:
            seen += await anext(stream.pieces)
        gate.set()
        return parse_events(seen + b"".join([piece async for piece in stream.pieces]))


@pytest.mark.parametrize("speaker", [XDATA, LEGACY, MODERN], ids=lambda speaker: speaker.name)
async def test_keep_alive_while_the_tool_is_silent(pair: Pair, gate: asyncio.Event, speaker: Speaker):
    *comments, last = await read_comments(pair, speaker, gate)
    assert [event.comment for event in comments][:2] == ["keep-alive"] * 2
    assert last.message["result"]["structuredContent"] == {"passed": True}


async def test_bytes_come_at_once_in_sse_mode(pair: Pair, gate: asyncio.Event):
    tool = pair.tool("/gate")
    async with pair.streaming(tool, {}, speaker=XDATA) as stream:
        assert (stream.head.status, pair.executions(tool) <= 1) == (200, True)  # and the tool has not answered


@by_era
async def test_a_tool_has_its_own_limit_and_the_error_names_it(pair: Pair, speaker: Speaker):
    tool = pair.tool("/hang", timeout="250ms")
    result = (await pair.call(tool, {}, speaker=speaker)).result
    error = result["_meta"]["xdata.kr/error"]
    assert result["isError"] is True
    assert (error["reason"], error["limit"], error["timeout_seconds"]) == ("TOOL_TIMED_OUT", "tool", 0.25)
    assert "0.25" in result["content"][0]["text"]
    await pair.gone(tool)


async def test_the_gateways_limit_is_told_apart(pair: Pair):
    hurried = pair.stack.gateway(pair.registry, GATEWAY_CALL_TIMEOUT_SECONDS="0.6")
    tool = pair.tool("/hang", timeout="20s")
    result = (await pair.call(tool, {}, gateway=hurried)).result
    error = result["_meta"]["xdata.kr/error"]
    assert (error["reason"], error["limit"]) == ("TOOL_TIMED_OUT", "client")
    assert 0.3 < error["timeout_seconds"] <= 0.6
    request = pair.requests(tool)[0]
    assert 0 < int(request.header("x-naru-deadline-ms") or "") <= 600
    await pair.gone(tool)


@by_era
@pytest.mark.parametrize("mode", ["/headers-then-stall", "/gated-progress"])
async def test_headers_and_then_nothing(pair: Pair, gate: asyncio.Event, mode: str, speaker: Speaker):
    tool = pair.tool(mode, timeout="250ms")
    result = (await pair.call(tool, {}, speaker=speaker)).result
    assert result["_meta"]["xdata.kr/error"]["reason"] == "TOOL_TIMED_OUT"
    assert (await pair.gone(tool)).path == tool.path
    assert pair.executions(tool) == 1


@streaming
async def test_progress_does_not_wind_the_clock_back(pair: Pair, speaker: Speaker):
    tool = pair.tool("/ticks?every=0.1", timeout="450ms")
    *progress, envelope = (await pair.call(tool, {}, speaker=speaker, meta=TOKEN)).messages
    assert len(progress) >= 2
    error = envelope["result"]["_meta"]["xdata.kr/error"]
    assert (error["reason"], error["timeout_seconds"]) == ("TOOL_TIMED_OUT", 0.45)
    await pair.gone(tool)


# F: disconnects


async def settled(pair: Pair, call_id: str) -> Call:
    calls: list[Call] = []

    def is_settled() -> bool:
        calls.append(pair.admin.get_call(call_id))
        return calls[-1].state != Call.RUNNING

    await eventually(is_settled)
    return calls[-1]


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json", "text/event-stream"])
async def test_a_modern_disconnect_reaches_the_endpoints_socket(pair: Pair, gate: asyncio.Event, accept: str):
    tool = pair.tool("/gate")
    async with pair.calling(tool, {}, speaker=MODERN.accepting(accept)) as wire:
        request = await pair.arrived(tool)
        left = asyncio.get_running_loop().time()
        wire.abort()
        await pair.gone(tool)
        assert asyncio.get_running_loop().time() - left < 1
    call_id = request.header("x-naru-call-id") or ""
    assert (await settled(pair, call_id)).state == Call.CANCELLED
    await pair.is_alive()


@pytest.mark.parametrize("speaker", [LEGACY, UNNAMED, XDATA, NDJSON, AGENT_BUILDER], ids=lambda speaker: speaker.name)
async def test_a_legacy_call_runs_on(pair: Pair, gate: asyncio.Event, speaker: Speaker):
    tool = pair.tool("/gate")
    async with pair.calling(tool, {}, speaker=speaker) as wire:
        request = await pair.arrived(tool)
        wire.abort()
        # The gateway has seen the disconnect when it answers here; the endpoint still has its client.
        await pair.is_alive()
        call_id = request.header("x-naru-call-id") or ""
        assert pair.admin.get_call(call_id).state == Call.RUNNING
        gate.set()
        assert (await settled(pair, call_id)).state == Call.SUCCEEDED
    await pair.is_alive()


def told_of(process: Process, tool: str) -> bool:
    """Tells whether a process has logged its record of a call of this tool."""
    return any(record.get("tool") == tool for record in process.records())


async def test_a_disconnect_leaves_no_traceback(pair: Pair, gate: asyncio.Event):
    tools = [pair.tool("/gated-progress") for _ in range(3)]
    for tool, speaker in zip(tools, (XDATA, MODERN.accepting("text/event-stream"), LEGACY), strict=True):
        async with pair.streaming(tool, {}, speaker=speaker, meta=TOKEN) as stream:
            await anext(stream.pieces)
            stream.wire.abort()
    gate.set()
    await pair.is_alive()
    for process in (pair.gateway, pair.registry):
        for tool in tools:
            await eventually(partial(told_of, process, tool.name))
        errors = [record for record in process.records() if record.get("level") in ("error", "critical")]
        assert errors == []
        assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("speaker", [LEGACY, UNNAMED, XDATA, AGENT_BUILDER, MODERN], ids=lambda speaker: speaker.name)
@pytest.mark.parametrize("params", [{"requestId": "never"}, {}, {"requestId": {}}, {"requestId": None}], ids=str)
async def test_a_cancel_for_nothing_is_ignored(pair: Pair, speaker: Speaker, params: dict[str, object]):
    reply = await pair.ask(speaker, "notifications/cancelled", params, id=None)
    assert (reply.status, reply.body) == (202, b"")


# G: progress tokens


@by_era
async def test_a_token_is_echoed_and_without_one_there_is_no_progress(pair: Pair, speaker: Speaker):
    tool = pair.tool("/ndjson")
    *progress, _ = (await pair.call(tool, {}, speaker=speaker, meta=TOKEN)).messages
    assert [frame["params"]["progressToken"] for frame in progress] == ["t-1"] * 3
    assert len((await pair.call(tool, {}, speaker=speaker)).messages) == 1
    only_sse = speaker.accepting("text/event-stream")
    *progress, _ = (await pair.call(tool, {}, speaker=only_sse, id="mine")).messages
    # A modern client asks for progress, whatever it accepts.
    assert [frame["params"]["progressToken"] for frame in progress] == ([] if speaker.modern else ["mine"] * 3)


@streaming
@pytest.mark.parametrize("raw", ["0", '""', '"0"', "-1", "9007199254740993", '"토큰"'])
async def test_tokens_keep_their_type(pair: Pair, speaker: Speaker, raw: str):
    reply = await pair.call(pair.tool("/ndjson"), {}, speaker=speaker, meta={"progressToken": Json(raw)})
    assert reply.body.count(b'"progressToken":%b,' % raw.encode()) == 3


@streaming
@pytest.mark.parametrize("raw", ["1.5", "true", "[]", "{}"])
async def test_other_tokens_are_invalid_params(pair: Pair, speaker: Speaker, raw: str):
    tool = pair.tool("/ndjson")
    reply = await pair.call(tool, {}, speaker=speaker, meta={"progressToken": Json(raw)})
    assert (reply.status, reply.error["code"]) == (400 if speaker.modern else 200, -32602)
    assert pair.executions(tool) == 0


@streaming
async def test_notifications_in_order_and_then_the_result(pair: Pair, speaker: Speaker):
    *progress, envelope = (await pair.call(pair.tool("/ndjson"), {}, speaker=speaker, meta=TOKEN)).messages
    assert [frame["params"] for frame in progress] == [
        {"progressToken": "t-1", "progress": 1, "total": 3, "message": "하나"},
        {"progressToken": "t-1", "progress": 2, "total": 3},
        {"progressToken": "t-1", "progress": 3.5},
    ]
    assert envelope["result"]["structuredContent"] == {"done": True, "msg": "안녕"}


@streaming
async def test_large_progress_keeps_its_digits(pair: Pair, speaker: Speaker):
    values = [9007199254740992, 9007199254740993, 9007199254740994, 12345678901234567890123]
    tool = pair.tool(ndjson(*({"progress": n, "total": n + 1} for n in values), {"result": {}}))
    *progress, _ = (await pair.call(tool, {}, speaker=speaker, meta=TOKEN)).messages
    assert [(frame["params"]["progress"], frame["params"]["total"]) for frame in progress] == [
        (n, n + 1) for n in values
    ]


@streaming
async def test_without_total_and_with_a_total_of_nothing(pair: Pair, speaker: Speaker):
    tool = pair.tool(
        ndjson({"progress": 1}, {"progress": 2, "total": 0}, {"progress": 3, "total": None},
               {"progress": 4, "total": -1}, {"result": {}})
    )  # fmt: skip
    *progress, _ = (await pair.call(tool, {}, speaker=speaker, meta=TOKEN)).messages
    assert [frame["params"].get("total", "absent") for frame in progress] == ["absent", 0, "absent", -1]


@streaming
async def test_progress_that_is_none_fails_the_call_or_is_passed_over(pair: Pair, speaker: Speaker):
    """Whatever a tool calls progress: one answer, and the services live on."""
    for value in ('"half"', "1e400", "-1e400", "[]", "null", "true", "123456789012345678901234567890"):
        tool = pair.tool(
            Script(content_type="application/x-ndjson", framing="chunked",
                   chunks=[b'{"progress":%b}\n' % value.encode(), b'{"result":{"a":1}}\n'])
        )  # fmt: skip
        reply = await pair.call(tool, {}, speaker=speaker, meta=TOKEN)
        result = reply.result
        assert result["isError"] or result["structuredContent"] == {"a": 1}, value
        for frame in reply.messages[:-1]:
            assert json.dumps(frame, allow_nan=False)
    await pair.is_alive()
