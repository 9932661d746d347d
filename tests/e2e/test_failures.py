"""Whatever a tool can do to a gateway: each has its answer, and the server lives on."""

import json
import socket
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from ops.stack import Process
from tests.support.pair import Pair, running_pair
from tests.support.scripted_endpoint import Script, ndjson
from tests.support.speaker import (
    AGENT_BUILDER,
    EVERYBODY,
    LEGACY,
    MODERN,
    NDJSON,
    UNNAMED,
    V_2025_06_18,
    XDATA,
    Json,
    Speaker,
)
from tests.support.waiting import eventually
from tests.support.wire import Header, Reply, parse_events

pytestmark = pytest.mark.asyncio(loop_scope="session")

everybody = pytest.mark.parametrize("speaker", EVERYBODY, ids=lambda speaker: speaker.name)
by_era = pytest.mark.parametrize("speaker", [LEGACY, MODERN], ids=lambda speaker: speaker.name)
some = pytest.mark.parametrize("speaker", [AGENT_BUILDER, XDATA, LEGACY, MODERN], ids=lambda speaker: speaker.name)

METADATA = "http://169.254.169.254/latest/meta-data/"
TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def the_server_lives_on(pair: Pair) -> AsyncIterator[None]:
    """After each test, whatever it did."""
    yield
    await pair.is_alive()


class Wrong(NamedTuple):
    """Describes the answer when an endpoint fails. `text` is a part of the content, `sent` how often it was asked."""

    reason: str
    text: str = ""
    sent: int = 1


# Of a tool that says nothing about being idempotent.
MODES: dict[str, Wrong] = {
    "/html": Wrong("", "<p>hello"),
    "/404": Wrong("TOOL_HTTP_ERROR", '{"why":"no such row"}'),
    "/429": Wrong("TOOL_HTTP_ERROR", "slow down"),
    "/500": Wrong("TOOL_HTTP_ERROR", "고장"),
    "/500-empty": Wrong("TOOL_HTTP_ERROR", "500"),
    "/500-large": Wrong("TOOL_HTTP_ERROR", "가가가"),
    "/401": Wrong("TOOL_REFUSED", "401"),
    "/403": Wrong("TOOL_REFUSED", "403"),
    "/redirect": Wrong("TOOL_HTTP_ERROR", "302"),
    "/empty": Wrong("TOOL_RESPONSE_INVALID", "빈 본문"),
    "/not-json": Wrong("TOOL_RESPONSE_INVALID", "JSON이 아님"),
    "/deep": Wrong("TOOL_RESPONSE_INVALID"),
    "/gzip-bomb": Wrong("RESULT_TOO_LARGE"),
    "/gzip-cut": Wrong("TOOL_RESPONSE_INVALID"),
    "/gzip-label-only": Wrong("TOOL_RESPONSE_INVALID"),
    "/zstd": Wrong("TOOL_RESPONSE_INVALID", "Content-Encoding"),
    "/ndjson-without-result": Wrong("TOOL_RESPONSE_INVALID", "결과 없이 끝남"),
    "/sse-error": Wrong("", "no such row"),
    "/cut-body": Wrong("TOOL_UNREACHABLE"),
    "/commit-then-drop": Wrong("TOOL_UNREACHABLE"),
    "/commit-then-close": Wrong("TOOL_UNREACHABLE"),
    "/not-http": Wrong("TOOL_RESPONSE_INVALID"),
}


def check_failure(reply: Reply, reason: str, speaker: Speaker) -> dict[str, Any]:
    """A result with `isError`, on HTTP 200, which says in words and in `_meta` what happened."""
    assert reply.status == 200
    result = reply.result
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert result["content"]
    assert all(block["text"].strip() for block in result["content"])
    if not reason:  # the tool's own word: Naru knows no more
        assert "xdata.kr/error" not in result.get("_meta", {})
        return {}
    error: dict[str, Any] = result["_meta"]["xdata.kr/error"]
    assert error["reason"] == reason
    assert error["next_action"].strip()
    if speaker is AGENT_BUILDER:
        assert set(error) == {"reason", "error_code", "safe_to_retry", "next_action"}
    else:
        assert error["call_id"] == reply.header("x-naru-call-id")
    return error


