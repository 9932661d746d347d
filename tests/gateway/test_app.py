"""The HTTP side: what is refused before a message is looked at, health, traces, logs, metrics, and the end."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from naru.v1.execution_pb2 import CallToolEvent
from tests.support.certificates import make_certificates
from tests.support.gateway_alone import (
    AGENT_BUILDER,
    LEGACY,
    gateway_process,
    head_of,
    modern,
    post,
    rpc,
    send,
    tool_call,
)
from tests.support.scripted_registry import CREDENTIAL, TOKEN, Script, fail, registry_server, text_result
from tests.support.wire import Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

PING = rpc("ping")
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER_TRACE = "1af7651916cd43dd8448eb211c80319c"


def reason_of(answer) -> object:
    return answer.json["error"]["data"]["reason"]


class TestHostAndOrigin:
    @pytest.mark.parametrize(
        "host",
        [
            *(
                "evil.example",
                "evil.example:80",
                "127.0.0.1.evil.example",
                "",
                "[::2]",
            ),
        ],
    )
    async def test_a_foreign_host(self, gateway, script, host):
        answer = await post(gateway, PING, Host=host)
        assert (answer.status, reason_of(answer)) == (421, "HOST_NOT_ALLOWED")
        assert "id" not in answer.json

    @pytest.mark.parametrize(
        "host",
        [
            *("a, b", "[::1]:x", "localhost:", "127.0.0.1:evil", "127.0.0.1:1@evil.example"),
            "127.0.0.1:1, evil.example",
            ["127.0.0.1", "127.0.0.1"],
        ],
    )
    async def test_what_is_not_one_host(self, gateway, script, host):
        answer = await post(gateway, PING, Host=host)
        assert (answer.status, reason_of(answer)) == (400, "INVALID_REQUEST")

    @pytest.mark.parametrize(
        "host", ["127.0.0.1:1234", "LOCALHOST", "[::1]:80", "Gateway.Example", "gateway.example:443"]
    )
    async def test_hosts_of_ours(self, gateway, script, host):
        assert (await post(gateway, PING, Host=host)).status == 200

    @pytest.mark.parametrize(
        "origin", ["https://evil.example", "null", "", "https://gateway.example.evil", "http://gateway.example"]
    )
    async def test_a_foreign_origin(self, gateway, script, origin):
        answer = await post(gateway, PING, Origin=origin)
        assert (answer.status, reason_of(answer)) == (403, "ORIGIN_NOT_ALLOWED")
        assert answer.all("access-control-allow-origin") == []

    async def test_an_origin_of_ours_may_read_the_answer(self, gateway, script):
        answer = await post(gateway, PING, Origin="https://gateway.example")
        assert answer.status == 200
        assert answer.header("access-control-allow-origin") == "https://gateway.example"
        assert "WWW-Authenticate" in (answer.header("access-control-expose-headers") or "")
        assert answer.header("vary") == "Origin"

    async def test_host_comes_before_origin_before_everything(self, gateway, script):
        answer = await post(gateway, b"{", Host="evil.example", Origin="null", Authorization=None)
        assert answer.status == 421
        answer = await post(gateway, b"{", Origin="null", Authorization=None, method="PUT")
        assert answer.status == 403
        answer = await post(gateway, PING, path="/nowhere", Host="evil.example")
        assert answer.status == 421


class TestCors:
    async def test_preflight_comes_before_authentication(self, gateway, script):
        wanted = "authorization,mcp-protocol-version,mcp-method,mcp-name,mcp-session-id,last-event-id,mcp-param-region"
        answer = await post(
            gateway, b"", method="OPTIONS", Origin="https://gateway.example",
            Access_Control_Request_Method="POST", Access_Control_Request_Headers=wanted,
        )  # fmt: skip
        assert (answer.status, answer.body) == (204, b"")
        allowed = {name.strip() for name in (answer.header("access-control-allow-headers") or "").split(",")}
        assert set(wanted.split(",")) <= allowed
        assert answer.header("access-control-allow-methods") == "POST"
        assert answer.header("access-control-allow-origin") == "https://gateway.example"

    async def test_preflight_from_elsewhere(self, gateway, script):
        answer = await post(
            gateway, b"", method="OPTIONS", Origin="https://evil.example", Access_Control_Request_Method="POST"
        )
        assert answer.status == 403


class TestPathsAndMethods:
    @pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp?x=1"])
    async def test_served_directly(self, gateway, script, path):
        assert (await post(gateway, PING, path=path)).status == 200

    @pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
    async def test_other_methods(self, gateway, script, method):
        answer = await post(gateway, b"", method=method, Accept="text/html")
        if method == "BREW":
            assert answer.status == 400
            return
        assert (answer.status, reason_of(answer)) == (405, "METHOD_NOT_ALLOWED")
        assert answer.header("allow") == "POST"
        assert "id" not in answer.json

    async def test_head_has_no_body(self, gateway, script):
        answer = await post(gateway, b"", method="HEAD")
        assert (answer.status, answer.body) == (405, b"")

    async def test_elsewhere(self, gateway, script):
        answer = await post(gateway, PING, path="/nowhere")
        assert (answer.status, reason_of(answer)) == (404, "PATH_NOT_FOUND")
        assert answer.json["error"]["code"] == -32600

    async def test_several_paths(self, script):
        async with (
            registry_server(script) as (port, _),
            gateway_process(port, GATEWAY_MCP_PATHS="/mcp,/public/mcp") as gateway,
        ):
            for path in ("/mcp", "/public/mcp", "/public/mcp/"):
                assert (await post(gateway, PING, path=path)).status == 200
            assert (await post(gateway, PING, path="/public")).status == 404


class TestMediaTypes:
    @pytest.mark.parametrize(
        "value", ["text/plain", None, "application/json-patch+json", "application/json; charset=euc-kr"]
    )
    async def test_a_body_that_is_not_json(self, gateway, script, value):
        answer = await post(gateway, PING, Content_Type=value)
        assert (answer.status, reason_of(answer)) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert script.metadata == []

    @pytest.mark.parametrize("value", ["application/json", "Application/JSON; charset=UTF-8", "application/json-rpc"])
    async def test_a_body_that_is(self, gateway, script, value):
        assert (await post(gateway, PING, Content_Type=value)).status == 200

    @pytest.mark.parametrize("value", ["text/html", "application/jsonx, text/event-streamer", "application/json;q=0"])
    async def test_an_answer_that_cannot_be_made(self, gateway, script, value):
        answer = await post(gateway, PING, Accept=value)
        assert (answer.status, reason_of(answer)) == (406, "NOT_ACCEPTABLE")

    async def test_accept_on_two_lines(self, gateway, script):
        answer = await post(gateway, PING, Accept=["text/html", "ACCEPT/x, Application/JSON"])
        assert answer.status == 200

    async def test_not_acceptable_comes_before_what_is_wrong_with_the_body(self, gateway, script):
        assert (await post(gateway, b"{", Accept="text/html")).status == 406
        assert (await post(gateway, b"{", Accept="text/html", Content_Type="text/plain")).status == 415
        assert (await post(gateway, b"{", Content_Type="text/plain", Authorization=None)).status == 401


class TestBodies:
    @pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"\xef\xbb\xbf{}", b'{"a":1,"a":2}', b"[" * 10_000, b"NaN"])
    async def test_what_is_not_json(self, gateway, script, body):
        answer = await post(gateway, body)
        assert (answer.status, answer.json["error"]["code"]) == (400, -32700)
        assert answer.json["id"] is None
        assert (await post(gateway, PING)).status == 200

    @pytest.mark.parametrize("body", [[PING], [], [1], "x", None, {"id": 1}, {**PING, "id": 1.5}, {**PING, "id": None}])
    async def test_what_is_no_message(self, gateway, script, body):
        answer = await post(gateway, body)
        assert (answer.status, answer.json["error"]["code"]) == (400, -32600)
        assert script.metadata == []

    async def test_5_mb(self, gateway, script):
        answer = await post(gateway, b"x" * 5_000_000)
        assert (answer.status, reason_of(answer)) == (413, "BODY_TOO_LARGE")
        assert answer.json["error"]["data"]["limit_bytes"] == 4 << 20
        assert answer.header("connection") == "close"
        assert script.metadata == []

    async def test_5_mb_in_chunks(self, gateway, script):
        head = head_of("POST", "/mcp", {"Transfer-Encoding": "chunked"}, None)
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        answer = await send(gateway.port, head, *[chunk] * 80, b"0\r\n\r\n")
        assert (answer.status, reason_of(answer)) == (413, "BODY_TOO_LARGE")

    async def test_a_body_without_end_loses_its_connection(self, gateway, script):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head_of("POST", "/mcp", {"Transfer-Encoding": "chunked"}, None))
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        written = 0
        async with asyncio.timeout(15):
            try:
                while written < 100 << 20:
                    writer.write(chunk)
                    written += len(chunk)
                    await writer.drain()
            except ConnectionError:
                pass
        assert written < 40 << 20
        writer.close()
        assert (await post(gateway, PING)).status == 200
        del reader

    async def test_a_large_body_within_the_limit(self, gateway, script):
        text = "가" * 1_000_000
        answer = await post(gateway, tool_call(arguments={"text": text}), **AGENT_BUILDER)
        assert json.loads(answer.json["result"]["content"][0]["text"]) == {"text": text}

    async def test_leave_to_send_is_not_given_in_vain(self, gateway, script):
        answer = await send(gateway.port, head_of("POST", "/mcp", {"Expect": "100-continue"}, 5_000_000))
        assert answer.status == 413

    async def test_a_client_that_leaves_in_the_middle(self, gateway, script):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head_of("POST", "/mcp", {}, 1000) + b"{")
        await writer.drain()
        writer.transport.abort()
        record = await gateway.record("request", outcome="disconnected")
        assert record["status"] == 0

    async def test_one_connection_serves_on_after_a_refusal(self, gateway, script):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        body = json.dumps(PING).encode()
        refused = head_of("POST", "/mcp", {"Connection": "keep-alive", "Authorization": None}, 100_000) + b" " * 100_000
        served = head_of("POST", "/mcp", {}, len(body)) + body
        writer.write(refused + served)
        async with asyncio.timeout(5):
            raw = await reader.read()
        writer.close()
        assert raw.startswith(b"HTTP/1.1 401")
        assert b"HTTP/1.1 200" in raw

    async def test_what_is_no_http(self, gateway, script):
        answer = await send(gateway.port, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert (answer.status, answer.json["error"]["code"]) == (400, -32600)

    async def test_an_upgrade_that_is_not_offered_is_ignored(self, gateway, script):
        upgrade: dict[str, Any] = {
            "Connection": "Upgrade, HTTP2-Settings",
            "Upgrade": "h2c",
            "HTTP2-Settings": "AAMAAABkAAQAAP__",
        }
        body = json.dumps(PING).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head_of("POST", "/mcp", upgrade, len(body)) + body)
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}")
            assert head.startswith(b"HTTP/1.1 200")
        writer.write(head_of("POST", "/mcp", {}, len(body)) + body)
        async with asyncio.timeout(5):
            assert b"HTTP/1.1 200" in await reader.read()
        writer.close()


class TestIdsAndTraces:
    async def test_a_request_id_is_made_and_echoed(self, gateway, script):
        answer = await post(gateway, tool_call(), **AGENT_BUILDER)
        request_id = answer.header("x-request-id")
        assert request_id
        assert script.metadata[-1]["x-request-id"] == request_id

    async def test_a_sane_one_is_taken_over(self, gateway, script):
        answer = await post(gateway, tool_call(), X_Request_Id="my-id.7", **AGENT_BUILDER)
        assert answer.header("x-request-id") == "my-id.7"
        assert script.metadata[-1]["x-request-id"] == "my-id.7"

    @pytest.mark.parametrize("value", ["가".encode(), "a b", "x" * 200])
    async def test_any_other_is_not(self, gateway, script, value):
        answer = await post(gateway, tool_call(), X_Request_Id=value, **AGENT_BUILDER)
        assert (answer.header("x-request-id") or "").isalnum()

    async def test_refusals_have_one_too(self, gateway, script):
        for headers in ({"Host": "evil"}, {"Authorization": None}, {"path": "/nowhere"}):
            assert (await post(gateway, PING, X_Request_Id="r-1", **headers)).header("x-request-id") == "r-1"

    async def traced(self, gateway, script, meta=None, **headers) -> tuple[str, dict[str, str]]:
        await post(gateway, tool_call(meta=meta), **headers, **AGENT_BUILDER)
        metadata = script.metadata[-1]
        return metadata["traceparent"], metadata

    async def test_header(self, gateway, script):
        traceparent, metadata = await self.traced(gateway, script, traceparent=TRACEPARENT, tracestate="a=1")
        assert traceparent.startswith(f"00-{TRACE}-")
        assert traceparent != TRACEPARENT, "the gateway has a span of its own"
        assert metadata["tracestate"] == "a=1"

    async def test_meta(self, gateway, script):
        traceparent, metadata = await self.traced(gateway, script, {"traceparent": TRACEPARENT, "tracestate": "b=2"})
        assert traceparent.startswith(f"00-{TRACE}-")
        assert metadata["tracestate"] == "b=2"

    async def test_meta_wins(self, gateway, script):
        meta = {"traceparent": TRACEPARENT.replace(TRACE, OTHER_TRACE)}
        traceparent, metadata = await self.traced(gateway, script, meta, traceparent=TRACEPARENT, tracestate="a=1")
        assert traceparent.startswith(f"00-{OTHER_TRACE}-")
        assert "tracestate" not in metadata

    async def test_garbage(self, gateway, script):
        traceparent, _ = await self.traced(gateway, script, {"traceparent": "garbage"}, traceparent="00-xyz")
        assert len(traceparent) == 55
        assert TRACE not in traceparent
        traceparent, _ = await self.traced(gateway, script, {"traceparent": "garbage"}, traceparent=TRACEPARENT)
        assert TRACE in traceparent


class TestLogs:
    async def test_one_record_a_request_and_nothing_secret(self, gateway, script):
        before = len(gateway.records)
        secret_argument = "주민등록번호-900101"
        await post(
            gateway, tool_call("text_stats", {"text": secret_argument}), X_Request_Id="log-1", traceparent=TRACEPARENT,
            **AGENT_BUILDER,
        )  # fmt: skip
        record = await gateway.record("request", request_id="log-1")
        expected = {
            "level": "info", "method": "tools/call", "tool": "text_stats", "call_id": "call-1", "trace_id": TRACE,
            "status": 200, "outcome": "ok", "era": "agent-builder", "carriage": "json",
        }  # fmt: skip
        assert record.items() >= expected.items()
        assert record["duration_ms"] > 0
        written = json.dumps(gateway.records[before:], ensure_ascii=False)
        assert secret_argument not in written
        assert "aWQ6c2VjcmV0" not in written
        assert TOKEN not in written
        assert sum(entry.get("request_id") == "log-1" for entry in gateway.records) == 1

    async def test_a_name_cannot_fill_the_log(self, gateway, script):
        await post(gateway, tool_call("x" * 100_000), X_Request_Id="log-2", **AGENT_BUILDER)
        record = await gateway.record("request", request_id="log-2")
        assert len(json.dumps(record)) < 1000

    async def test_an_operator_is_told_what_failed(self, gateway, script):
        async def run(_request, context):
            await context.abort(grpc.StatusCode.DATA_LOSS, "the details")
            yield

        script.run = run
        await post(gateway, tool_call(), X_Request_Id="log-3", **AGENT_BUILDER)
        record = await gateway.record("rpc failed", request_id="log-3")
        assert record.items() >= {"code": "DATA_LOSS", "details": "the details", "level": "warning"}.items()


async def metrics_of(gateway) -> str:
    answer = await send(gateway.metrics_port, b"GET /metrics HTTP/1.0\r\n\r\n")
    return answer.body.decode()


class TestMetrics:
    async def test_calls_are_counted_by_their_outcome(self, gateway, script):
        await post(gateway, tool_call(), **AGENT_BUILDER)
        await post(gateway, tool_call(), Authorization=None, **AGENT_BUILDER)
        await post(gateway, rpc("made/up"), **LEGACY)
        await post(gateway, tool_call(meta={"progressToken": 1}), Accept="text/event-stream")
        text = await metrics_of(gateway)
        for labels in (
            'carriage="json",era="agent-builder",method="tools/call",outcome="ok"',
            'carriage="json",era="agent-builder",method="none",outcome="UNAUTHENTICATED"',
            'carriage="json",era="legacy",method="other",outcome="METHOD_NOT_FOUND"',
            'carriage="sse",era="legacy",method="tools/call",outcome="ok"',
        ):
            assert f"naru_gateway_requests_total{{{labels}}}" in text
        assert 'naru_gateway_grpc_total{code="OK",method="CallTool"}' in text
        assert "naru_gateway_in_flight 0.0" in text
        assert "made/up" not in text

    async def test_they_are_not_on_the_public_port(self, gateway, script):
        assert (await post(gateway, b"", path="/metrics", method="GET")).status == 404


class TestHealth:
    async def test_alive_whatever_the_host(self, gateway, script):
        for host in ("127.0.0.1", "10.1.2.3:8080"):
            answer = await post(gateway, b"", path="/healthz", method="GET", Host=host)
            assert (answer.status, answer.json) == (200, {"status": "ok"})
        answer = await post(gateway, b"", path="/healthz")
        assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")

    async def ready(self, gateway):
        answer = await post(gateway, b"", path="/readyz", method="GET", Host="10.1.2.3:8080")
        return answer.status, answer.json

    async def test_ready_follows_the_registry(self, script):
        async with registry_server(script) as (port, serving), gateway_process(port) as gateway:
            script.refuse = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
            assert await self.ready(gateway) == (200, {"status": "ok"})
            await serving(False)
            status, body = await self.ready(gateway)
            assert status == 503
            assert "naru.v1.Execution: not serving" in body["troubles"]
            await serving(True)
            assert (await self.ready(gateway))[0] == 200
            script.refuse_token = True
            status, body = await self.ready(gateway)
            assert status == 503
            assert body["troubles"] == ["GATEWAY_REGISTRY_TOKEN: the registry refuses it"]

    @asynccontextmanager
    async def split(self, registry: Script, execution: Script) -> AsyncIterator[Any]:
        async with (
            registry_server(registry) as (port, registry_serves),
            registry_server(execution) as (other, runs),
            gateway_process(port, GATEWAY_EXECUTION=f"dns:///127.0.0.1:{other}") as gateway,
        ):
            yield gateway, registry_serves, runs

    async def test_a_split_service_is_asked_on_both_sides(self):
        registry, execution = Script(), Script()
        async with self.split(registry, execution) as (gateway, _, runs):
            assert await self.ready(gateway) == (200, {"status": "ok"})
            await runs(False)
            troubles = ["naru.v1.Execution: not serving"]
            assert await self.ready(gateway) == (503, {"status": "unavailable", "troubles": troubles})
            await runs(True)
            execution.refuse_token = True
            troubles = ["GATEWAY_REGISTRY_TOKEN: the execution service refuses it"]
            assert await self.ready(gateway) == (503, {"status": "unavailable", "troubles": troubles})

    async def test_calls_run_without_the_registrys_own_side(self):
        registry, execution = Script(), Script()
        async with self.split(registry, execution) as (gateway, registry_serves, _):
            await registry_serves(False)
            troubles = ["naru.v1.Accounts: not serving", "naru.v1.Registry: not serving"]
            assert await self.ready(gateway) == (200, {"status": "degraded", "troubles": troubles})
            assert (await post(gateway, tool_call(), **AGENT_BUILDER)).json["result"]["isError"] is False
            await registry_serves(True)
            registry.refuse_token = True
            troubles = ["GATEWAY_REGISTRY_TOKEN: the registry refuses it"]
            assert await self.ready(gateway) == (200, {"status": "degraded", "troubles": troubles})

    async def test_the_log_names_the_side_that_is_away_and_is_back(self, script):
        async with registry_server(script) as (port, _):
            pass
        async with registry_server(script) as (here, _):
            settings = {"GATEWAY_EXECUTION": f"dns:///127.0.0.1:{port}"}
            async with gateway_process(here, **settings) as gateway:
                await gateway.record("the execution service is away", target=f"dns:///127.0.0.1:{port}")
                async with registry_server(script, port):
                    await gateway.record("the execution service is back")
                    assert not [record for record in gateway.records if record["event"].startswith("the registry")]

    async def test_the_registry_goes_and_comes_back(self, script):
        async with registry_server(script) as (port, _):
            pass
        async with gateway_process(port) as gateway:
            status, body = await self.ready(gateway)
            assert status == 503
            assert "naru.v1.Accounts: UNAVAILABLE" in body["troubles"]
            for headers in (AGENT_BUILDER, LEGACY):
                answer = await post(gateway, tool_call(), **headers)
                assert answer.status == 200
                error = answer.json["error"]
                assert (error["code"], error["data"]["safe_to_retry"]) == (-32007, True)
            body, headers = modern(tool_call())
            assert (await post(gateway, body, **headers)).json["error"]["code"] == -31007
            answer = await post(gateway, {"jsonrpc": "2.0", "method": "notifications/initialized"})
            assert answer.status == 503
            async with registry_server(script, port):
                async with asyncio.timeout(10):
                    while (await self.ready(gateway))[0] != 200:
                        pass
                assert (await post(gateway, tool_call(), **AGENT_BUILDER)).json["result"]["isError"] is False

    async def test_a_registry_that_swallows_everything_is_given_up(self, script):
        """A peer that accepts connections and says nothing: no call may hang on it until its deadline."""
        silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        async with gateway_process(port) as gateway:
            async with asyncio.timeout(10):
                answer = await post(gateway, tool_call(), **AGENT_BUILDER)
            assert answer.json["error"]["data"]["reason"] == "SERVICE_UNAVAILABLE"
        silent.close()


class TestEnd:
    @pytest.fixture
    def held(self, script: Script):
        """Calls that wait until they are let go."""
        self.go_on = asyncio.Event()
        self.running = asyncio.Semaphore(0)

        async def run(request, _context):
            if request.stream:
                yield CallToolEvent(accepted=CallToolEvent.Accepted(call_id="call-1", tool="echo", version="1"))
            self.running.release()
            await self.go_on.wait()
            yield text_result("done")

        script.run = run

    async def refused(self, gateway) -> None:
        """Waits until no new connection is accepted."""
        async with asyncio.timeout(5):
            while True:
                try:
                    await post(gateway, PING)
                except ConnectionError:
                    return

    async def start(self, gateway, headers) -> asyncio.Task[Reply]:
        task = asyncio.create_task(post(gateway, tool_call(), **headers))
        async with asyncio.timeout(5):
            await self.running.acquire()
        return task

    async def test_running_calls_finish_within_the_grace(self, script, held):
        async with registry_server(script) as (port, _), gateway_process(port) as gateway:
            calls = [await self.start(gateway, headers) for headers in (AGENT_BUILDER, {"Accept": "text/event-stream"})]
            gateway.signal()
            await gateway.record("gateway stopping")
            await self.refused(gateway)
            self.go_on.set()
            json_answer, sse_answer = await asyncio.gather(*calls)
            assert json_answer.json["result"]["content"][0]["text"] == "done"
            assert sse_answer.messages[-1]["result"]["content"][0]["text"] == "done"
            assert await gateway.ended() == 0
            assert gateway.records[-1]["event"] == "gateway stopped"

    async def test_streams_get_a_last_frame_when_the_grace_is_over(self, script, held):
        async with (
            registry_server(script) as (port, _),
            gateway_process(port, GATEWAY_SHUTDOWN_GRACE_SECONDS="0.5") as gateway,
        ):
            stream = await self.start(gateway, {"Accept": "text/event-stream"})
            pending = await self.start(gateway, LEGACY)
            gateway.signal()
            answers = await asyncio.gather(stream, pending)
            last = answers[0].messages[-1]
            assert last["id"] == 1
            assert last["error"]["data"]["reason"] == "CALL_OUTCOME_UNKNOWN"
            assert answers[1].json["error"]["data"]["reason"] == "CALL_OUTCOME_UNKNOWN"
            assert await gateway.ended() == 0

    async def test_a_second_signal_ends_the_grace(self, script, held):
        async with (
            registry_server(script) as (port, _),
            gateway_process(port, GATEWAY_SHUTDOWN_GRACE_SECONDS="60") as gateway,
        ):
            stream = await self.start(gateway, {"Accept": "text/event-stream"})
            gateway.signal()
            gateway.signal(signal.SIGTERM)
            await gateway.record("gateway stopping")
            gateway.signal(signal.SIGINT)
            assert (await stream).messages[-1]["error"]["data"]["reason"] == "CALL_OUTCOME_UNKNOWN"
            assert await gateway.ended(8) == 0

    async def test_idle_connections_do_not_hold_it(self, script):
        async with registry_server(script) as (port, _), gateway_process(port) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            gateway.signal()
            assert await gateway.ended(5) == 0
            assert await reader.read() == b""
            writer.close()


class TestStart:
    async def run(self, **environ: str) -> tuple[int | None, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", env={**inherited, **environ},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(15):
            _, stderr = await process.communicate()
        return process.returncode, stderr.decode()

    async def test_a_bad_value_stops_it(self):
        status, said = await self.run(GATEWAY_REGISTRY_TOKEN=TOKEN, GATEWAY_BIND="nonsense")
        assert status == 2
        assert said == "gateway: GATEWAY_BIND: 'nonsense' is not host:port, such as 127.0.0.1:8080 or [::1]:8080\n"

    @pytest.mark.parametrize("name", ["GATEWAY_BIND", "GATEWAY_METRICS_BIND"])
    async def test_an_address_in_use_stops_it(self, gateway, name):
        binds = {"GATEWAY_BIND": "127.0.0.1:0", "GATEWAY_METRICS_BIND": "127.0.0.1:0"}
        status, said = await self.run(GATEWAY_REGISTRY_TOKEN=TOKEN, **{**binds, name: f"127.0.0.1:{gateway.port}"})
        assert status == 2
        assert said.startswith(f"gateway: {name}: cannot listen on ")
        assert said.count("\n") == 1

    async def test_ipv6(self, script):
        async with registry_server(script) as (port, _), gateway_process(port, GATEWAY_BIND="[::1]:0") as gateway:
            assert gateway.host == "[::1]"
            assert (await post(gateway, PING, Host=f"[::1]:{gateway.port}")).status == 200

    async def test_a_gateway_without_metrics(self, script):
        async with registry_server(script) as (port, _), gateway_process(port, GATEWAY_METRICS_BIND="off") as gateway:
            assert gateway.metrics_port == 0
            assert (await post(gateway, PING)).status == 200


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[tuple[int, Callable[[], None]]]:
    """Passes bytes on to a port; yields its own port, and what breaks every connection."""
    open_connections: list[asyncio.StreamWriter] = []
    pumps: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        open_connections.extend((writer, other_writer))
        pumps.add(asyncio.create_task(pump(reader, other_writer)))
        pumps.add(asyncio.create_task(pump(other_reader, writer)))

    def cut() -> None:
        for writer in open_connections:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], cut
    finally:
        server.close()
        cut()
        await asyncio.gather(*pumps, return_exceptions=True)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_link_that_breaks_while_a_call_runs(script, accept):
    """The call may have done its work, so that it must not be sent again, by nobody: not by gRPC either."""
    started = asyncio.Semaphore(0)

    async def run(_request, _context):
        started.release()
        await asyncio.Event().wait()
        yield

    script.run = run
    async with registry_server(script) as (port, _), relay(port) as (relayed, cut), gateway_process(relayed) as gateway:
        call = asyncio.create_task(post(gateway, tool_call(), Accept=accept))
        async with asyncio.timeout(5):
            await started.acquire()
        cut()
        async with asyncio.timeout(5):
            answer = await call
        assert (answer.status, answer.header("content-type")) == (200, accept)
        error = json.loads(answer.body)["error"] if accept == "application/json" else answer.messages[-1]["error"]
        assert (error["code"], error["data"]["safe_to_retry"]) == (-32008, False)
        assert len(script.calls) == 1


@pytest.mark.parametrize("headers", [AGENT_BUILDER, LEGACY])
async def test_every_rpc_has_a_deadline(script, headers):
    async def run(_request, _context):
        await asyncio.Event().wait()
        yield

    script.run = run
    async with (
        registry_server(script) as (port, _),
        gateway_process(port, GATEWAY_CALL_TIMEOUT_SECONDS="0.3", GATEWAY_REGISTRY_TIMEOUT_SECONDS="7") as gateway,
    ):
        answer = await post(gateway, tool_call(), **headers)
        assert answer.json["error"]["data"]["reason"] == "CALL_OUTCOME_UNKNOWN"
        async with asyncio.timeout(2):
            await script.cancelled.wait()
        await post(gateway, PING)
        assert 5 < script.time_remaining < 8


async def test_tls_to_the_registry(script, tmp_path):
    certificates = make_certificates(tmp_path)
    server = grpc.ssl_server_credentials(
        [(certificates.server.key.read_bytes(), certificates.server.certificate.read_bytes())],
        certificates.authority.read_bytes(),
        require_client_auth=True,
    )
    authority = {"GATEWAY_REGISTRY_CA_FILE": str(certificates.authority), "GATEWAY_REGISTRY_TOKEN": ""}
    client = {
        "GATEWAY_REGISTRY_CERT_FILE": str(certificates.client.certificate),
        "GATEWAY_REGISTRY_KEY_FILE": str(certificates.client.key),
    }
    async with registry_server(script, credentials=server) as (port, _):
        async with gateway_process(port, **authority, **client) as gateway:
            assert (await post(gateway, tool_call(), **AGENT_BUILDER)).json["result"]["isError"] is False
            assert "x-naru-token" not in script.metadata[-1]
        async with gateway_process(port, **authority) as stranger:
            answer = await post(stranger, tool_call(), **AGENT_BUILDER)
            assert answer.json["error"]["data"]["reason"] in {"SERVICE_UNAVAILABLE", "CALL_OUTCOME_UNKNOWN"}
        assert len(script.calls) == 1


async def test_execution_may_be_served_elsewhere(script):
    other = Script()
    async with (
        registry_server(script) as (port, _),
        registry_server(other) as (execution_port, _),
        gateway_process(port, GATEWAY_EXECUTION=f"dns:///127.0.0.1:{execution_port}") as gateway,
    ):
        await post(gateway, tool_call(), **AGENT_BUILDER)
        await post(gateway, PING)
        assert (len(script.calls), len(script.metadata)) == (0, 1)
        assert len(other.calls) == 1


async def test_a_forwarded_client_is_trusted_only_from_where_the_setting_says(script):
    async with (
        registry_server(script) as (port, _),
        gateway_process(port, GATEWAY_FORWARDED_ALLOW_IPS="127.0.0.1") as trusting,
        gateway_process(port) as wary,
    ):
        for gateway, client in ((trusting, "203.0.113.7"), (wary, "127.0.0.1")):
            await post(gateway, PING, X_Request_Id="f-1", X_Forwarded_For="203.0.113.7")
            assert (await gateway.record("request", request_id="f-1"))["client"] == client


async def test_a_wrong_service_token_is_told_to_the_operator(gateway, script):
    script.refuse_token = True
    answer = await post(gateway, PING, X_Request_Id="t-1")
    assert answer.json["error"]["data"]["reason"] == "SERVICE_UNAVAILABLE"
    record = await gateway.record("the registry refuses the gateway's token")
    assert record["setting"] == "GATEWAY_REGISTRY_TOKEN"


async def test_the_credential_is_the_only_header_that_goes_on(gateway, script):
    async def run(_request, context):
        await fail(context, grpc.StatusCode.NOT_FOUND, "TOOL_NOT_FOUND")
        yield

    script.run = run
    await post(gateway, tool_call(), Cookie="session=1", X_Api_Key="k", **LEGACY)
    names = {name for name in script.metadata[-1] if not name.startswith((":", "grpc-", "user-agent"))}
    assert names <= {"authorization", "x-naru-token", "x-request-id", "traceparent", "tracestate"}
    assert script.metadata[-1]["authorization"] == CREDENTIAL
