"""Every MCP revision on one URL: what each request speaks is told by that request alone."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.pair import Pair
from tests.support.speaker import (
    AGENT_BUILDER,
    BOTH,
    CAPABILITIES_META,
    EVERYBODY,
    LEGACY,
    LEGACY_REVISIONS,
    MODERN,
    UNNAMED,
    V_2025_03_26,
    V_2025_06_18,
    VERSION_META,
    XDATA,
    Json,
    Speaker,
    message,
    sentinel,
    text_of,
)
from tests.support.wire import Header, Reply

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVED = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
CLIENT = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}

by_name = pytest.mark.parametrize("speaker", [UNNAMED, *LEGACY_REVISIONS], ids=lambda speaker: speaker.name)


# The handshake era


@pytest.mark.parametrize("header", ["", *SERVED[1:]])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [(revision, revision) for revision in SERVED[1:]]
    + [("2026-07-28", "2025-11-25"), ("1999-01-01", "2025-11-25"), ("", "2025-11-25"), ("nonsense", "2025-11-25")],
)
async def test_initialize_echoes_a_known_revision(pair: Pair, header: str, asked: str, answered: str):
    speaker = UNNAMED._replace(revision=header)
    reply = await pair.ask(speaker, "initialize", {"protocolVersion": asked, **CLIENT}, id="init")
    assert (reply.status, reply.media_type) == (200, "application/json")
    assert reply.header("mcp-session-id") is None
    result = reply.result
    assert set(result) == {"protocolVersion", "capabilities", "serverInfo"}
    assert result["protocolVersion"] == answered
    assert result["capabilities"] == {"tools": {}}
    assert result["serverInfo"]["name"] == "naru"
    assert result["serverInfo"]["version"]


async def test_initialize_needs_a_version(pair: Pair):
    for params in ({}, {"protocolVersion": 20251125}, {"protocolVersion": None}):
        reply = await pair.ask(UNNAMED, "initialize", params)
        assert (reply.status, reply.error["code"]) == (200, -32602), params


@by_name
async def test_ping(pair: Pair, speaker: Speaker):
    reply = await pair.ask(speaker, "ping", id="p")
    assert (reply.status, reply.json) == (200, {"jsonrpc": "2.0", "id": "p", "result": {}})


@by_name
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("notifications/initialized", None),
        ("notifications/initialized", {}),
        ("notifications/cancelled", {"requestId": "never"}),
        ("notifications/cancelled", {}),
        ("notifications/cancelled", {"requestId": {}}),
        ("notifications/roots/list_changed", None),
        ("notifications/foo", {"anything": [1, 2]}),
        ("tools/call", {"name": "no_such_tool"}),
    ],
)
async def test_notifications_are_accepted_without_a_body(
    pair: Pair, speaker: Speaker, method: str, params: Mapping[str, object] | None
):
    reply = await pair.ask(speaker, method, params, id=None)
    assert (reply.status, reply.body, reply.header("content-type")) == (202, b"", None)


async def test_a_call_without_an_id_is_a_notification_and_runs_nothing(pair: Pair):
    tool = pair.tool("/echo")
    for speaker in EVERYBODY:
        reply = await pair.call(tool, {}, speaker=speaker, id=None)
        assert (reply.status, reply.body) == (202, b""), speaker.name
    assert pair.executions(tool) == 0


@by_name
async def test_a_posted_response_is_accepted_and_ignored(pair: Pair, speaker: Speaker):
    headers: list[Header] = [("MCP-Protocol-Version", speaker.revision)]
    for body in ('{"jsonrpc":"2.0","id":1,"result":{}}', '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}'):
        reply = await pair.post(body, *headers)
        assert (reply.status, reply.body) == (202, b"")


@by_name
async def test_unknown_methods(pair: Pair, speaker: Speaker):
    for method in ("prompts/list", "resources/list", "logging/setLevel", "server/discover", "TOOLS/LIST", ""):
        reply = await pair.ask(speaker, method)
        assert (reply.status, reply.error["code"]) == (200, -32601), method


@by_name
async def test_legacy_results_have_nothing_of_the_modern_era(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    result = (await pair.call(tool, {"a": 1}, speaker=speaker)).result
    assert result == {
        "content": [{"type": "text", "text": '{"a":1}'}],
        "structuredContent": {"a": 1},
        "isError": False,
    }
    listing = (await pair.ask(speaker, "tools/list")).result
    assert set(listing) == {"tools", "_meta"}
    assert listing["_meta"] == {"xdata.kr/lane": "production"}


@by_name
async def test_a_cursor_was_never_issued_to_a_legacy_client(pair: Pair, speaker: Speaker):
    reply = await pair.ask(speaker, "tools/list", {"cursor": "abc"})
    assert (reply.status, reply.error["code"], reply.error["data"]["reason"]) == (200, -32602, "INVALID_PARAMS")


async def test_a_structure_that_is_no_object_does_not_reach_legacy_clients(pair: Pair):
    tool = pair.tool("/list", outputSchema={"type": "array"})
    for speaker in (*LEGACY_REVISIONS, AGENT_BUILDER, XDATA):
        result = (await pair.call(tool, {}, speaker=speaker)).result
        assert result == {"content": [{"type": "text", "text": "[1, 2.0]"}], "isError": False}, speaker.name
        listed = (await pair.ask(speaker, "tools/list")).result["tools"]
        assert "outputSchema" not in next(entry for entry in listed if entry["name"] == tool.name)
    reply = await pair.call(tool, {}, speaker=MODERN)
    assert b'"structuredContent":[1, 2.0]' in reply.body
    listed = (await pair.ask(MODERN, "tools/list")).result["tools"]
    assert next(entry for entry in listed if entry["name"] == tool.name)["outputSchema"] == {"type": "array"}


@pytest.mark.parametrize(
    ("speaker", "as_error"),
    [(AGENT_BUILDER, True), (V_2025_03_26, True), (V_2025_06_18, True), (LEGACY, False), (UNNAMED, False),
     (XDATA, False), (MODERN, False)],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
async def test_arguments_that_break_the_schema(pair: Pair, speaker: Speaker, as_error: bool):
    tool = pair.tool("/echo", inputSchema={"type": "object", "properties": {"n": {"type": "integer"}}})
    reply = await pair.call(tool, {"n": "many"}, speaker=speaker)
    assert reply.status == 200
    if as_error:
        assert reply.error["code"] == -32602
        data = reply.error["data"]
    else:
        assert reply.result["isError"] is True
        assert "/n" in reply.result["content"][0]["text"]  # models read nothing but the text
        data = reply.result["_meta"]["xdata.kr/error"]
    assert (data["reason"], data["error_code"], data["safe_to_retry"]) == ("ARGUMENTS_INVALID", "E1204", False)
    assert [violation["pointer"] for violation in data["violations"]] == ["/n"]
    assert pair.executions(tool) == 0


async def test_an_unknown_version_in_the_header_is_refused(pair: Pair):
    for revision in ("1999-01-01", "2025-11-26", "2099-01-01", "draft"):
        reply = await pair.ask(LEGACY._replace(revision=revision), "tools/list")
        assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32022, 1)
        data = reply.error["data"]
        assert (data["requested"], data["supported"]) == (revision, SERVED)


# 2026-07-28


async def test_discover(pair: Pair):
    reply = await pair.ask(MODERN, "server/discover", id="d1")
    assert (reply.status, reply.media_type) == (200, "application/json")
    assert reply.result == {
        "resultType": "complete",
        "supportedVersions": SERVED,
        "capabilities": {"tools": {}},
        "ttlMs": 3_600_000,
        "cacheScope": "public",
        "_meta": {SERVER_INFO: reply.result["_meta"][SERVER_INFO]},
    }
    assert reply.result["_meta"][SERVER_INFO]["name"] == "naru"


async def test_modern_results(pair: Pair):
    tool = pair.tool("/echo")
    listing = (await pair.ask(MODERN, "tools/list")).result
    assert (listing["resultType"], listing["cacheScope"]) == ("complete", "private")
    assert 0 <= listing["ttlMs"] <= 5000
    assert listing["_meta"]["xdata.kr/lane"] == "production"
    assert listing["_meta"][SERVER_INFO]["name"] == "naru"
    assert [entry["name"] for entry in listing["tools"]] == sorted(entry["name"] for entry in listing["tools"])
    called = (await pair.call(tool, {"a": 1}, speaker=MODERN)).result
    assert (called["resultType"], called["isError"], called["structuredContent"]) == ("complete", False, {"a": 1})
    assert called["_meta"] == {SERVER_INFO: listing["_meta"][SERVER_INFO]}


Meta = dict[str, object]
Params = Mapping[str, object] | None
FULL: Meta = {VERSION_META: "2026-07-28", CAPABILITIES_META: {}}


async def post_modern(
    pair: Pair, params: Mapping[str, object], *headers: Header, method: str = "tools/list", accept: str = BOTH
) -> Reply:
    """A request whose every part the test chooses; only what `headers` name replaces the right headers."""
    name = params.get("name")
    right: list[Header] = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)]
    if isinstance(name, str):
        right.append(("Mcp-Name", name))
    named = {key.lower() for key, _ in headers}
    sent = [pair_ for pair_ in right if pair_[0].lower() not in named] + [pair_ for pair_ in headers if pair_[1]]
    body = {"jsonrpc": "2.0", "id": "abc", "method": method, "params": params}
    return await pair.post(text_of(body), *sent, accept=accept)


def check_refusal(reply: Reply, code: int, reason: str, status: int = 400) -> Any:
    assert (reply.status, reply.media_type) == (status, "application/json"), reply
    assert reply.json["id"] == "abc"
    assert (reply.error["code"], reply.error["data"]["reason"]) == (code, reason)
    return reply.error["data"]


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {CAPABILITIES_META: {}},
        {VERSION_META: "2026-07-28"},
        {VERSION_META: 20260728, CAPABILITIES_META: {}},
        {VERSION_META: None, CAPABILITIES_META: {}},
        {**FULL, CAPABILITIES_META: []},
        {**FULL, CAPABILITIES_META: None},
        {**FULL, "io.modelcontextprotocol/logLevel": "loud"},
        {**FULL, "progressToken": 1.5},
        {**FULL, "progressToken": {}},
    ],
    ids=str,
)
async def test_meta_comes_before_the_headers(pair: Pair, meta: Meta):
    """Step 3: also when the headers are wrong, so that clients stay in the modern era."""
    check_refusal(await post_modern(pair, {"_meta": meta}), -32602, "INVALID_PARAMS")
    wrong = await post_modern(pair, {"_meta": meta}, ("Mcp-Method", "ping"))
    check_refusal(wrong, -32602, "INVALID_PARAMS")


async def test_meta_has_to_be_an_object(pair: Pair):
    for meta in ("[]", '"x"', "null", "5"):
        check_refusal(await post_modern(pair, {"_meta": Json(meta)}), -32602, "INVALID_PARAMS")
    check_refusal(await post_modern(pair, {}), -32602, "INVALID_PARAMS")


@pytest.mark.parametrize(
    "headers",
    [
        [("MCP-Protocol-Version", "")],
        [("MCP-Protocol-Version", "2025-11-25")],
        [("MCP-Protocol-Version", "2027-01-01")],
        [("Mcp-Method", "")],
        [("Mcp-Method", "tools/call")],
        [("Mcp-Method", "Tools/List")],
        [("Mcp-Method", "tools/list"), ("Mcp-Method", "tools/call")],
        [("MCP-Protocol-Version", "2026-07-28"), ("MCP-Protocol-Version", "2025-11-25")],
    ],
    ids=str,
)
async def test_headers_have_to_be_those_of_the_body(pair: Pair, headers: list[Header]):
    check_refusal(await post_modern(pair, {"_meta": FULL}, *headers), -32020, "HEADER_MISMATCH")


async def test_white_space_and_case_of_names_do_not_matter(pair: Pair):
    reply = await post_modern(pair, {"_meta": FULL}, ("mcp-PROTOCOL-version", "  2026-07-28\t"),
                              ("MCP-METHOD", "\ttools/list "))  # fmt: skip
    assert reply.status == 200
    assert reply.result["resultType"] == "complete"


async def test_a_version_that_nobody_serves(pair: Pair):
    meta = {VERSION_META: "2099-01-01", CAPABILITIES_META: {}}
    data = check_refusal(
        await post_modern(pair, {"_meta": meta}, ("MCP-Protocol-Version", "2099-01-01")),
        -32022, "UNSUPPORTED_PROTOCOL_VERSION",
    )  # fmt: skip
    assert data["supported"] == SERVED
    assert data["requested"] == "2099-01-01"


@pytest.mark.parametrize("method", ["ping", "initialize", "logging/setLevel", "prompts/list", "notifications/x", "x"])
async def test_methods_that_are_gone_or_never_were(pair: Pair, method: str):
    params = {"_meta": FULL, "protocolVersion": "2025-11-25"}
    check_refusal(await post_modern(pair, params, method=method), -32601, "METHOD_NOT_FOUND", 404)
    # Without its meta it is refused for that, before anybody asks whether the method is known.
    check_refusal(await post_modern(pair, {}, method=method), -32602, "INVALID_PARAMS")


async def test_the_name_header(pair: Pair):
    tool = pair.tool("/echo")
    params = {"name": tool.name, "arguments": {"a": 1}, "_meta": FULL}
    for value in (tool.name, f"  {tool.name} ", sentinel(tool.name)):
        reply = await post_modern(pair, params, ("Mcp-Name", value), method="tools/call")
        assert reply.result["structuredContent"] == {"a": 1}, value
    for values in (
        [""], [tool.name.upper()], ["other"], [sentinel("other")], [tool.name, "other"],
        [sentinel(tool.name).replace("base64", "BASE64")], [sentinel(tool.name)[:-2]],
        [f"=?base64?{'*' * 8}?="], ["=?base64?=?="],
    ):  # fmt: skip
        headers: list[Header] = [("Mcp-Name", value) for value in values]
        check_refusal(await post_modern(pair, params, *headers, method="tools/call"), -32020, "HEADER_MISMATCH")
    assert pair.executions(tool) == 3


async def test_the_order_of_the_ladder(pair: Pair):
    """Each request has every fault from its step on; the earliest step speaks."""
    bad_version: Meta = {VERSION_META: "2099-01-01", CAPABILITIES_META: {}}
    repeated: list[Header] = [("Mcp-Method", "a"), ("Mcp-Method", "b"), ("MCP-Protocol-Version", "2099-01-01")]
    check_refusal(await post_modern(pair, {}, *repeated, method="no/such"), -32020, "HEADER_MISMATCH")
    check_refusal(
        await post_modern(pair, {}, ("Mcp-Method", "a"), ("MCP-Protocol-Version", "2099-01-01"), method="no/such"),
        -32022, "UNSUPPORTED_PROTOCOL_VERSION",
    )  # fmt: skip
    check_refusal(
        await post_modern(pair, {}, ("Mcp-Method", "a"), method="no/such"),
        -32602, "INVALID_PARAMS",
    )  # fmt: skip
    check_refusal(
        await post_modern(pair, {"_meta": bad_version}, ("Mcp-Method", "a"), method="no/such"),
        -32020, "HEADER_MISMATCH",
    )  # fmt: skip
    check_refusal(
        await post_modern(pair, {"_meta": bad_version}, ("MCP-Protocol-Version", "2099-01-01"), method="no/such"),
        -32022, "UNSUPPORTED_PROTOCOL_VERSION",
    )  # fmt: skip
    check_refusal(
        await post_modern(pair, {"_meta": FULL, "cursor": 5}, method="no/such"), -32601, "METHOD_NOT_FOUND", 404
    )
    reply = await post_modern(pair, {"_meta": FULL, "cursor": 5})
    assert reply.error["code"] == -32602


@pytest.mark.parametrize("headers", [[], [("MCP-Protocol-Version", "2025-11-25")]], ids=["without", "legacy"])
async def test_modern_meta_without_its_header_is_refused(pair: Pair, headers: list[Header]):
    tool = pair.tool("/echo")
    body = {"jsonrpc": "2.0", "id": "abc", "method": "tools/call", "params": {"name": tool.name, "_meta": FULL}}
    check_refusal(await pair.post(json.dumps(body), *headers), -32020, "HEADER_MISMATCH")
    # Nor does an Accept of JSON alone make an Agent Builder of it.
    check_refusal(await pair.post(json.dumps(body), *headers, accept="application/json"), -32020, "HEADER_MISMATCH")
    assert pair.executions(tool) == 0


async def test_a_modern_client_that_takes_json_only_is_modern(pair: Pair):
    reply = await pair.ask(MODERN.accepting("application/json"), "server/discover")
    assert reply.result["supportedVersions"] == SERVED


async def test_clients_do_not_post_responses_any_more(pair: Pair):
    reply = await pair.post('{"jsonrpc":"2.0","id":1,"result":{}}', ("MCP-Protocol-Version", "2026-07-28"))
    assert (reply.status, reply.error["code"]) == (400, -32600)


async def test_a_capability_that_the_tool_demands(pair: Pair):
    wanted: dict[str, object] = {"elicitation": {}, "extensions": {"io.example/x": {}}}
    tool = pair.tool("/echo", requiredClientCapabilities=wanted)
    reply = await pair.call(tool, {}, speaker=MODERN, id="abc")
    data = check_refusal(reply, -32021, "MISSING_CLIENT_CAPABILITY")
    assert data["requiredCapabilities"] == wanted
    assert pair.executions(tool) == 0
    declared = {CAPABILITIES_META: {**wanted, "sampling": {}}}
    assert (await pair.call(tool, {"a": 1}, speaker=MODERN, meta=declared)).result["structuredContent"] == {"a": 1}
    # Legacy clients declare theirs once, at initialize, and nobody remembers it.
    assert (await pair.call(tool, {"a": 1}, speaker=LEGACY)).result["structuredContent"] == {"a": 1}


async def test_own_codes_leave_the_reserved_range(pair: Pair):
    tool, first = pair.definition("/echo")
    _, second = pair.definition("/echo", tool.name, version="2", active=False)
    pair.admin.apply({"tools": [first, second]})
    pair.admin.activate(tool.name, "2", keep_others_active=True)
    for speaker, code in ((LEGACY, -32005), (AGENT_BUILDER, -32005), (MODERN, -31005)):
        reply = await pair.call(tool, {}, speaker=speaker)
        assert (reply.status, reply.error["code"]) == (200, code)
    in_no_lane = await pair.call(tool, {}, ("X-MCP-Env-Scope", "moon"), speaker=MODERN)
    assert in_no_lane.error["code"] == -31006


async def test_an_unknown_tool_is_200_for_everybody(pair: Pair):
    for speaker in EVERYBODY:
        reply = await pair.call("no_such_tool", {}, speaker=speaker)
        assert (reply.status, reply.error["code"]) == (200, -32602), speaker.name


async def test_eras_interleave_on_one_connection(pair: Pair):
    """Nothing is remembered: not what a connection spoke before, not what it was told."""
    tool = pair.tool("/echo")
    initialize = {"protocolVersion": "2025-06-18", **CLIENT}
    async with await pair.wire() as wire:

        async def ask(
            speaker: Speaker, method: str, params: Mapping[str, object] | None = None, id: object = 1
        ) -> Reply:
            built = message(speaker, method, params, id=id)
            await wire.request("POST", "/mcp", pair.authorized(built.headers), built.body)
            return await wire.reply()

        call = {"name": tool.name, "arguments": Json('{"n":1.0}')}
        for round_ in range(3):
            assert (await ask(MODERN, "server/discover", id=f"a{round_}")).result["supportedVersions"] == SERVED
            assert (await ask(UNNAMED, "initialize", initialize)).result["protocolVersion"] == "2025-06-18"
            assert (await ask(AGENT_BUILDER, "initialize", initialize)).result["serverInfo"] == {}
            assert (await ask(V_2025_06_18, "notifications/initialized", id=None)).status == 202
            assert "resultType" not in (await ask(V_2025_06_18, "tools/call", call)).result
            assert (await ask(MODERN, "tools/call", call)).result["resultType"] == "complete"
            assert (await ask(XDATA, "tools/call", call)).events[-1].message["id"] == 1
            assert (await ask(MODERN, "ping")).status == 404
            assert (await ask(LEGACY, "ping")).result == {}
            assert (await ask(AGENT_BUILDER, "tools/call", call)).result["isError"] is False
            assert (await ask(MODERN, "initialize", initialize)).status == 404
    assert pair.executions(tool) == 3 * 4
