"""HTTP, sizes, credentials and origins, on what users of other gateways have reported."""

import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ops.stack import Process
from tests.support.pair import Pair
from tests.support.scripted_endpoint import HANGUL
from tests.support.speaker import AGENT_BUILDER, BOTH, EVERYBODY, LEGACY, MODERN, UNNAMED, XDATA, Speaker, replaced
from tests.support.wire import Header, Reply, Wire

pytestmark = pytest.mark.asyncio(loop_scope="session")

by_era = pytest.mark.parametrize("speaker", [LEGACY, MODERN], ids=lambda speaker: speaker.name)

LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
FIVE_MB = 5_000_000
ORIGIN = "https://app.example"


def check_http_error(reply: Reply, status: int, reason: str, code: int = -32600) -> None:
    assert (reply.status, reply.media_type) == (status, "application/json"), reply
    assert set(reply.json) == {"jsonrpc", "error"}  # no id: it answers no request
    assert (reply.error["code"], reply.error["data"]["reason"]) == (code, reason)


# A: Accept, Content-Type, method


async def test_json_only_is_answered_in_json(pair: Pair):
    reply = await pair.post(LIST, accept="application/json")
    assert (reply.status, reply.media_type) == (200, "application/json")
    modern = await pair.ask(MODERN.accepting("application/json"), "tools/list")
    assert modern.json["result"]["resultType"] == "complete"


@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
@by_era
async def test_sse_only_ends_with_the_response(pair: Pair, speaker: Speaker, method: str):
    params = {"name": pair.tool("/echo").name} if method == "tools/call" else {}
    reply = await pair.ask(speaker.accepting("text/event-stream"), method, params, id="s")
    assert (reply.status, reply.media_type) == (200, "text/event-stream")
    assert reply.events[-1].message["id"] == "s"
    assert "result" in reply.events[-1].message


async def test_a_browser_is_told_how(pair: Pair):
    reply = await pair.http("GET", "/mcp", [("Accept", "text/html")])
    check_http_error(reply, 405, "METHOD_NOT_ALLOWED")
    assert reply.header("allow") == "POST"


@pytest.mark.parametrize(
    "accept",
    [
        [("Accept", "application/json"), ("Accept", "text/event-stream")],
        [("ACCEPT", "Application/JSON , Text/Event-Stream")],
        [("accept", 'application/json;x="a,b";q=1,,text/event-stream ; charset=utf-8')],
    ],
    ids=str,
)
async def test_accept_lines_are_joined_and_case_does_not_matter(pair: Pair, accept: list[Header]):
    progressing, quiet = pair.tool("/ndjson"), pair.tool("/echo")
    for tool, media_type in ((progressing, "text/event-stream"), (quiet, "application/json")):
        reply = await pair.call(tool, {}, *accept, meta={"progressToken": 1})
        assert (reply.status, reply.media_type) == (200, media_type)


@pytest.mark.parametrize(
    "accept",
    ["application/jsonx, text/event-streamer", "text/html", "application/json;q=0", "application/xml, image/*", "*"],
)
async def test_types_match_exactly(pair: Pair, accept: str):
    check_http_error(await pair.post(LIST, accept=accept), 406, "NOT_ACCEPTABLE")
    # A notification is answered without a body, so that there is nothing to be unacceptable.
    notification = await pair.post('{"jsonrpc":"2.0","method":"notifications/initialized"}', accept=accept)
    assert notification.status == 202


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/json-patch+json", "application/jsonx", "", "application/json; charset=euc-kr",
     "application/json, text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"],
)  # fmt: skip
async def test_only_json_in_utf_8_is_read(pair: Pair, content_type: str):
    tool = pair.tool("/echo")
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool.name}"}}}}'
    check_http_error(await pair.post(body, ("Content-Type", content_type)), 415, "UNSUPPORTED_MEDIA_TYPE")
    assert pair.executions(tool) == 0


@pytest.mark.parametrize("content_type", ["application/json", "APPLICATION/JSON;charset=\"UTF-8\"",
                                          "application/json-rpc", "application/json ; x=y"])  # fmt: skip