@some
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "/html"])
async def test_what_endpoints_do(pair: Pair, mode: str, speaker: Speaker):
    wrong = MODES[mode]
    tool = pair.tool(mode)
    reply = await pair.call(tool, {}, speaker=speaker)
    error = check_failure(reply, wrong.reason, speaker)
    assert wrong.text in reply.result["content"][0]["text"]
    assert error.get("safe_to_retry", False) is False
    assert pair.executions(tool) == 1
    call = pair.admin.get_call(reply.header("x-naru-call-id") or "")
    assert call.State.Name(call.state) in ("FAILED", "TOOL_ERROR")


@some
async def test_a_tools_own_error_is_told_apart_from_ours(pair: Pair, speaker: Speaker):
    """Even one that the tool dresses up as ours."""
    ours = {"reason": "TOOL_BUSY", "error_code": "E1303", "safe_to_retry": True, "next_action": "Send it again."}
    content = [{"type": "text", "text": "no such row"}]
    body = {"content": content, "isError": True, "_meta": {"xdata.kr/error": ours, "example.com/row": 7}}
    tool = pair.tool(Script(chunks=[json.dumps(body).encode()]), endpoint={"result": "mcp"})
    reply = await pair.call(tool, {}, speaker=speaker)
    check_failure(reply, "", speaker)
    assert reply.result["content"] == content
    assert reply.result["_meta"]["example.com/row"] == 7
    call = pair.admin.get_call(reply.header("x-naru-call-id") or "")
    assert (call.State.Name(call.state), call.reason) == ("TOOL_ERROR", 0)


@some
async def test_html_is_a_text(pair: Pair, speaker: Speaker):
    result = (await pair.call(pair.tool("/html"), {}, speaker=speaker)).result
    assert result["isError"] is False
    assert result["content"] == [{"type": "text", "text": "<!doctype html><title>tool</title><p>hello"}]
    promised = pair.tool("/html", outputSchema={"type": "object"})
    check_failure(await pair.call(promised, {}, speaker=speaker), "TOOL_RESPONSE_INVALID", speaker)


@some
async def test_an_idempotent_tool_may_be_called_again(pair: Pair, speaker: Speaker):
    for mode, safe in (("/500", True), ("/404", False), ("/429", True), ("/cut-body", True), ("/401", False),
                       ("/redirect", False)):  # fmt: skip
        tool = pair.tool(mode, annotations={"idempotentHint": True})
        error = check_failure(await pair.call(tool, {}, speaker=speaker), MODES[mode].reason, speaker)
        assert error["safe_to_retry"] is safe, mode
        assert pair.executions(tool) == 1


