"""The envelope, ids, and the headers of 2026-07-28, on what users of other gateways have reported."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.support.pair import Pair
from tests.support.speaker import (
    AGENT_BUILDER,
    BOTH,
    CAPABILITIES_META,
    EVERYBODY,
    LEGACY,
    MODERN,
    UNNAMED,
    VERSION_META,
    XDATA,
    Json,
    Speaker,
    message,
)
from tests.support.wire import Header, Reply

pytestmark = pytest.mark.asyncio(loop_scope="session")

by_era = pytest.mark.parametrize("speaker", [LEGACY, MODERN], ids=lambda speaker: speaker.name)
everybody = pytest.mark.parametrize("speaker", EVERYBODY, ids=lambda speaker: speaker.name)

AS_MODERN: list[Header] = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call")]
FULL = f'{{"{VERSION_META}":"2026-07-28","{CAPABILITIES_META}":{{}}}}'


@pytest.fixture
def gate(pair: Pair) -> Iterator[asyncio.Event]:
    pair.endpoint.gate.clear()
    yield pair.endpoint.gate
    pair.endpoint.gate.set()


def check_refused(reply: Reply, code: int, accept: str | None = BOTH) -> None:
    """Whoever takes JSON and a stream hears of it by a 400; whoever takes one form alone in a 200 of that form."""
    one_form = accept is not None and accept != BOTH
    expected = (200, accept) if one_form else (400, "application/json")
    assert (reply.status, reply.media_type) == expected, reply
    assert len(reply.messages) == 1
    assert (reply.messages[0]["id"], reply.error["code"]) == (None, code)


async def check_bodies(pair: Pair, bodies: dict[str | bytes, int]) -> None:
    """Posts each on one connection, which must serve on, as clients of each form and era."""
    right: list[Header] = [("Content-Type", "application/json")]
    tongues: list[tuple[str, list[Header]]] = [
        (BOTH, []), (BOTH, AS_MODERN), ("application/json", []), ("text/event-stream", []),
        ("application/x-ndjson", []),
    ]  # fmt: skip
    async with await pair.wire() as wire:
        for accept, tongue in tongues:
            headers = pair.authorized([*right, ("Accept", accept), *tongue])
            for body, code in bodies.items():
                await wire.request("POST", "/mcp", headers, body if isinstance(body, bytes) else body.encode())
                check_refused(await wire.reply(), code, accept)
        good = message(LEGACY, "ping")
        await wire.request("POST", "/mcp", pair.authorized(good.headers), good.body)
        assert (await wire.reply()).result == {}


# B: the envelope


async def test_batches_are_refused_whole(pair: Pair):
    tool = pair.tool("/echo")
    call = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool.name}"}}}}'
    await check_bodies(
        pair,
        {f'[{call},{{"jsonrpc":"2.0","id":2,"method":"ping"}}]': -32600, "[]": -32600, "[1]": -32600, "[[]]": -32600},
    )
    for revision in ("2025-03-26", "2024-11-05"):  # which allowed them
        reply = await pair.post(f"[{call}]", ("MCP-Protocol-Version", revision))
        check_refused(reply, -32600)
    assert pair.executions(tool) == 0


async def test_an_initialize_in_a_batch_is_no_initialize(pair: Pair):
    body = '[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}]'
    check_refused(await pair.post(body), -32600)


@everybody
async def test_codes_are_integers_in_the_body(pair: Pair, speaker: Speaker):
    ambiguous, first = pair.definition("/echo")
    _, second = pair.definition("/echo", ambiguous.name, version="2", active=False)
    pair.admin.apply({"tools": [first, second]})
    pair.admin.activate(ambiguous.name, "2", keep_others_active=True)
    own_codes: dict[bool, int] = {True: -31005, False: -32005}
    for reply, code, status in (
        (await pair.ask(speaker, "no/such"), -32601, 404 if speaker.modern else 200),
        (await pair.call("no_such", {}, speaker=speaker), -32602, 200),
        (await pair.call(ambiguous, [], speaker=speaker), -32602, 200),
        (await pair.call(ambiguous, {}, speaker=speaker), own_codes[speaker.modern], 200),
    ):
        assert (reply.status, type(reply.error["code"]), reply.error["code"]) == (status, int, code)
        assert reply.error["message"]


@everybody
@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/foo", "notifications/cancelled"])
async def test_notifications_are_accepted(pair: Pair, speaker: Speaker, method: str):
    reply = await pair.ask(speaker, method, id=None)
    assert (reply.status, reply.body, reply.header("content-type")) == (202, b"", None)


async def test_meta_is_missing(pair: Pair):
    tool = pair.tool("/echo")
    body = f'{{"jsonrpc":"2.0","id":"abc","method":"tools/call","params":{{"name":"{tool.name}","arguments":{{}}}}}}'
    reply = await pair.post(body, *AS_MODERN, ("Mcp-Name", tool.name))
    assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32602, "abc")
    assert pair.executions(tool) == 0


async def test_bodies_that_are_no_message(pair: Pair):
    await check_bodies(
        pair, {"{": -32700, "": -32700, "null": -32600, '"x"': -32600, "5": -32600, "true": -32600, "{}": -32600,
               "nul": -32700, '{"jsonrpc":"2.0"}': -32600, '{"jsonrpc":"2.0","method":"ping"} x': -32700}
    )  # fmt: skip


async def test_json_that_is_refused(pair: Pair):
    ping = '{"jsonrpc":"2.0","id":1,"method":"ping","params":%s}'
    await check_bodies(
        pair,
        {
            "[" * 10_000: -32700,
            "[" * 10_000 + "]" * 10_000: -32700,
            '{"a":' * 10_000: -32700,
            ping % '{"a":1,"a":1}': -32700,
            ping % '{"x":[{"\\u0061":1,"a":2}]}': -32700,
            '{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}': -32700,
            ping % '{"a":NaN}': -32700,
            ping % '{"a":-Infinity}': -32700,
            ping % '{"a":"\\ud800"}': -32700,
            ping % '{"a":"\\udc00\\ud800"}': -32700,
            ping % '{"\\ud800":1}': -32700,
            ping % '{"a":"\0"}': -32700,
            ping % '{"a":"\n"}': -32700,
            ping % '{"a":01}': -32700,
            ping % '{"a":1,}': -32700,
            ping % "{'a':1}": -32700,
            ping % '{"a":"\\x"}': -32700,
            (ping % '{"a":"x"}').encode("utf-16"): -32700,
        },
    )
    await pair.is_alive()


@everybody
async def test_what_only_looks_odd_passes(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    arguments = r'{"nul":"a\u0000b","pair":"\ud83d\ude00","brackets":"[[[[{{{{","a":{"a":{"a":1}},"":0}'
    result = (await pair.call(tool, Json(arguments), speaker=speaker)).result
    assert pair.requests(tool)[0].body.decode() == arguments
    assert result["structuredContent"] == json.loads(arguments)


@by_era
async def test_a_body_nested_too_deep(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    reply = await pair.call(tool, Json('{"a":' * 5000 + "1" + "}" * 5000), speaker=speaker)
    check_refused(reply, -32700)
    # params, arguments and 61 more are 64 levels, which is the limit.
    for depth, passes in ((62, True), (63, False)):
        reply = await pair.call(tool, Json('{"a":' * depth + "1" + "}" * depth), speaker=speaker)
        assert (reply.status == 200) is passes, depth
    assert pair.executions(tool) == 1
    await pair.is_alive()


async def test_a_schema_nested_too_deep_is_not_registered(pair: Pair):
    schema = '{"type":"object","properties":{"a":' * 5000 + '{"type":"string"}' + "}}" * 5000
    _, entry = pair.definition("/echo", "nested_too_deep")
    text = json.dumps({**entry, "inputSchema": "SCHEMA"}).replace('"SCHEMA"', schema)
    faults = pair.faults(text)
    assert len(faults) == 1
    assert "deep" in faults[0]
    assert (await pair.call("nested_too_deep", {})).error["data"]["reason"] == "TOOL_NOT_FOUND"


# C: ids


IDS = ["1", "0", "-1", '"1"', '"0"', '""', '"550e8400-e29b-41d4-a716-446655440000"', '"\\u0000 \\ud83d\\ude00"',
       '"안녕"', "9007199254740993", "-9007199254740993", "123456789012345678901234567890", "1e3", "1.0", "1E+3", "-0",
       '"' + "x" * 4094 + '"']  # fmt: skip


@everybody
async def test_ids_come_back_as_they_were_sent(pair: Pair, speaker: Speaker):
    """Character by character, on success and on every path of errors."""
    tool = pair.tool("/echo")
    failing = pair.tool("/500-empty")
    for raw in IDS:
        replies = [
            await pair.call(tool, {}, speaker=speaker, id=Json(raw)),
            await pair.call(failing, {}, speaker=speaker, id=Json(raw)),
            await pair.ask(speaker, "tools/list", id=Json(raw)),
            await pair.ask(speaker, "server/discover" if speaker.modern else "ping", id=Json(raw)),
            await pair.call("no_such", {}, speaker=speaker, id=Json(raw)),
            await pair.call(tool, [], speaker=speaker, id=Json(raw)),
            await pair.ask(speaker, "no/such", id=Json(raw)),
            await pair.ask(speaker, "tools/list", {"cursor": 5}, id=Json(raw)),
        ]
        for reply in replies:
            assert b'"jsonrpc":"2.0","id":%b,"' % raw.encode() in reply.body, (raw, reply.body[:300])
    wrong = await pair.call(tool, {}, ("Authorization", "Basic bm9ib2R5Ong="), speaker=speaker, id=Json("1e3"))
    assert (wrong.status, b'"id":1e3,' in wrong.body) == (401, True)


@everybody
async def test_other_ids_are_refused(pair: Pair, speaker: Speaker):
    """None of them is taken for a notification, and nothing runs."""
    tool = pair.tool("/echo")
    for raw in ("1.5", "null", "true", "false", "{}", "[]", "[1]", "1e-3", "0.1", "15e-1"):
        check_refused(await pair.call(tool, {}, speaker=speaker, id=Json(raw)), -32600, speaker.accept)
    assert pair.executions(tool) == 0


async def test_the_progress_token_of_an_odd_id_is_that_id(pair: Pair):
    reply = await pair.call(pair.tool("/ndjson"), {}, speaker=XDATA, id=Json("1e3"))
    assert reply.body.count(b'"progressToken":1e3,') == 3
    assert b'"id":1e3,' in reply.body


async def test_an_id_that_cannot_be_read_is_null(pair: Pair):
    for body in ("{", '{"jsonrpc":"2.0","id":7,"method":"ping"', '{"id":7,"id":8}'):
        check_refused(await pair.post(body), -32700)
    # One that can be read is told, whatever else is wrong.
    for body in ('{"id":7,"method":"ping"}', '{"jsonrpc":"2.0","id":7}', '{"jsonrpc":"2.0","method":5,"id":7}'):
        reply = await pair.post(body)
        assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32600, 7)
    reply = await pair.post('{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}')
    assert (reply.status, reply.error["code"], reply.json["id"]) == (200, -32602, 7)


@everybody
async def test_large_integers(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    reply = await pair.call(tool, Json('{"id":9007199254740993}'), speaker=speaker, id=Json("9007199254740993"))
    assert pair.requests(tool)[0].body == b'{"id":9007199254740993}'
    assert b'"id":9007199254740993,"result"' in reply.body
    assert b'"structuredContent":{"id":9007199254740993}' in reply.body
    assert reply.result["content"] == [{"type": "text", "text": '{"id":9007199254740993}'}]


async def test_a_cancel_at_the_end_leaves_one_answer_at_most(pair: Pair, gate: asyncio.Event):
    tool = pair.tool("/gate")
    session: Header = ("Mcp-Session-Id", "c10")
    async with pair.calling(tool, {}, session, speaker=LEGACY, id="c10") as wire:
        await pair.arrived(tool)
        gate.set()
        cancel = await pair.ask(LEGACY, "notifications/cancelled", {"requestId": "c10"}, session, id=None)
        assert (cancel.status, cancel.body) == (202, b"")
        first = await wire.reply()
        assert first.json["id"] == "c10"
        # The next answer on this connection is that of the next request.
        ping = message(LEGACY, "ping", id="after")
        await wire.request("POST", "/mcp", pair.authorized(ping.headers), ping.body)
        assert (await wire.reply()).json == {"jsonrpc": "2.0", "id": "after", "result": {}}
    assert pair.executions(tool) == 1


@everybody
async def test_the_same_id_twice_at_once(pair: Pair, gate: asyncio.Event, speaker: Speaker):
    """Sends it for two accounts, to two tools, in the same session: each exchange gets its own answer."""
    slow, fast = pair.tool("/gate"), pair.tool("/echo")
    other = pair.admin.create_account("Other")
    session: Header = ("Mcp-Session-Id", "same")
    async with pair.calling(slow, {}, session, speaker=speaker, id=1) as wire:
        await pair.arrived(slow)
        own = ("Authorization", other.basic)
        replies = await asyncio.gather(
            *(pair.call(fast, {"n": n}, own, session, speaker=speaker, id=1) for n in range(5))
        )
        assert [reply.result["structuredContent"] for reply in replies] == [{"n": n} for n in range(5)]
        gate.set()
        assert (await wire.reply()).result["structuredContent"] == {"passed": True}
    assert set(pair.admin.usage(other.client_id).values()) == {5}


# P: the headers of 2026-07-28


async def test_header_and_meta_differ(pair: Pair):
    meta = {VERSION_META: "2025-11-25", CAPABILITIES_META: {}}
    reply = await pair.ask(MODERN, "tools/list", meta=meta)
    assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32020, 1)


async def test_meta_without_its_version(pair: Pair):
    params = f'{{"name":"x","_meta":{{"{CAPABILITIES_META}":{{}}}}}}'
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
    reply = await pair.post(body, *AS_MODERN, ("Mcp-Name", "x"))
    assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32602, 1)


async def test_discover(pair: Pair):
    reply = await pair.ask(MODERN, "server/discover")
    assert reply.status == 200
    assert reply.result["supportedVersions"][0] == "2026-07-28"
    refused = await pair.ask(MODERN._replace(revision="2099-01-01"), "server/discover")
    assert (refused.status, refused.error["code"]) == (400, -32022)
    # Every version that the error names, discover names too.
    assert set(refused.error["data"]["supported"]) <= set(reply.result["supportedVersions"])


@pytest.mark.parametrize("method", ["ping", "initialize"])
async def test_methods_of_the_handshake_era(pair: Pair, method: str):
    reply = await pair.ask(MODERN, method, {"protocolVersion": "2025-11-25"})
    assert (reply.status, reply.error["code"], reply.json["id"]) == (404, -32601, 1)


async def test_initialize_negotiates(pair: Pair):
    for asked, answered in (("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")):
        reply = await pair.ask(UNNAMED, "initialize", {"protocolVersion": asked})
        assert reply.result["protocolVersion"] == answered
        as_agent_builder = await pair.ask(AGENT_BUILDER, "initialize", {"protocolVersion": asked})
        assert as_agent_builder.result["protocolVersion"] == "2025-11-25"