async def test_json_is_read_however_it_is_spelled(pair: Pair, content_type: str):
    assert (await pair.post(LIST, ("Content-Type", content_type))).status == 200


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_with_and_without_a_slash(pair: Pair, path: str):
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    reply = await pair.http("POST", path, headers, LIST)
    assert (reply.status, reply.header("location")) == (200, None)
    check_http_error(await pair.http("GET", path), 405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize("path", ["/", "/mcp/x", "//mcp", "/MCP", "/mcp//", "/.well-known/oauth-protected-resource"])
async def test_other_paths_are_not_served(pair: Pair, path: str):
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    check_http_error(await pair.http("POST", path, headers, LIST), 404, "PATH_NOT_FOUND")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
async def test_other_methods(pair: Pair, method: str):
    for headers in ([], [("Accept", "text/event-stream"), ("MCP-Protocol-Version", "2025-11-25")]):
        reply = await pair.http(method, "/mcp", headers)
        assert (reply.status, reply.header("allow")) == (405, "POST")
        assert reply.header("mcp-session-id") is None
        if method != "HEAD":
            check_http_error(reply, 405, "METHOD_NOT_ALLOWED")


@by_era
async def test_gzip_is_decoded_by_its_label(pair: Pair, speaker: Speaker):
    labelled = await pair.call(pair.tool("/gzip"), {}, speaker=speaker)
    assert labelled.result["structuredContent"] == json.loads(HANGUL)
    bare = pair.tool("/gzip-without-label")
    result = (await pair.call(bare, {}, speaker=speaker)).result
    error = result["_meta"]["xdata.kr/error"]
    assert result["isError"] is True
    assert (error["reason"], error["tool"]) == ("TOOL_RESPONSE_INVALID", bare.name)
    assert "Content-Encoding" in result["content"][0]["text"]


@by_era
async def test_the_length_is_that_of_what_is_sent(pair: Pair, speaker: Speaker):
    tool = pair.tool("/size?n=200000")
    reply = await pair.call(tool, {}, ("Accept-Encoding", "gzip, br"), speaker=speaker)
    assert reply.header("content-encoding") is None
    assert reply.header("content-length") == str(len(reply.body))
    assert len(reply.result["structuredContent"]["text"]) > 190_000


# H: sizes


def call_body(tool: str, size: int) -> bytes:
    start = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{"text":"'
    return start.encode() + b"x" * (size - len(start) - 4) + b'"}}}'


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_5_mb(pair: Pair, chunked: bool):
    tool = pair.tool("/echo")
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    async with await pair.wire() as wire:
        await wire.request("POST", "/mcp", headers, call_body(tool.name, FIVE_MB), chunked=chunked)
        reply = await wire.reply()
        check_http_error(reply, 413, "BODY_TOO_LARGE")
        assert reply.error["data"]["limit_bytes"] == 4 << 20
        assert reply.header("connection") == "close"
        assert await wire.closed()
    assert pair.executions(tool) == 0
    await pair.is_alive()


async def test_a_large_body_is_refused_before_it_comes(pair: Pair):
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    for more in ([("Expect", "100-continue")], []):
        async with await pair.wire() as wire:
            await wire.request("POST", "/mcp", [*headers, ("Content-Length", str(FIVE_MB)), *more])
            head = await wire.head()
            assert head.status == 413


async def test_a_body_just_below_the_limit_is_served(pair: Pair):
    tool = pair.tool("/size?n=100")
    reply = await pair.post(call_body(tool.name, (4 << 20) - 10))
    assert reply.result["isError"] is False
    assert len(pair.requests(tool)[0].body) > 4_190_000


@by_era
async def test_a_result_of_4_mb_and_more(pair: Pair, speaker: Speaker):
    for size in (4_300_000, 7_900_000):
        reply = await pair.call(pair.tool(f"/size?n={size}"), {}, speaker=speaker)
        assert len(reply.result["structuredContent"]["text"]) == size - len('{"text":""}')


@by_era
async def test_a_result_over_the_limit_is_not_asked_for_again(pair: Pair, speaker: Speaker):
    tool = pair.tool("/size?n=9000000", annotations={"idempotentHint": True, "readOnlyHint": True})
    result = (await pair.call(tool, {}, speaker=speaker)).result
    error = result["_meta"]["xdata.kr/error"]
    assert result["isError"] is True
    assert (error["reason"], error["safe_to_retry"], error["limit_bytes"]) == ("RESULT_TOO_LARGE", False, 8 << 20)
    assert pair.executions(tool) == 1


@by_era
async def test_a_long_result_of_a_tool_with_a_schema(pair: Pair, speaker: Speaker):
    schema = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 1000}}}
    tool = pair.tool("/size?n=5000", outputSchema=schema)
    result = (await pair.call(tool, {}, speaker=speaker)).result
    assert result["isError"] is True
    assert "structuredContent" not in result
    error = result["_meta"]["xdata.kr/error"]
    assert error["reason"] == "TOOL_RESPONSE_INVALID"
    assert "/text" in error["detail"]
    whole = await pair.call(pair.tool("/size?n=9000000", outputSchema=schema), {}, speaker=speaker)
    assert whole.result["_meta"]["xdata.kr/error"]["reason"] == "RESULT_TOO_LARGE"