@by_era
async def test_the_body_of_an_error_is_cut_and_a_cut_character_left_out(pair: Pair, speaker: Speaker):
    text = (await pair.call(pair.tool("/500-large"), {}, speaker=speaker)).result["content"][0]["text"]
    assert text == "가" * (64 * 1024 // 3)


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# V: errors


@everybody
async def test_the_host_is_down(pair: Pair, speaker: Speaker):
    tool, entry = pair.definition("/echo")
    entry["endpoint"]["production"]["url"] = f"http://127.0.0.1:{closed_port()}/x"
    pair.admin.apply({"tools": [entry]})
    error = check_failure(await pair.call(tool, {}, speaker=speaker), "TOOL_UNREACHABLE", speaker)
    assert error["safe_to_retry"] is True  # it was never sent


@some
async def test_the_name_does_not_resolve(pair: Pair, speaker: Speaker):
    tool, entry = pair.definition("/echo")
    entry["endpoint"]["production"]["url"] = "http://no-such-host.invalid/x"
    pair.admin.apply({"tools": [entry]})
    error = check_failure(await pair.call(tool, {}, speaker=speaker), "TOOL_UNREACHABLE", speaker)
    assert error["safe_to_retry"] is True


@everybody
async def test_the_tool_is_too_slow(pair: Pair, speaker: Speaker):
    tool = pair.tool("/hang", timeout="150ms")
    error = check_failure(await pair.call(tool, {}, speaker=speaker), "TOOL_TIMED_OUT", speaker)
    assert error["safe_to_retry"] is False
    await pair.gone(tool)


@everybody
async def test_http_errors_of_the_tool(pair: Pair, speaker: Speaker):
    for mode in ("/404", "/500"):
        reply = await pair.call(pair.tool(mode), {}, speaker=speaker)
        check_failure(reply, "TOOL_HTTP_ERROR", speaker)
        assert MODES[mode].text in reply.result["content"][0]["text"]


@everybody
async def test_a_denied_tool(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo", access={"plans": ["pro", "lite"]})
    reply = await pair.call(tool, {}, speaker=speaker)
    assert (reply.status, reply.result["isError"]) == (200, True)
    assert reply.result["_meta"]["xdata.kr/error"]["reason"] == "PERMISSION_DENIED"
    names = {entry["name"] for entry in (await pair.ask(speaker, "tools/list")).result["tools"]}
    assert tool.name not in names
    assert pair.executions(tool) == 0
    pro = ("Authorization", pair.admin.create_account("Pro", "pro").basic)
    assert (await pair.call(tool, {"a": 1}, pro, speaker=speaker)).result["structuredContent"] == {"a": 1}


@everybody
async def test_an_empty_answer(pair: Pair, speaker: Speaker):
    check_failure(await pair.call(pair.tool("/empty"), {}, speaker=speaker), "TOOL_RESPONSE_INVALID", speaker)
    # 204 says that there is nothing to tell, which is something else.
    assert (await pair.call(pair.tool("/empty-204"), {}, speaker=speaker)).result == {
        **({"resultType": "complete"} if speaker.modern else {}),
        "content": [],
        "isError": False,
        **({"_meta": (await pair.ask(MODERN, "server/discover")).result["_meta"]} if speaker.modern else {}),
    }


@pytest.mark.parametrize("speaker", [XDATA, NDJSON, LEGACY, MODERN], ids=lambda speaker: speaker.name)
async def test_a_tool_that_fails_after_the_stream_began(pair: Pair, speaker: Speaker):
    tool = pair.tool(
        Script(content_type="application/x-ndjson", framing="chunked", chunks=[b'{"progress":1}\n'], end="drop")
    )
    reply = await pair.call(tool, {}, speaker=speaker, meta={"progressToken": 1})
    assert [frame["params"]["progress"] for frame in reply.messages[:-1]] == [1]
    check_failure(reply, "TOOL_UNREACHABLE", speaker)


@pytest_asyncio.fixture(loop_scope="session")
async def own_pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """A pair for one test, which may break it."""
    async with running_pair(tmp_path) as pair:
        yield pair


async def test_the_link_breaks_after_the_stream_began(own_pair: Pair):
    pair = own_pair
    pair.endpoint.gate.clear()
    tool = pair.tool("/gated-progress")
    async with (
        pair.streaming(tool, {}, speaker=XDATA, id="cut") as sse,
        pair.calling(tool, {}, speaker=AGENT_BUILDER, id=9) as plain,
    ):
        seen = b""
        while b"notifications/progress" not in seen:
            seen += await anext(sse.pieces)
        await pair.arrived(tool)
        await pair.arrived(tool)
        pair.registry.kill()
        *_, last = parse_events(seen + b"".join([piece async for piece in sse.pieces]))
        assert last.message["id"] == "cut"
        for error in (last.message["error"], (await plain.reply()).error):
            assert error["code"] == -32008
            assert (error["data"]["reason"], error["data"]["safe_to_retry"]) == ("CALL_OUTCOME_UNKNOWN", False)
    # From now on nothing is sent at all, and that is known.
    for speaker in (AGENT_BUILDER, LEGACY, XDATA, MODERN):
        for reply in (
            await pair.call(tool, {}, speaker=speaker),
            await pair.ask(speaker, "tools/list"),
            await pair.ask(speaker, "server/discover" if speaker.modern else "ping"),
        ):
            assert (reply.status, reply.error["code"]) == (200, -31007 if speaker.modern else -32007), speaker.name
            data = reply.error["data"]
            assert (data["reason"], data["safe_to_retry"]) == ("SERVICE_UNAVAILABLE", True)
    notification = await pair.ask(LEGACY, "notifications/initialized", id=None)
    assert notification.status == 503
    assert (await pair.http("GET", "/healthz")).status == 200
    assert (await pair.http("GET", "/readyz")).status == 503
    assert pair.executions(tool) == 2


def logged(process: Process, trace_id: str) -> bool:
    """Tells whether the log has a traceback under this trace. Lines are gathered a moment before they are written."""
    records = (record for record in process.records() if record.get("trace_id") == trace_id)
    return any("Traceback" in str(record) for record in records)


async def test_an_internal_error_says_nothing_but_its_trace(own_pair: Pair):
    pair = own_pair
    tool = pair.tool("/echo")
    path = pair.stack.database_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as database:  # a fault that nothing foresees
        database.execute("DELETE FROM catalog_revision")
    database.close()
    for speaker in (AGENT_BUILDER, LEGACY, XDATA, MODERN):
        reply = await pair.call(tool, {"secret": "열쇠"}, ("Accept-Language", "en"), speaker=speaker, id="v08")
        assert (reply.status, reply.error["code"], reply.messages[-1]["id"]) == (200, -32603, "v08")
        data = reply.error["data"]
        assert (data["reason"], data["safe_to_retry"]) == ("INTERNAL", False)
        trace_id = data["trace_id"]
        assert len(trace_id) == 32
        assert trace_id in reply.error["message"]
        for word in (b"Traceback", b"sqlalchemy", b"IndexError", b"catalog_revision", "열쇠".encode(), b".py"):
            assert word not in reply.body
        await eventually(partial(logged, pair.registry, trace_id))
    assert pair.executions(tool) == 0


# W: exactly once


@everybody
async def test_a_tool_that_did_its_work_and_dropped_the_connection(pair: Pair, speaker: Speaker):
    tool = pair.tool("/commit-then-drop")
    error = check_failure(await pair.call(tool, {}, speaker=speaker), "TOOL_UNREACHABLE", speaker)
    assert error["safe_to_retry"] is False
    assert pair.executions(tool) == 1
    idempotent = pair.tool("/commit-then-drop", annotations={"idempotentHint": True})
    error = check_failure(await pair.call(idempotent, {}, speaker=speaker), "TOOL_UNREACHABLE", speaker)
    assert error["safe_to_retry"] is True
    keys = {request.header("idempotency-key") for request in pair.requests(idempotent)}
    assert (pair.executions(idempotent), len(keys)) == (2, 1)


@some
async def test_a_connection_that_was_closed_meanwhile_loses_no_call(pair: Pair, speaker: Speaker):
    tool = pair.tool("/closes-in-silence")
    for _ in range(5):
        assert (await pair.call(tool, {}, speaker=speaker)).result["structuredContent"] == {}
    assert pair.executions(tool) == 5


# Z: traces, and where endpoints may be


def parent(trace: str, flags: str = "01") -> str:
    return f"00-{trace}-00f067aa0ba902b7-{flags}"


@everybody
async def test_a_trace_is_continued_and_meta_wins(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    header: list[Header] = [("traceparent", parent(TRACE)), ("tracestate", "a=1")]
    meta = {"traceparent": parent(OTHER_TRACE, "00"), "tracestate": "b=2"}
    for headers, members, trace, flags, state in (
        (header, {}, TRACE, "01", "a=1"),
        ([], meta, OTHER_TRACE, "00", "b=2"),
        (header, meta, OTHER_TRACE, "00", "b=2"),
        (header, {"traceparent": "garbage"}, TRACE, "01", "a=1"),
    ):
        reply = await pair.call(tool, {}, *headers, speaker=speaker, meta=members)
        sent = pair.requests(tool)[-1]
        version, trace_id, span, sent_flags = (sent.header("traceparent") or "").split("-")
        assert (version, trace_id, sent_flags) == ("00", trace, flags)
        assert span != "00f067aa0ba902b7"
        assert sent.header("tracestate") == state
        assert sent.header("x-request-id") == reply.header("x-request-id")


@some
@pytest.mark.parametrize(
    "garbage",
    ["garbage", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", parent(TRACE.upper()), f"ff-{TRACE}-00f067aa0ba902b7-01",
     f"00-{TRACE}-{'0' * 16}-01", parent(TRACE) + "-x", "00-" + TRACE],
)  # fmt: skip
async def test_a_trace_that_is_none_is_replaced(pair: Pair, speaker: Speaker, garbage: str):
    tool = pair.tool("/echo")
    await pair.call(tool, {}, ("traceparent", garbage), ("tracestate", "a=1"), speaker=speaker)
    sent = pair.requests(tool)[0]
    version, trace_id, span, flags = (sent.header("traceparent") or "").split("-")
    assert (version, len(trace_id), len(span), flags) == ("00", 32, 16, "01")
    assert trace_id.lower() not in garbage.lower()
    assert sent.header("tracestate") is None


@everybody
async def test_redirects_are_not_followed(pair: Pair, speaker: Speaker):
    inside = pair.endpoint_of("/count")
    locations = (METADATA, pair.endpoint.url(inside), inside, "//169.254.169.254/", "")
    for status, location in zip((301, 302, 303, 307, 308), locations, strict=True):
        tool = pair.tool(Script(status=status, headers=[("Location", location)]), endpoint={"method": "GET"})
        error = check_failure(await pair.call(tool, {}, speaker=speaker), "TOOL_HTTP_ERROR", speaker)
        assert error["safe_to_retry"] is False
        assert pair.executions(tool) == 1
    assert not [request for request in pair.endpoint.received if request.path == inside]


@some
@pytest.mark.parametrize(
    "url",
    [METADATA, "http://[::ffff:100.64.0.1]/", "http://[::ffff:169.254.169.254]/", "http://10.0.0.1/", "http://0.0.0.0/",
     "http://[::1]/", "http://[fd00:ec2::254]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:a9fe:a9fe::1]/",
     "http://192.168.1.1:8080/x"],
)  # fmt: skip
async def test_addresses_that_are_not_called(pair: Pair, url: str, speaker: Speaker):
    tool, entry = pair.definition("/echo")
    entry["endpoint"]["production"]["url"] = url
    pair.admin.apply({"tools": [entry]})
    error = check_failure(await pair.call(tool, {}, speaker=speaker), "TOOL_UNREACHABLE", speaker)
    assert error["safe_to_retry"] is False
    if speaker is not AGENT_BUILDER:
        assert error["detail"] == "address not allowed"


@pytest.mark.parametrize(
    "spelling", ["2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518", "[fe80::1%25eth0]"]
)
async def test_an_address_in_disguise(pair: Pair, spelling: str):
    tool, entry = pair.definition("/echo")
    entry["endpoint"]["production"]["url"] = f"http://{spelling}/latest/meta-data/"
    if pair.faults(entry):
        return  # better still
    error = check_failure(await pair.call(tool, {}), "TOOL_UNREACHABLE", LEGACY)
    assert error["detail"] in ("address not allowed", "name not resolved")


@pytest.mark.parametrize(
    "url",
    ["http://user:pw@127.0.0.1/", "http://127.0.0.1@169.254.169.254/", "ftp://127.0.0.1/", "file:///etc/passwd", "//x/",
     "x", "http://", "http://127.0.0.1:99999/", "http://127.0.0.1/{no_such}", "http://{host}/", "http://127.0.0.1/../x",
     "http://127.0.0.1/#x", "http://127.0.0.1/a b", "http://도구/", "gopher://x/", "http:/x", "http://a\\b/", 5],
    ids=str,
)  # fmt: skip
async def test_urls_that_are_not_registered(pair: Pair, url: object):
    _, entry = pair.definition("/echo", "z04")
    entry["endpoint"]["production"]["url"] = url
    assert any(fault.startswith("/tools/0/endpoint/production/url") for fault in pair.faults(entry))


PATH_SCHEMA = {"type": "object", "properties": {"p": {"type": ["string", "number", "boolean", "null", "object"]}}}


@everybody
async def test_a_path_argument_stays_one_segment(pair: Pair, speaker: Speaker):
    tool, entry = pair.definition("/target", inputSchema=PATH_SCHEMA)
    entry["endpoint"]["production"]["url"] = pair.endpoint.url("/target/{p}/end?fixed=1")
    pair.admin.apply({"tools": [entry]})
    for value, segment in (
        ("@evil/", "%40evil%2F"), ("a/b", "a%2Fb"), ("a?b#c", "a%3Fb%23c"), ("..x", "..x"),
        ("안녕 ", "%EC%95%88%EB%85%95%20"),
        ("%2e", None), ("..", None), (".", None), ("", None), ("../x", None), ("x/../y", None), ("%2e%2e", None),
        ("..\\x", None), ("．．", None), ("%252e%252e/", None), (None, None), ({}, None),
        ("..;", None), ("..;x=1", None), ("a\nb", None), ("a\0b", None), ("%00", None),
        (1.0, "1.0"), (True, "true"), ("a;b", "a%3Bb"),
    ):  # fmt: skip
        reply = await pair.call(tool, {"p": value, "q": 1}, speaker=speaker)
        if segment is not None:
            assert reply.result["structuredContent"]["target"] == f"/target/{segment}/end?fixed=1", value
            assert reply.result["structuredContent"]["body"] == '{"q":1}'
        elif speaker in (AGENT_BUILDER, V_2025_06_18) or "2025-06-18" > speaker.revision > "":
            assert reply.error["code"] == -32602, value
            assert reply.error["data"]["violations"][0]["pointer"] == "/p"
        else:
            assert reply.result["_meta"]["xdata.kr/error"]["reason"] == "ARGUMENTS_INVALID", value
            assert reply.result["_meta"]["xdata.kr/error"]["violations"][0]["pointer"] == "/p"


@some
async def test_arguments_in_a_query(pair: Pair, speaker: Speaker):
    tool = pair.tool("/target", endpoint={"method": "GET"})
    arguments = Json('{"a":"1&b=2","n":9007199254740993,"f":1.0,"l":[1,"x"],"no":null,"t":true,"한":"글 +"}')
    target = (await pair.call(tool, arguments, speaker=speaker)).result["structuredContent"]
    assert target["method"] == "GET"
    assert target["target"] == (
        f"{tool.path}?a=1%26b%3D2&n=9007199254740993&f=1.0&l=1&l=x&t=true&%ED%95%9C=%EA%B8%80%20%2B"
    )
    assert target["body"] == ""


# What the issue asks for besides (judged item 4)


@everybody
async def test_no_such_tool_and_none_that_is_active(pair: Pair, speaker: Speaker):
    inactive = pair.tool("/echo", active=False)
    for name, reason in (("no_such_tool", "TOOL_NOT_FOUND"), (inactive.name, "TOOL_NOT_ACTIVE")):
        reply = await pair.call(name, {}, speaker=speaker)
        assert (reply.status, reply.error["code"], reply.error["data"]["reason"]) == (200, -32602, reason)
        assert reply.error["data"]["tool"] == name
    assert pair.executions(inactive) == 0


async def test_bad_arguments_are_an_error_to_agent_builder_and_a_result_to_2025_11_25(pair: Pair):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}, "required": ["n", "m"]}
    tool = pair.tool("/echo", inputSchema=schema)
    as_error = await pair.call(tool, {"n": 6}, speaker=AGENT_BUILDER)
    assert (as_error.status, as_error.error["code"]) == (200, -32602)
    as_result = await pair.call(tool, {"n": 6}, speaker=LEGACY)
    assert (as_result.status, as_result.result["isError"]) == (200, True)
    told = as_result.result["_meta"]["xdata.kr/error"]["violations"]
    assert told == as_error.error["data"]["violations"]
    assert [violation["pointer"] for violation in told] in (["", "/n"], ["/n", ""])
    for violation in told:
        assert violation["message"] in as_result.result["content"][0]["text"]
    assert pair.executions(tool) == 0


@some
async def test_violations_are_few_and_short_and_repeat_no_value(pair: Pair, speaker: Speaker):
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    tool = pair.tool("/echo", inputSchema=schema)
    secret = "비밀번호1234"
    reply = await pair.call(tool, {f"k{n}": secret for n in range(100)}, speaker=speaker)
    last = reply.messages[-1]
    data = last["error"]["data"] if "error" in last else last["result"]["_meta"]["xdata.kr/error"]
    assert len(data["violations"]) == 20
    assert len(json.dumps(data["violations"], ensure_ascii=False)) <= 5000
    assert secret not in reply.body.decode()


@some
async def test_many_violations_take_no_time(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo", inputSchema={"type": "object", "properties": {"l": {"items": {"type": "integer"}}}})
    reply = await pair.call(tool, {"l": ["x"] * 200_000}, speaker=speaker)
    assert reply.status == 200
    assert pair.executions(tool) == 0


@everybody
async def test_a_busy_tool(pair: Pair, speaker: Speaker):
    pair.endpoint.gate.clear()
    tool = pair.tool("/gate", maxConcurrency=1)
    async with pair.calling(tool, {}, speaker=speaker) as first:
        await pair.arrived(tool)
        busy = (await pair.call(tool, {}, speaker=speaker)).result["_meta"]["xdata.kr/error"]
        assert (busy["reason"], busy["safe_to_retry"]) == ("TOOL_BUSY", True)
        pair.endpoint.gate.set()
        assert (await first.reply()).result["structuredContent"] == {"passed": True}
    assert pair.executions(tool) == 1
    assert (await pair.call(tool, {}, speaker=speaker)).result["structuredContent"] == {"passed": True}


@some
async def test_a_result_in_mcp_form_passes_through(pair: Pair, speaker: Speaker):
    blocks: list[Any] = [
        {"type": "text", "text": "하나", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "https://x.example/a", "name": "a"},
        {"type": "resource", "resource": {"uri": "naru://x", "text": "t"}},
    ]
    body = {
        "content": blocks,
        "structuredContent": {"a": 1},
        "_meta": {"x.example/k": [1], "xdata.kr/error": {"reason": "x"}},
    }
    tool = pair.tool(Script(chunks=[json.dumps(body, ensure_ascii=False).encode()]), endpoint={"result": "mcp"})
    result = (await pair.call(tool, {}, speaker=speaker)).result
    assert result["content"] == blocks
    assert (result["structuredContent"], result["isError"]) == ({"a": 1}, False)
    assert result["_meta"]["x.example/k"] == [1]
    for broken in (b"[]", b"{}", b'{"content":"x"}', b'{"content":[{"type":"video"}]}',
                   b'{"content":[{"type":"text"}]}',
                   b'{"content":[],"structuredContent":5,"isError":"no"}'):  # fmt: skip
        bad = pair.tool(Script(chunks=[broken]), endpoint={"result": "mcp"})
        check_failure(await pair.call(bad, {}, speaker=speaker), "TOOL_RESPONSE_INVALID", speaker)


@some
async def test_other_media(pair: Pair, speaker: Speaker):
    async def content(mode: str) -> Any:
        result = (await pair.call(pair.tool(mode), {}, speaker=speaker)).result
        assert result["isError"] is False
        return result["content"][0]

    assert (await content("/png"))["mimeType"] == "image/png"
    assert (await content("/wav"))["type"] == "audio"
    binary = await content("/binary")
    assert (binary["type"], binary["resource"]["mimeType"]) == ("resource", "application/pdf")
    assert (await content("/euc-kr-text"))["text"] == "똠방각하 안녕"
    assert (await content("/list"))["text"] == "[1, 2.0]"
    assert (await content("/unlabelled"))["text"] == '{"a":1}'
    assert (await content("/separators"))["text"] == '{"text":"a\u2028b\u2029c\u0085d"}'
    for mode in ("/gzip", "/deflate", "/deflate-bare", "/brotli"):
        assert "안녕" in (await content(mode))["text"]


@pytest.mark.parametrize("speaker", [XDATA, NDJSON, LEGACY, MODERN, UNNAMED], ids=lambda speaker: speaker.name)
async def test_a_stream_with_nonsense_in_it(pair: Pair, speaker: Speaker):
    for frames in ([{"result": {"a": 1}}, {"progress": 5}], [{}, {"other": 1}, {"result": {"a": 1}}],
                   [{"progress": None}, {"error": None, "result": {"a": 1}}]):  # fmt: skip
        reply = await pair.call(pair.tool(ndjson(*frames)), {}, speaker=speaker, meta={"progressToken": 1})
        assert reply.result["structuredContent"] == {"a": 1}
    for line in (b"nonsense\n", b"5\n", b'{"result"\n', b"\xff\n", b'{"progress":1,"progress":"x"}\n'):
        script = Script(content_type="application/x-ndjson", framing="chunked", chunks=[line])
        check_failure(await pair.call(pair.tool(script), {}, speaker=speaker), "TOOL_RESPONSE_INVALID", speaker)
