"""Clients that admit JSON and SSE: JSON if the result comes first, SSE once there is something to say before it."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.pair import QUICK_STREAM_AFTER, Pair
from tests.support.speaker import BOTH, LEGACY, MODERN, UNNAMED, Speaker
from tests.support.wire import parse_events

pytestmark = pytest.mark.asyncio(loop_scope="session")

everybody = pytest.mark.parametrize("speaker", [UNNAMED, LEGACY, MODERN], ids=lambda speaker: speaker.name)


@pytest.fixture
def gate(pair: Pair) -> Iterator[asyncio.Event]:
    pair.endpoint.gate.clear()
    yield pair.endpoint.gate
    pair.endpoint.gate.set()


@everybody
async def test_a_result_that_comes_first_is_json(pair: Pair, speaker: Speaker):
    reply = await pair.call(pair.tool("/echo"), {"a": 1}, speaker=speaker, meta={"progressToken": "t"})
    assert reply.media_type == "application/json"
    assert reply.header("x-naru-call-id")
    assert reply.result["structuredContent"] == {"a": 1}


@everybody
async def test_progress_without_a_token_is_not_sent(pair: Pair, speaker: Speaker):
    reply = await pair.call(pair.tool("/ndjson"), {}, speaker=speaker)
    assert reply.media_type == "application/json"
    assert reply.result["structuredContent"] == {"done": True, "msg": "안녕"}


@everybody
async def test_the_first_progress_makes_it_a_stream(pair: Pair, speaker: Speaker, gate: asyncio.Event):
    tool = pair.tool("/gated-progress")
    async with pair.streaming(tool, {}, speaker=speaker, meta={"progressToken": "t"}) as stream:
        assert stream.head.header("content-type") == "text/event-stream"
        assert stream.head.header("x-naru-call-id")
        first = parse_events(await anext(stream.pieces))
        assert first[0].message["params"] == {"progressToken": "t", "progress": 1, "total": 2, "message": "waits"}
        gate.set()
        last = parse_events(b"".join([piece async for piece in stream.pieces]))[-1].message
    assert last["result"]["structuredContent"] == {"passed": True}
    assert last["result"].get("resultType") == ("complete" if speaker.modern else None)


@everybody
async def test_silence_makes_it_a_stream_with_keep_alive(pair: Pair, speaker: Speaker, gate: asyncio.Event):
    tool = pair.tool("/gate")
    started = asyncio.get_running_loop().time()
    async with pair.streaming(tool, {}, speaker=speaker, gateway=pair.quick) as stream:
        assert asyncio.get_running_loop().time() - started > QUICK_STREAM_AFTER * 0.9
        assert stream.head.header("content-type") == "text/event-stream"
        assert b": keep-alive" in await anext(stream.pieces)
        gate.set()
        last = parse_events(b"".join([piece async for piece in stream.pieces]))[-1].message
    assert last["result"]["structuredContent"] == {"passed": True}


@everybody
@pytest.mark.parametrize("method", ["tools/list", "no/such"])
async def test_everything_else_is_json(pair: Pair, speaker: Speaker, method: str):
    assert (await pair.ask(speaker, method)).media_type == "application/json"


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (BOTH, "application/json"),
        ("text/event-stream, application/json", "application/json"),
        ("application/json;q=0.5, text/event-stream", "text/event-stream"),
        ("application/json, text/event-stream;q=0.5", "application/json"),
        ("application/x-ndjson, application/json;q=0.9", "application/x-ndjson"),
        ("text/*", "text/event-stream"),
        ("application/*", "application/json"),
        ("*/*;q=0.1, text/event-stream", "text/event-stream"),
        ("application/json;q=0, text/event-stream", "text/event-stream"),
        ("", "application/json"),
    ],
)
async def test_media_ranges_are_weighed(pair: Pair, accept: str, media_type: str):
    tool = pair.tool("/echo")
    headers = [("Authorization", pair.credential.basic), ("Content-Type", "application/json"), ("Accept", accept)]
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool.name}"}}}}'
    reply = await pair.http("POST", "/mcp", headers, body.encode())
    assert (reply.status, reply.media_type) == (200, media_type)
    assert reply.messages[-1]["result"]["structuredContent"] == {}