# M: credentials


def encoded(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def check_unauthenticated(reply: Reply) -> None:
    """A credential that cannot be right is refused before the body is read, one that is wrong after it."""
    assert (reply.status, reply.error["code"]) == (401, -32001)
    assert reply.error["data"]["reason"] == "UNAUTHENTICATED"
    assert reply.json.get("id", 1) == 1
    assert reply.head.all("www-authenticate")[0] == 'Bearer error="invalid_token"'


async def status_with(pair: Pair, *authorization: str | bytes) -> Reply:
    headers: list[Header] = [("Content-Type", "application/json"), ("Accept", BOTH)]
    return await pair.http("POST", "/mcp", headers + [("Authorization", value) for value in authorization], LIST)


async def test_spelling_of_the_scheme(pair: Pair):
    value = pair.credential.encoded
    for header in (f"bearer {value}", f"BASIC {value}", f"Basic   {value}", f"BeArEr {value}  ",
                   f"Basic {value.rstrip('=')}", f"Bearer {value.translate(str.maketrans('+/', '-_'))}"):  # fmt: skip
        reply = await status_with(pair, header)
        assert reply.status == 200, header


@pytest.mark.parametrize(
    "header",
    [b"Bearer \xff", "Basic 안녕", "Bearer 안녕".encode("euc-kr"), "Basic", "Bearer ", "Basic !!!!", "Basic YT!pi",
     "Basic a b", "Basic a", "Basic +_+_", "Basic YTpi, Basic YTo="],
    ids=repr,
)  # fmt: skip
async def test_a_damaged_header_is_400(pair: Pair, header: str | bytes):
    check_http_error(await status_with(pair, header), 400, "AUTHORIZATION_MALFORMED")


async def test_two_headers_are_400(pair: Pair):
    for second in ("Basic YTpi", "Bearer x"):
        check_http_error(await status_with(pair, pair.credential.basic, second), 400, "AUTHORIZATION_MALFORMED")


async def test_too_long_a_header_is_431(pair: Pair):
    for size in (5_000, 60_000):
        reply = await status_with(pair, "Bearer " + "a" * size)
        check_http_error(reply, 431, "AUTHORIZATION_TOO_LARGE")


@pytest.mark.parametrize(
    "credential",
    ["nocolon", ":secret", "id:", "아이디:비밀", "아이디:비밀".encode("euc-kr"), "a\0b:c", "a\nb:c", "a:\r", "a:\x7f",
     "Basic YTpi"],
    ids=repr,
)  # fmt: skip
async def test_what_cannot_be_a_credential_is_401(pair: Pair, credential: str | bytes):
    for scheme in ("Basic", "Bearer"):
        check_unauthenticated(await status_with(pair, f"{scheme} {encoded(credential)}"))


@pytest.mark.parametrize("token", ["eyJhbGciOiJub25lIn0.e30.", "AAAA", "bm90LWEtcGFpcg=="])
async def test_somebody_elses_token_is_401(pair: Pair, token: str):
    reply = await status_with(pair, f"Bearer {token}")
    check_unauthenticated(reply)
    assert reply.head.all("www-authenticate") == ['Bearer error="invalid_token"']


async def test_a_secret_may_hold_colons(pair: Pair):
    """Split at the first colon: the id is right, so that only the secret is wrong."""
    own = pair.credential
    check_unauthenticated(await status_with(pair, f"Basic {encoded(f'{own.client_id}:{own.secret}:x')}"))


@pytest.mark.parametrize("speaker", EVERYBODY, ids=lambda speaker: speaker.name)
async def test_nothing_of_the_callers_headers_reaches_the_endpoint(pair: Pair, speaker: Speaker):
    tool = pair.tool("/headers")
    own: list[Header] = [
        ("Cookie", "session=1"), ("Mcp-Session-Id", "s-1"), ("Mcp-Param-X", "y"), ("X-Api-Key", "k"),
        ("Last-Event-ID", "3"), ("X-Forwarded-For", "1.2.3.4"), ("Origin-Trial", "x"), ("User-Agent", "curl/8"),
        ("X-MCP-Env-Scope", "production"),
    ]  # fmt: skip
    reply = await pair.call(tool, {}, *own, speaker=speaker)
    sent = {name.lower(): value for name, value in reply.result["structuredContent"]["headers"]}
    assert set(sent) == {
        "host", "accept", "accept-encoding", "user-agent", "content-type", "content-length", "x-request-id",
        "traceparent", "idempotency-key", "x-naru-tool", "x-naru-version", "x-naru-lane", "x-naru-call-id",
        "x-naru-deadline-ms",
    }  # fmt: skip
    assert sent["user-agent"] == "naru"
    assert sent["x-request-id"] == reply.header("x-request-id")
    assert sent["idempotency-key"] == sent["x-naru-call-id"] == reply.header("x-naru-call-id")
    assert (sent["x-naru-tool"], sent["x-naru-version"], sent["x-naru-lane"]) == (tool.name, "1.0.0", "production")
    assert 25_000 < int(sent["x-naru-deadline-ms"]) <= 30_000
    assert pair.credential.secret not in str(sent)


async def test_the_tools_own_headers_win(pair: Pair):
    tool = pair.tool("/headers", endpoint={"headers": {"Accept": "application/vnd.api+json", "X-Api-Key": "k"}})
    reply = await pair.call(tool, {}, ("Accept", "application/json"), ("X-Api-Key", "theirs"))
    sent = [(name.lower(), value) for name, value in reply.result["structuredContent"]["headers"]]
    assert [value for name, value in sent if name == "accept"] == ["application/vnd.api+json"]
    assert [value for name, value in sent if name == "x-api-key"] == ["k"]


# O: origins and hosts


@pytest.fixture(scope="module")
def public(pair: Pair) -> Process:
    """A gateway with a public URL and one more origin."""
    return pair.stack.gateway(
        pair.registry,
        GATEWAY_PUBLIC_URL="https://mcp.example/mcp",
        GATEWAY_ALLOWED_ORIGINS=ORIGIN,
        GATEWAY_MCP_PATHS="/public/mcp, /mcp",
    )


@pytest.fixture(params=[ORIGIN, "https://mcp.example"])
def origin(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


async def test_preflight_comes_before_authentication(pair: Pair, public: Process, origin: str):
    asked = "authorization,mcp-protocol-version,mcp-method,mcp-name,mcp-session-id,last-event-id"
    preflight: list[Header] = [
        ("Origin", origin), ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", asked),
    ]  # fmt: skip
    reply = await pair.http("OPTIONS", "/mcp", preflight, gateway=public)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.header("access-control-allow-origin") == origin
    allowed = {name.strip().lower() for name in (reply.header("access-control-allow-headers") or "").split(",")}
    assert set(asked.split(",")) <= allowed
    assert "POST" in (reply.header("access-control-allow-methods") or "")


async def test_answers_can_be_read_by_an_allowed_page(pair: Pair, public: Process, origin: str):
    tool = pair.tool("/echo")
    for speaker in (LEGACY, XDATA):
        reply = await pair.call(tool, {}, ("Origin", origin), speaker=speaker, gateway=public)
        assert reply.header("access-control-allow-origin") == origin
        assert "Origin" in (reply.header("vary") or "")
        assert "X-Naru-Call-Id" in (reply.header("access-control-expose-headers") or "")
    refused = await pair.ask(LEGACY, "ping", None, ("Origin", origin), ("Authorization", ""), gateway=public)
    assert (refused.status, refused.header("access-control-allow-origin")) == (401, origin)


@pytest.mark.parametrize("bad", ["https://evil.example", "null", "http://app.example", "https://app.example.evil.example",
                                 "https://app.example:444", ""])  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "OPTIONS", "GET"])
