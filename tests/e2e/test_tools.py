"""Texts, schemas, names, pages and versions of tools, on what users of other gateways have reported."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from naru.v1.accounts_pb2 import Account, UpdateAccountRequest
from naru.v1.registry_pb2 import GetToolRequest, ListToolVersionsRequest
from tests.support.pair import Pair, Tool, running_pair
from tests.support.scripted_endpoint import Script, ScriptedEndpoint
from tests.support.speaker import (
    AGENT_BUILDER,
    BOTH,
    CAPABILITIES_META,
    EVERYBODY,
    LEGACY,
    LEGACY_REVISIONS,
    MODERN,
    VERSION_META,
    XDATA,
    Json,
    Speaker,
    sentinel,
)
from tests.support.wire import Header, Reply

pytestmark = pytest.mark.asyncio(loop_scope="session")

by_era = pytest.mark.parametrize("speaker", [LEGACY, MODERN], ids=lambda speaker: speaker.name)
everybody = pytest.mark.parametrize("speaker", EVERYBODY, ids=lambda speaker: speaker.name)


async def listed(pair: Pair, speaker: Speaker = LEGACY) -> dict[str, Any]:
    """The tools by name, as this client sees them."""
    tools = (await pair.ask(speaker, "tools/list")).result["tools"]
    assert all(None not in tool.values() for tool in tools)
    return {tool["name"]: tool for tool in tools}


def check_violations(reply: Reply, *pointers: str) -> None:
    error = reply.result["_meta"]["xdata.kr/error"]
    assert error["reason"] == "ARGUMENTS_INVALID"
    assert sorted(violation["pointer"] for violation in error["violations"]) == sorted(pointers)


# I: texts


@everybody
@pytest.mark.parametrize("mode", ["/hangul", "/escaped-hangul", "/euc-kr"])
async def test_hangul_can_be_read_in_the_text(pair: Pair, speaker: Speaker, mode: str):
    reply = await pair.call(pair.tool(mode), {}, speaker=speaker)
    assert "안녕" in reply.result["content"][0]["text"]
    assert reply.result["structuredContent"]["msg"] == "안녕"
    assert "안녕" in reply.body.decode()


@everybody
async def test_korean_definitions_are_served_byte_for_byte(pair: Pair, speaker: Speaker):
    schema = (
        '{"type":"object","properties":{"이름":{"type":"string","description":"사람 이름 😀"},"b":{"default":1.0}}}'
    )
    _, entry = pair.definition("/echo", title="한글 제목", description="설명 “따옴표” – 줄표")
    assert not pair.faults(
        json.dumps({**entry, "inputSchema": "SCHEMA"}, ensure_ascii=False).replace('"SCHEMA"', schema)
    )
    body = (await pair.ask(speaker, "tools/list")).body.decode()
    assert f'"inputSchema":{schema}' in body
    assert '"title":"한글 제목"' in body
    assert '"description":"설명 “따옴표” – 줄표"' in body


@everybody
async def test_nothing_changes_on_the_way_there_and_back(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    text = '{"text":"– 호스트 \\ud638\\uc2a4\\ud2b8 \\/ é é"}'
    reply = await pair.call(tool, Json(text), speaker=speaker)
    assert pair.requests(tool)[0].body.decode() == text
    assert f'"structuredContent":{text}' in reply.body.decode()
    again = await pair.call(tool, reply.result["structuredContent"], speaker=speaker)
    assert again.result["structuredContent"] == json.loads(text)


async def test_the_sentinel_in_mcp_name(pair: Pair):
    meta = {VERSION_META: "2026-07-28", CAPABILITIES_META: {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "도구", "_meta": meta}})
    right: list[Header] = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call")]
    assert sentinel("도구") == "=?base64?64+E6rWs?="
    decoded = await pair.post(body, *right, ("Mcp-Name", "=?base64?64+E6rWs?="))
    assert (decoded.status, decoded.error["data"]["reason"]) == (200, "TOOL_NOT_FOUND")
    for value in ("도구", "=?BASE64?64+E6rWs?=", "=?base64?64+E6rWs", "=?base64?64-E6rWs?=", "도구".encode("euc-kr")):
        reply = await pair.post(body, *right, ("Mcp-Name", value))
        assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32020, 1), value


@pytest.mark.parametrize("accept", [BOTH, "application/json"])
async def test_bodies_that_are_not_utf_8(pair: Pair, accept: str):
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"%b"}}'
    for body in (
        ping % b"\xff", ping % b"\xed\xa0\x80", ping % b"\xc0\xaf", ping % "안녕".encode("euc-kr"), ping % b"\xec\x95",
        b"\xef\xbb\xbf" + ping % b"x",
    ):  # fmt: skip
        reply = await pair.post(body, accept=accept)
        status = 400 if accept == BOTH else 200
        assert (reply.status, reply.error["code"], reply.json["id"]) == (status, -32700, None)
    assert (await pair.post(ping % "안녕".encode(), accept=accept)).result == {}


# J: schemas


async def test_a_property_that_may_be_anything(pair: Pair):
    tool = pair.tool("/echo", inputSchema={"type": "object", "properties": {"raw": True, "never": False}})
    # Older clients want objects there, and get such as mean the same; see registry_service/tools/mcp_tool.py.
    for speaker, properties in ((LEGACY, {"raw": {}, "never": {"not": {}}}), (MODERN, {"raw": True, "never": False})):
        names = await listed(pair, speaker)
        assert names[tool.name]["inputSchema"] == {"type": "object", "properties": properties}
        assert "is_alive" in names
    for value in ('{"raw":[1,{}]}', '{"raw":null}', "{}"):
        assert (await pair.call(tool, Json(value))).result["isError"] is False
    check_violations(await pair.call(tool, {"never": 1}), "/never")


async def test_roots_that_are_no_objects(pair: Pair):
    schema: Any
    for schema in (
        {"oneOf": [{"type": "object"}, {"type": "object"}]}, {"type": "array"}, {"type": ["object", "null"]}, True, [],
        None, "object", {"type": "objekt"}, {"type": "object", "properties": []}, {"type": "object", "required": "x"},
    ):  # fmt: skip
        _, entry = pair.definition("/echo", "j02", inputSchema=schema)
        assert any(fault.startswith("/tools/0/inputSchema") for fault in pair.faults(entry)), schema
    untyped = pair.tool("/echo", outputSchema={"properties": {"a": {"type": "integer"}}})
    for speaker in EVERYBODY:
        names = await listed(pair, speaker)
        assert "j02" not in names
        schema = names[untyped.name].get("outputSchema")
        assert speaker.modern or schema is None or schema["type"] == "object"
        assert (await pair.call(untyped, {"a": 1}, speaker=speaker)).result["structuredContent"] == {"a": 1}


async def test_a_typed_root_may_have_alternatives(pair: Pair):
    schema = {
        "type": "object",
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "if": {"required": ["a"]},
        "then": {"properties": {"a": {"const": 1}}},
    }
    tool = pair.tool("/echo", inputSchema=schema)
    assert (await listed(pair))[tool.name]["inputSchema"] == schema
    assert (await pair.call(tool, {"a": 1})).result["isError"] is False
    assert (await pair.call(tool, {"a": 2})).result["isError"] is True
    assert (await pair.call(tool, {"a": 1, "b": 1})).result["isError"] is True


async def test_the_dialect_is_that_of_the_schema(pair: Pair):
    # In draft-07 an array of `items` is a tuple; in 2020-12 that is `prefixItems`.
    tuple_07 = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"t": {"items": [{"type": "integer"}, {"type": "string"}], "prefixItems": [{"type": "null"}]}},
    }
    tool = pair.tool("/echo", inputSchema=tuple_07)
    assert (await listed(pair))[tool.name]["inputSchema"] == tuple_07
    assert (await pair.call(tool, {"t": [1, "x"]})).result["isError"] is False
    check_violations(await pair.call(tool, {"t": ["x", "x"]}), "/t/0")
    default = {key: value for key, value in tuple_07.items() if key != "$schema"}
    named = {**default, "$schema": "https://json-schema.org/draft/2020-12/schema"}
    for schema in (default, named):
        assert pair.faults(pair.definition("/echo", "j04", inputSchema=schema)[1])
    for dialect in ("https://example.com/mine", "https://json-schema.org/draft/2030-01/schema", 7):
        _, entry = pair.definition("/echo", "j04", inputSchema={"$schema": dialect, "type": "object"})
        assert any("$schema" in fault for fault in pair.faults(entry))


async def test_additional_properties_are_as_declared(pair: Pair):
    open_schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    open_tool = pair.tool("/echo", inputSchema=open_schema)
    closed_tool = pair.tool("/echo", inputSchema={**open_schema, "additionalProperties": False})
    names = await listed(pair)
    assert names[open_tool.name]["inputSchema"] == open_schema
    assert names[closed_tool.name]["inputSchema"] == {**open_schema, "additionalProperties": False}
    assert (await pair.call(open_tool, {"b": 1})).result["structuredContent"] == {"b": 1}
    check_violations(await pair.call(closed_tool, {"b": 1}), "")
    assert pair.executions(closed_tool) == 0


async def test_nothing_is_fetched_for_a_reference(pair: Pair):
    async with ScriptedEndpoint() as elsewhere:
        for reference in (
            "file:///etc/passwd", "http://169.254.169.254/", elsewhere.url("/hangul"), "other.json", "#/no/such",
            "//x/y",
        ):  # fmt: skip
            for keyword in ("$ref", "$dynamicRef"):
                schema = {"type": "object", "properties": {"a": {keyword: reference}}}
                for member in ("inputSchema", "outputSchema"):
                    _, entry = pair.definition("/echo", "j07", **{member: schema})
                    faults = pair.faults(entry)
                    assert any(f"/tools/0/{member}" in fault for fault in faults), (reference, keyword, member)
        assert elsewhere.connections == 0
    inside = {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}
    tool = pair.tool("/echo", inputSchema=inside)
    check_violations(await pair.call(tool, {"a": "x"}), "/a")


async def test_a_reference_to_itself_without_end_is_refused(pair: Pair):
    endless = {"type": "object", "allOf": [{"$ref": "#"}]}
    assert pair.faults(pair.definition("/echo", "j07", inputSchema=endless)[1])
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}
    tool = pair.tool("/echo", inputSchema=tree)
    check_violations(await pair.call(tool, {"child": {"child": {"x": 1}}}), "/child/child")


@everybody
async def test_properties_named_like_keywords(pair: Pair, speaker: Speaker):
    names = ("title", "type", "default", "properties", "required", "$ref", "description", "null")
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": ["type"]}
    tool = pair.tool("/echo", inputSchema=schema)
    assert (await listed(pair, speaker))[tool.name]["inputSchema"] == schema
    arguments = dict.fromkeys(names, "x")
    assert (await pair.call(tool, arguments, speaker=speaker)).result["structuredContent"] == arguments


@everybody
async def test_values_that_are_false_are_values(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    text = '{"flag":false,"q":"","n":0,"x":null,"o":{},"l":[]}'
    reply = await pair.call(tool, Json(text), speaker=speaker)
    assert pair.requests(tool)[0].body.decode() == text
    assert f'"structuredContent":{text}' in reply.body.decode()


async def test_defaults_are_the_tools_business(pair: Pair):
    tool = pair.tool("/echo", inputSchema={"type": "object", "properties": {"n": {"type": "integer", "default": 5}}})
    await pair.call(tool, {})
    await pair.call(tool, None)
    assert [request.body for request in pair.requests(tool)] == [b"{}", b"{}"]


OUTPUT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@everybody
async def test_output_schemas_bind_success_only(pair: Pair, speaker: Speaker):
    async def call(script: Script, **endpoint: str) -> Any:
        tool = pair.tool(script, outputSchema=OUTPUT, endpoint=endpoint)
        return (await pair.call(tool, {}, speaker=speaker)).result

    good = await call(Script(chunks=[b'{"a":1,"more":2}']))
    assert (good["isError"], good["structuredContent"]) == (False, {"a": 1, "more": 2})

    refused = await call(Script(status=422, content_type="text/plain", chunks=["재고 없음".encode()]))
    assert (refused["isError"], refused["content"]) == (True, [{"type": "text", "text": "재고 없음"}])
    told = await call(Script(chunks=[b'{"isError":true,"content":[{"type":"text","text":"no stock"}]}']), result="mcp")
    assert (told["isError"], told["content"]) == (True, [{"type": "text", "text": "no stock"}])

    for script, endpoint in (
        (Script(chunks=[b'{"a":"x"}']), {}),
        (Script(chunks=[b"{}"]), {}),
        (Script(content_type="text/plain", chunks=[b"fine"]), {}),
        (Script(status=204, content_type=None), {}),
        (Script(chunks=[b'{"content":[{"type":"text","text":"fine"}]}']), {"result": "mcp"}),
    ):
        missing = await call(script, **endpoint)
        assert missing["isError"] is True
        assert "structuredContent" not in missing
        assert missing["_meta"]["xdata.kr/error"]["reason"] == "TOOL_RESPONSE_INVALID"


@everybody
async def test_annotations_that_are_false_are_still_there(pair: Pair, speaker: Speaker):
    annotations = {"readOnlyHint": False, "idempotentHint": False, "x-own": [0, ""]}
    tool = pair.tool("/echo", annotations=annotations)
    assert (await listed(pair, speaker))[tool.name]["annotations"] == annotations


# K: names


async def test_names(pair: Pair):
    for name in ("New Tool", "a/b", "x" * 129, "", ".", "..", "도구", "a\n", "a:b", "a b", None, 5):
        _, entry = pair.definition("/echo")
        assert any(fault.startswith("/tools/0/name") for fault in pair.faults({**entry, "name": name})), name
    for name in ("graph.list", "x" * 128, "-", "A_b-1.2", "tools.call", "__proto__", "constructor"):
        tool = pair.tool("/echo", name=name)
        for speaker in (LEGACY, MODERN, AGENT_BUILDER):
            assert name in await listed(pair, speaker)
            assert (await pair.call(tool, {"a": 1}, speaker=speaker)).result["structuredContent"] == {"a": 1}


@everybody
async def test_a_name_is_exact(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    name = tool.name
    for other in (f"{name}\n", f" {name}", name.upper(), f"{name}\0", "", f"%74{name[1:]}", "x" * 10_000):
        reply = await pair.call(other, {}, speaker=speaker)
        assert (reply.status, reply.error["code"]) == (200, -32602), other
        assert reply.error["data"]["reason"] == "TOOL_NOT_FOUND"
        assert len(reply.body) < 2000
    assert pair.executions(tool) == 0


# L: pages


PAGE = 1000
MANY = 2 * PAGE + 5


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def large_pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """A pair of its own with many tools."""
    async with running_pair(tmp_path_factory.mktemp("large")) as pair:
        _, entry = pair.definition("/echo")
        more = MANY - len(await listed(pair))
        tools = [{**entry, "name": f"many.{number:05}"} for number in range(more)]
        pair.admin.apply({"tools": tools})
        yield pair


async def pages(pair: Pair) -> Sequence[Any]:
    found: list[Any] = []
    cursor: dict[str, object] = {}
    while len(found) < 10:
        result = (await pair.ask(MODERN, "tools/list", cursor)).result
        found.append(result)
        if "nextCursor" not in result:
            return found
        cursor = {"cursor": result["nextCursor"]}
    raise AssertionError("the pages do not end")


async def test_pages_of_a_modern_client(large_pair: Pair):
    found = await pages(large_pair)
    assert [len(page["tools"]) for page in found] == [PAGE, PAGE, 5]
    names = [tool["name"] for page in found for tool in page["tools"]]
    assert names == sorted(set(names))
    assert len(names) == MANY
    assert "nextCursor" not in found[-1]
    assert {page["cacheScope"] for page in found} == {"private"}


@pytest.mark.parametrize("speaker", [*LEGACY_REVISIONS, AGENT_BUILDER, XDATA], ids=lambda speaker: speaker.name)
async def test_one_answer_for_all_others(large_pair: Pair, speaker: Speaker):
    result = (await large_pair.ask(speaker, "tools/list")).result
    assert len(result["tools"]) == MANY
    assert "nextCursor" not in result


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "many.00001", "\0", "가" * 100, "x" * 5000])
async def test_a_cursor_of_somebody_elses(large_pair: Pair, cursor: str):
    reply = await large_pair.ask(MODERN, "tools/list", {"cursor": cursor})
    assert (reply.status, reply.error["code"], reply.error["data"]["reason"]) == (200, -32602, "INVALID_PARAMS")


async def test_a_cursor_of_another_account_or_lane(large_pair: Pair):
    cursor = {"cursor": (await large_pair.ask(MODERN, "tools/list")).result["nextCursor"]}
    other = large_pair.admin.create_account()
    for header in (("Authorization", other.basic), ("X-MCP-Env-Scope", "real_test")):
        reply = await large_pair.ask(MODERN, "tools/list", cursor, header)
        assert (reply.status, reply.error["code"], reply.error["data"]["reason"]) == (200, -32602, "INVALID_PARAMS")
    assert (await large_pair.ask(MODERN, "tools/list", cursor)).result["tools"]


async def test_a_page_holds_still_when_tools_go(large_pair: Pair):
    first = (await large_pair.ask(MODERN, "tools/list")).result
    gone = first["tools"][-1]["name"]
    large_pair.admin.deactivate(gone, "1.0.0")
    second = (await large_pair.ask(MODERN, "tools/list", {"cursor": first["nextCursor"]})).result
    assert second["tools"][0]["name"] > gone
    assert len(second["tools"]) == PAGE
    large_pair.admin.activate(gone, "1.0.0")


# X: versions


def two_versions(pair: Pair) -> tuple[Tool, Tool]:
    """One tool with two versions, the first of them active; each has an endpoint of its own."""
    first, entry = pair.definition(Script(chunks=[b'{"version":1}']))
    second, other = pair.definition(Script(chunks=[b'{"version":2}']), first.name, version="2.0.0", active=False,
                                    description="The second.")  # fmt: skip
    pair.admin.apply({"tools": [entry, other]})
    return first, second


@everybody
async def test_list_and_call_agree_at_once(pair: Pair, speaker: Speaker):
    tool, _ = two_versions(pair)
    for version, number, description in (("2.0.0", 2, "The second."), ("1.0.0", 1, "Does what it is told.")):
        pair.admin.activate(tool.name, version)
        assert (await listed(pair, speaker))[tool.name]["description"] == description
        reply = await pair.call(tool, {}, speaker=speaker)
        assert reply.result["structuredContent"] == {"version": number}
        assert pair.admin.get_call(reply.header("x-naru-call-id") or "").version == version


@everybody
async def test_a_deactivated_tool_is_gone_at_once(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    assert tool.name in await listed(pair, speaker)
    pair.admin.deactivate(tool.name, "1.0.0")
    assert tool.name not in await listed(pair, speaker)
    reply = await pair.call(tool, {}, speaker=speaker)
    assert (reply.status, reply.error["code"], reply.error["data"]["reason"]) == (200, -32602, "TOOL_NOT_ACTIVE")
    assert pair.executions(tool) == 0


@everybody
async def test_a_call_that_was_admitted_runs_on(pair: Pair, speaker: Speaker):
    tool = pair.tool("/gate")
    pair.endpoint.gate.clear()
    running = asyncio.ensure_future(pair.call(tool, {}, speaker=speaker))
    await pair.arrived(tool)
    pair.admin.deactivate(tool.name, "1.0.0")
    assert (await pair.call(tool, {}, speaker=speaker)).error["data"]["reason"] == "TOOL_NOT_ACTIVE"
    pair.endpoint.gate.set()
    assert (await running).result["structuredContent"] == {"passed": True}
    assert pair.executions(tool) == 1


async def test_one_normal_form(pair: Pair):
    tool, entry = pair.definition("/echo")
    for version in ("1.0", "1.10", "v1.9"):
        assert not pair.faults({**entry, "version": version, "active": version == "1.10"})
    for spelling in ("v1.0", "1.00", " 1.0 "):
        same = pair.admin.apply({"tools": [{**entry, "version": spelling, "active": False}]})
        assert [(change.version, change.action) for change in same] == [("1.0", same[0].UNCHANGED)], spelling
        other = {**entry, "version": spelling, "active": False, "description": "Another."}
        assert any("/tools/0" in fault for fault in pair.faults(other))
    request = ListToolVersionsRequest(tool=tool.name)
    versions = pair.admin.call(pair.admin.registry.ListToolVersions, request).tool_versions
    assert [(version.version, version.active) for version in versions] == [
        ("1.10", True),
        ("1.9", False),
        ("1.0", False),
    ]
    assert list(pair.admin.activate(tool.name, "V1.9").active_versions) == ["1.9"]
    for bad in ("", "latest", "1.x", "1.0-*", "^1", None):
        assert pair.faults({**entry, "version": bad}), bad


async def test_an_invalid_definition_changes_nothing(pair: Pair):
    tool, _ = two_versions(pair)
    neighbour, good = pair.definition("/echo")
    _, bad = pair.definition("/echo", tool.name, version="3.0.0", inputSchema={"type": "object", "required": 5})
    request = json.dumps({"tools": [good, {**bad, "timeout": "soon", "description": " "}]})
    faults = pair.faults(request.removeprefix('{"tools": [').removesuffix("]}"))
    # Every fault, not the first alone.
    assert {fault.split(" ")[0] for fault in faults} >= {
        "/tools/1/inputSchema/required", "/tools/1/timeout", "/tools/1/description",
    }  # fmt: skip
    assert neighbour.name not in await listed(pair)
    assert (await pair.call(neighbour, {})).error["data"]["reason"] == "TOOL_NOT_FOUND"
    assert (await pair.call(tool, {})).result["structuredContent"] == {"version": 1}
    found = pair.admin.call(pair.admin.registry.GetTool, GetToolRequest(name=tool.name))
    assert (found.version_count, list(found.active_versions)) == (2, ["1.0.0"])


async def test_a_version_is_immutable(pair: Pair):
    tool, entry = pair.definition("/echo")
    pair.admin.apply({"tools": [entry]})
    _, changed = pair.definition("/hangul", tool.name)
    assert pair.faults(changed)
    assert (await pair.call(tool, {"a": 1})).result["structuredContent"] == {"a": 1}


async def test_a_changed_field_leaves_the_others(pair: Pair):
    credential = pair.admin.create_account("Before", "pro")
    request = UpdateAccountRequest(account=Account(client_id=credential.client_id, display_name="After"))
    request.update_mask.paths.append("display_name")
    account = pair.admin.call(pair.admin.accounts.UpdateAccount, request)
    assert (account.display_name, account.plan, account.state) == ("After", "pro", Account.ACTIVE)
    assert (await pair.ask(LEGACY, "ping", None, ("Authorization", credential.basic))).result == {}

    request.account.state = Account.SUSPENDED
    request.update_mask.paths[:] = ["state"]
    account = pair.admin.call(pair.admin.accounts.UpdateAccount, request)
    assert (account.display_name, account.plan) == ("After", "pro")
    for method in ("ping", "tools/list", "tools/call"):
        reply = await pair.ask(LEGACY, method, {"name": "is_alive"}, ("Authorization", credential.basic))
        assert (reply.status, reply.error["data"]["reason"]) == (403, "ACCOUNT_SUSPENDED")
