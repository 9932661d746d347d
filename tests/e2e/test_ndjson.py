"""NDJSON answers: progress lines, then the envelope; a blank line as keep-alive, only after the first frame."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.support.pair import QUICK_KEEPALIVE, Pair
from tests.support.scripted_endpoint import Script, ndjson
from tests.support.speaker import NDJSON, UNNAMED

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def gate(pair: Pair) -> Iterator[asyncio.Event]:
    pair.endpoint.gate.clear()
    yield pair.endpoint.gate
    pair.endpoint.gate.set()


async def test_progress_lines_then_the_envelope(pair: Pair):
    reply = await pair.call(pair.tool("/ndjson"), {}, speaker=NDJSON, id="줄")
    assert reply.status == 200
    assert reply.header("content-type") == "application/x-ndjson"
    assert reply.header("cache-control") == "no-cache, no-transform"
    assert reply.header("x-naru-call-id")
    assert reply.body.endswith(b"\n")
    lines = [json.loads(line) for line in reply.body.removesuffix(b"\n").split(b"\n")]
    for line in lines[:-1]:
        assert set(line) == {"jsonrpc", "method", "params"}
        assert line["method"] == "notifications/progress"
    assert [line["params"] for line in lines[:-1]] == [
        {"progressToken": "줄", "progress": 1, "total": 3, "message": "하나"},
        {"progressToken": "줄", "progress": 2, "total": 3},
        {"progressToken": "줄", "progress": 3.5},
    ]
    assert (lines[-1]["id"], lines[-1]["result"]["structuredContent"]) == ("줄", {"done": True, "msg": "안녕"})


async def test_a_token_of_its_own(pair: Pair):
    *progress, _ = (await pair.call(pair.tool("/ndjson"), {}, speaker=NDJSON, meta={"progressToken": 0})).messages
    assert [line["params"]["progressToken"] for line in progress] == [0, 0, 0]


async def test_blank_lines_keep_alive_after_the_first_frame(pair: Pair, gate: asyncio.Event):
    tool = pair.tool("/gated-progress")
    async with pair.streaming(tool, {}, speaker=NDJSON, gateway=pair.quick) as stream:
        seen = b""
        while seen.count(b"\n") < 3:
            seen += await anext(stream.pieces)
        first, *blank = seen.removesuffix(b"\n").split(b"\n")
        assert json.loads(first)["params"]["message"] == "waits"
        assert set(blank) == {b""}
        gate.set()
        rest = b"".join([piece async for piece in stream.pieces])
    messages = [json.loads(line) for line in rest.split(b"\n") if line]
    assert messages[-1]["result"]["structuredContent"] == {"passed": True}


async def test_nothing_is_said_before_the_first_frame(pair: Pair, gate: asyncio.Event):
    tool = pair.tool("/gate")
    async with pair.calling(tool, {}, speaker=NDJSON, gateway=pair.quick) as wire:
        await pair.arrived(tool)
        head = asyncio.ensure_future(wire.head())
        done, _ = await asyncio.wait({head}, timeout=3 * QUICK_KEEPALIVE)
        assert not done
        gate.set()
        body = b"".join([piece async for piece in wire.pieces(await head)])
    assert body.count(b"\n") == 1
    assert json.loads(body)["result"]["structuredContent"] == {"passed": True}


async def test_a_message_is_one_line_whatever_the_tool_wrote(pair: Pair):
    pretty = '{\r\n  "a": [\n    1.0\n  ],\n  "text": "x\u2028y\u2029z\u0085"\r\n}'
    reply = await pair.call(pair.tool(Script(chunks=[pretty.encode()])), {}, speaker=NDJSON)
    lines = reply.body.decode().splitlines()  # splits at U+2028 and its like, too
    assert len(lines) == 1
    result = json.loads(lines[0])["result"]
    assert result["structuredContent"] == {"a": [1.0], "text": "x\u2028y\u2029z\u0085"}
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert "[     1.0   ]" in lines[0]


@pytest.mark.parametrize(
    ("method", "params"),
    [("initialize", {"protocolVersion": "2025-06-18"}), ("tools/list", None), ("ping", None), ("no/such", None)],
)
async def test_everything_else_is_one_line(pair: Pair, method: str, params: dict[str, object] | None):
    reply = await pair.ask(NDJSON, method, params, id=3)
    assert (reply.status, reply.media_type, reply.body.count(b"\n")) == (200, "application/x-ndjson", 1)
    assert reply.messages == [(await pair.ask(UNNAMED, method, params, id=3)).json]


async def test_a_failed_call_is_its_only_line(pair: Pair):
    reply = await pair.call("no_such_tool", {}, speaker=NDJSON)
    assert (reply.status, reply.media_type, reply.body.count(b"\n")) == (200, "application/x-ndjson", 1)
    assert reply.error["data"]["reason"] == "TOOL_NOT_FOUND"


async def test_http_errors_are_json(pair: Pair):
    reply = await pair.ask(NDJSON, "tools/list", None, ("Authorization", ""))
    assert (reply.status, reply.media_type) == (401, "application/json")


async def test_the_fast_reporter_is_slowed_down(pair: Pair):
    tool = pair.tool(ndjson(*({"progress": n} for n in range(1, 101)), {"result": {}}))
    began = asyncio.get_running_loop().time()
    *progress, _ = (await pair.call(tool, {}, speaker=NDJSON)).messages
    seconds = asyncio.get_running_loop().time() - began
    values = [line["params"]["progress"] for line in progress]
    assert values == sorted(set(values))
    assert values[-1] == 100
    assert len(values) <= 20 + 10 * seconds + 1