async def test_a_bad_origin_is_403(pair: Pair, public: Process, bad: str, method: str):
    tool = pair.tool("/echo")
    body = call_body(tool.name, 200) if method == "POST" else b""
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH), ("Origin", bad),
                               ("Access-Control-Request-Method", "POST")])  # fmt: skip
    headers = headers if bad else [*headers, ("Origin", "")]
    reply = await pair.http(method, "/mcp", headers, body, gateway=public)
    check_http_error(reply, 403, "ORIGIN_NOT_ALLOWED")
    assert reply.header("access-control-allow-origin") is None
    assert pair.executions(tool) == 0


@pytest.mark.parametrize("bad", ["evil.example", "127.0.0.1.evil.example", "mcp.example.evil.example", "", "[::2]"])
async def test_a_bad_host_is_421(pair: Pair, public: Process, bad: str):
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    reply = await pair.http("POST", "/mcp", [("Host", bad), *headers], LIST, gateway=public)
    check_http_error(reply, 421, "HOST_NOT_ALLOWED")


@pytest.mark.parametrize("good", ["mcp.example", "MCP.example:443", "localhost:1", "127.0.0.1", "[::1]:8080"])
async def test_a_good_host(pair: Pair, public: Process, good: str):
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    assert (await pair.http("POST", "/mcp", [("Host", good), *headers], LIST, gateway=public)).status == 200


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/public/mcp", "/public/mcp/"])
async def test_every_path_that_is_set(pair: Pair, public: Process, path: str):
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    reply = await pair.http("POST", path, headers, LIST, gateway=public)
    assert (reply.status, reply.header("location")) == (200, None)
    elsewhere = await pair.http("POST", "/public", headers, LIST, gateway=public)
    check_http_error(elsewhere, 404, "PATH_NOT_FOUND")


