"""Headers and bodies that are wrong, or said twice, as clients and proxies send them."""

import pytest

from tests.support.gateway_alone import AGENT_BUILDER, LEGACY, GatewayProcess, modern, post, rpc, send, tool_call
from tests.support.scripted_registry import CREDENTIAL, Script

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIST_LIKE = rpc("ping")
BROKEN = {
    b"{": (-32700, None),
    b"[1,": (-32700, None),
    b'{"a":1,"a":2}': (-32700, None),
    b"\xff": (-32700, None),
    b"[]": (-32600, None),
    b'{"jsonrpc":"1.0","id":9,"method":"ping"}': (-32600, 9),
}
ONE_FORM = ["application/json", "text/event-stream", "application/x-ndjson", "application/jsonl"]


@pytest.mark.parametrize("accept", ONE_FORM)
@pytest.mark.parametrize("body", BROKEN, ids=repr)
async def test_whoever_takes_one_form_hears_of_broken_messages_in_it(gateway: GatewayProcess, accept: str, body: bytes):
    answer = await post(gateway, body, Accept=accept)
    assert (answer.status, answer.media_type) == (200, accept)
    [message] = answer.messages
    assert (message["error"]["code"], message["id"]) == BROKEN[body]


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "*/*", "text/event-stream, */*;q=0.1", None])
async def test_whoever_takes_both_forms_gets_the_status_of_mcp(gateway: GatewayProcess, accept: str | None):
    answer = await post(gateway, b"{", Accept=accept)
    assert (answer.status, answer.json["error"]["code"]) == (400, -32700)


@pytest.mark.parametrize("accept", ONE_FORM)
async def test_a_modern_client_gets_the_status_of_mcp(gateway: GatewayProcess, accept: str):
    answer = await post(gateway, b"{", Accept=f"{accept}, text/plain", MCP_Protocol_Version="2026-07-28")
    agent_builder = accept == "application/json"  # its header says nothing to that contract
    assert answer.status == (200 if agent_builder else 400)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_parameters_that_are_no_object_are_answered_in_the_form_asked_for(gateway: GatewayProcess, accept: str):
    answer = await post(gateway, rpc("tools/call", 5), Accept=accept)
    assert (answer.status, answer.media_type) == (200, accept)


TWICE: dict[str, tuple[str, str]] = {
    "MCP_Protocol_Version": ("2025-06-18", "2025-11-25"),
    "Authorization": (CREDENTIAL, "Basic YTpi"),
    "Content_Type": ("application/json", "text/plain"),
}


@pytest.mark.parametrize("written", ["lines", "line", "three"])
@pytest.mark.parametrize("name", TWICE)
async def test_what_is_said_twice_alike_counts_once(gateway: GatewayProcess, script: Script, name: str, written: str):
    value, _ = TWICE[name]
    values: dict[str, str | list[str]] = {
        "lines": [value, value],
        "line": f"{value}, {value}",
        "three": [f"{value},{value}", value],
    }
    answer = await post(gateway, tool_call(), **{**LEGACY, name: values[written]})
    assert answer.status == 200
    assert "result" in answer.json


@pytest.mark.parametrize("name", ["Mcp_Method", "Mcp_Name", "MCP_Protocol_Version"])
async def test_what_a_modern_client_mirrors_twice_alike_counts_once(gateway: GatewayProcess, name: str):
    message, headers = modern(tool_call())
    answer = await post(gateway, message, **{**headers, name: f"{headers[name]}, {headers[name]}"})
    assert answer.status == 200
    different = await post(gateway, message, **{**headers, name: [headers[name], "other"]})
    assert different.status == 400


@pytest.mark.parametrize("name", TWICE)
async def test_what_is_said_twice_differently_is_refused(gateway: GatewayProcess, name: str):
    for value in ([*TWICE[name]], ", ".join(TWICE[name])):
        answer = await post(gateway, tool_call(), **{**LEGACY, name: value})
        assert answer.status == (415 if name == "Content_Type" else 400)


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["localhost"], 200), (["localhost:1"], 200), (["LOCALHOST:99999"], 200), (["[::1]:1"], 200),
        (["localhost:1:99"], 400), (["a:1:99"], 400), (["a b"], 400), (["a/b"], 400), (["localhost:x"], 400),
        (["localhost", "localhost"], 400), (["localhost", "evil.example"], 400), (["localhost, localhost"], 400),
        (["evil.example"], 421), (["evil.example:80"], 421), ([], 421),
    ],
)  # fmt: skip
async def test_host_is_one_host_and_ours(gateway: GatewayProcess, hosts: list[str], status: int):
    answer = await post(gateway, LIST_LIKE, **{**LEGACY, "Host": hosts})
    assert answer.status == status
    if status != 200:
        assert answer.json["error"]["data"]["reason"] == ("INVALID_REQUEST" if status == 400 else "HOST_NOT_ALLOWED")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize(
    ("host", "status"), [("localhost", 200), ("10.1.2.3:8080", 200), ("[fd00::1]", 200), ("evil.example", 421)]
)
async def test_health_is_asked_under_our_name_or_an_address(gateway: GatewayProcess, path: str, host: str, status: int):
    """A probe asks by address, and no page can make a browser do so under a name of its own."""
    answer = await post(gateway, b"", path=path, method="GET", Host=host)
    assert answer.status == status


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "x"])
async def test_a_body_with_a_coding_is_refused_and_the_one_taken_named(gateway: GatewayProcess, coding: str):
    answer = await post(gateway, LIST_LIKE, **LEGACY, Content_Encoding=coding)
    assert (answer.status, answer.header("accept-encoding")) == (415, "identity")
    assert "Content-Encoding" in answer.json["error"]["message"]
    plain = await post(gateway, LIST_LIKE, **LEGACY, Content_Encoding="Identity")
    assert plain.status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
async def test_what_is_read_only_says_so(gateway: GatewayProcess, path: str):
    answer = await post(gateway, b"{}", path=path)
    assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")
    assert "GET, HEAD" in answer.json["error"]["message"]
    assert "POST" not in answer.json["error"]["data"]["next_action"]


async def test_asking_for_the_options_of_everything_is_answered_in_json(gateway: GatewayProcess):
    answer = await send(gateway.port, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.status in (400, 404, 405)
    assert "error" in answer.json


@pytest.mark.parametrize("method", ["ping", "tools/list", "notifications/initialized", "no/such"])
async def test_the_log_names_the_session(gateway: GatewayProcess, method: str):
    session = f"{method}-" + "s" * 990
    message = {"jsonrpc": "2.0", "method": method} if method.startswith("notif") else rpc(method)
    await post(gateway, message, **AGENT_BUILDER, Mcp_Session_Id=session)
    await gateway.record("request", session_id=session)