async def test_health_needs_no_credential(pair: Pair):
    for path in ("/healthz", "/readyz"):
        reply = await pair.http("GET", path)
        assert (reply.status, reply.json) == (200, {"status": "ok"})
        refused = await pair.http("POST", path, [], b"{}")
        check_http_error(refused, 405, "METHOD_NOT_ALLOWED")
        assert "GET" in (refused.header("allow") or "")


# The order of the checks: each request has every fault from its step on.


def steps() -> Iterator[tuple[int, str, list[Header], bytes]]:
    faults: list[tuple[int, str, list[Header]]] = [
        (421, "HOST_NOT_ALLOWED", [("Host", "evil.example")]),
        (403, "ORIGIN_NOT_ALLOWED", [("Origin", "null")]),
        (400, "AUTHORIZATION_MALFORMED", [("Authorization", "Basic !")]),
        (401, "UNAUTHENTICATED", [("Authorization", "")]),
        (415, "UNSUPPORTED_MEDIA_TYPE", [("Content-Type", "text/plain")]),
        (406, "NOT_ACCEPTABLE", [("Accept", "text/html")]),
    ]
    for index, (status, reason, _) in enumerate(faults):
        headers: dict[str, str | bytes] = {}
        for _, _, lines in faults[index:]:
            for name, value in lines:
                headers.setdefault(name, value)
        yield status, reason, list(headers.items()), b"{" * FIVE_MB
    yield 413, "BODY_TOO_LARGE", [], b"{" * FIVE_MB
    yield 400, "PARSE_ERROR", [], b"{"


@pytest.mark.parametrize(("status", "reason", "headers", "body"), list(steps()), ids=lambda value: str(value)[:20])
async def test_the_order_of_the_checks(pair: Pair, status: int, reason: str, headers: list[Header], body: bytes):
    right = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    reply = await pair.http("POST", "/mcp", replaced(right, headers), body)
    assert (reply.status, reply.error["data"]["reason"]) == (status, reason)


# The connection itself


async def test_a_connection_serves_on_after_every_refusal(pair: Pair):
    bodies: list[Any] = [b"{", b"[]", b'{"jsonrpc":"2.0","id":1,"method":"no/such"}', b"\xff", LIST]
    headers = pair.authorized([("Content-Type", "application/json"), ("Accept", BOTH)])
    async with await pair.wire() as wire:
        for body, _ in itertools.product(bodies, range(3)):
            await wire.request("POST", "/mcp", headers, body)
            assert (await wire.reply()).status in (200, 400)
        await wire.request("GET", "/mcp")
        assert (await wire.reply()).status == 405
        await wire.request("POST", "/mcp", headers, LIST)
        assert (await wire.reply()).status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [b"NONSENSE\r\n\r\n", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
     b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
     b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"],
    ids=repr,
)  # fmt: skip
async def test_malformed_http_is_400_and_the_end_of_the_connection(pair: Pair, request_bytes: bytes):
    async with await Wire.open(pair.gateway.address) as wire:
        await wire.write(request_bytes)
        reply = await wire.reply()
        assert (reply.status, reply.media_type) == (400, "application/json")
        assert reply.error["data"]["reason"] in ("INVALID_REQUEST", "AUTHORIZATION_MALFORMED")
        assert await wire.closed()
    await pair.is_alive()


async def test_agent_builder_and_unnamed_clients_get_the_same_refusals(pair: Pair):
    for speaker in (AGENT_BUILDER, UNNAMED):
        reply = await pair.ask(speaker, "tools/list", None, ("Authorization", "Basic !"))
        check_http_error(reply, 400, "AUTHORIZATION_MALFORMED")
