"""The methods, in each contract, through a real gateway in front of a scripted registry service."""

import asyncio
import json
from typing import Any, ClassVar

import grpc
import pytest

from gateway.failures.table import TABLE, Surface
from naru.v1 import errors_pb2
from naru.v1.execution_pb2 import CallToolEvent, CallToolRequest
from naru.v1.registry_pb2 import ListCatalogResponse
from tests.support.gateway_alone import AGENT_BUILDER, BOTH, LEGACY, head_of, modern, post, rpc, tool_call
from tests.support.scripted_registry import TOKEN, fail, text_result

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACCEPTED = CallToolEvent(
    accepted=CallToolEvent.Accepted(call_id="call-1", tool="echo", version="1.0.0", lane="production")
)
CALL_REASONS = sorted(reason for reason in TABLE if TABLE[reason].surface is not Surface.HTTP)


def progress(value: float, total: float | None = None, message: str = "") -> CallToolEvent:
    return CallToolEvent(progress=CallToolEvent.Progress(progress=value, total=total, message=message))


def answering(*events: CallToolEvent):
    async def run(_request, _context):
        for event in events:
            yield event

    return run


def failing(reason: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, **facts: Any):
    async def run(_request, context):
        await fail(context, code, reason, **facts)
        yield

    return run


def aborting(code: grpc.StatusCode, details: str = "broken"):
    async def run(_request, context):
        await context.abort(code, details)
        yield

    return run


class TestInitialize:
    async def test_agent_builder(self, gateway, script):
        answer = await post(gateway, rpc("initialize", {"protocolVersion": "2025-11-25"}), **AGENT_BUILDER)
        assert answer.json == {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}},
        }

    @pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
    async def test_legacy_echoes_a_known_revision(self, gateway, script, version):
        answer = await post(gateway, rpc("initialize", {"protocolVersion": version}), Accept=LEGACY["Accept"])
        result = answer.json["result"]
        assert result["protocolVersion"] == version
        assert result["capabilities"] == {"tools": {}}
        assert result["serverInfo"]["name"] == "naru"

    @pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28"])
    async def test_legacy_answers_its_latest_to_any_other(self, gateway, script, version):
        answer = await post(gateway, rpc("initialize", {"protocolVersion": version}), Accept=LEGACY["Accept"])
        assert answer.json["result"]["protocolVersion"] == "2025-11-25"

    async def test_it_is_authenticated(self, gateway, script):
        script.refuse = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        answer = await post(gateway, rpc("initialize", {"protocolVersion": "2025-11-25"}), **AGENT_BUILDER)
        assert answer.status == 401

    async def test_bad_params_name_the_member(self, gateway, script):
        answer = await post(gateway, rpc("initialize", {}), **LEGACY)
        assert answer.status == 200
        assert answer.json["error"]["code"] == -32602
        assert "protocolVersion" in answer.json["error"]["data"]["detail"]


async def test_ping(gateway, script):
    assert (await post(gateway, rpc("ping"), **LEGACY)).json["result"] == {}
    assert (await post(gateway, rpc("ping"), **AGENT_BUILDER)).json["result"] == {}


class TestDiscover:
    async def test_modern(self, gateway, script):
        body, headers = modern(rpc("server/discover"))
        result = (await post(gateway, body, **headers)).json["result"]
        assert result["supportedVersions"][0] == "2026-07-28"
        assert result["resultType"] == "complete"
        assert result["cacheScope"] == "public"
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "naru"

    async def test_it_is_unknown_before(self, gateway, script):
        answer = await post(gateway, rpc("server/discover"), **LEGACY)
        assert (answer.status, answer.json["error"]["code"]) == (200, -32601)


class TestUnknownMethods:
    async def test_legacy(self, gateway, script):
        answer = await post(gateway, rpc("prompts/list"), **LEGACY)
        assert answer.status == 200
        assert answer.json["error"]["code"] == -32601
        assert answer.json["error"]["data"]["reason"] == "METHOD_NOT_FOUND"

    @pytest.mark.parametrize("method", ["ping", "initialize", "logging/setLevel", "subscriptions/listen"])
    async def test_modern(self, gateway, script, method):
        body, headers = modern(rpc(method))
        answer = await post(gateway, body, **headers)
        assert (answer.status, answer.json["error"]["code"]) == (404, -32601)
        assert answer.json["id"] == 1


class TestModernLadder:
    async def test_header_without_meta(self, gateway, script):
        _, headers = modern(tool_call())
        answer = await post(gateway, tool_call(id="abc"), **headers)
        assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (400, -32602, "abc")
        assert script.calls == []

    async def test_header_and_meta_differ(self, gateway, script):
        body, headers = modern(tool_call(meta={"io.modelcontextprotocol/protocolVersion": "2025-11-25"}))
        answer = await post(gateway, body, **{**headers, "Mcp_Name": "other"})
        assert (answer.status, answer.json["error"]["code"]) == (400, -32020)
        assert script.calls == []

    async def test_a_revision_that_nobody_serves(self, gateway, script):
        body, headers = modern(rpc("server/discover"))
        body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "v999.0.0"
        answer = await post(gateway, body, **{**headers, "MCP_Protocol_Version": "v999.0.0"})
        assert (answer.status, answer.json["error"]["code"]) == (400, -32022)
        data = answer.json["error"]["data"]
        assert data["requested"] == "v999.0.0"
        assert data["supported"] == ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]


class TestNotifications:
    @pytest.mark.parametrize("method", ["notifications/initialized", "notifications/foo"])
    async def test_they_are_taken(self, gateway, script, method):
        answer = await post(gateway, {"jsonrpc": "2.0", "method": method}, **AGENT_BUILDER)
        assert (answer.status, answer.body) == (202, b"")

    async def test_they_need_no_acceptable_form(self, gateway, script):
        answer = await post(gateway, {"jsonrpc": "2.0", "method": "notifications/initialized"}, Accept="text/html")
        assert answer.status == 202

    async def test_one_that_cannot_be_taken_is_no_success(self, gateway, script):
        script.refuse = (grpc.StatusCode.UNAVAILABLE, "SERVICE_UNAVAILABLE")
        answer = await post(gateway, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert answer.status == 503
        assert "id" not in answer.json

    async def test_posted_responses(self, gateway, script):
        response = {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert (await post(gateway, response, **LEGACY)).status == 202
        answer = await post(gateway, response, MCP_Protocol_Version="2026-07-28")
        assert (answer.status, answer.json["error"]["code"]) == (400, -32600)


class TestListTools:
    PAGES: ClassVar = {
        "": ListCatalogResponse(
            entries=[
                ListCatalogResponse.Entry(tool=b'{"name":"a"}'),
                ListCatalogResponse.Entry(tool=b'{"name":"b","outputSchema":true}'),
            ],
            next_page_token="t2",
            lane="real_test",
        ),
        "t2": ListCatalogResponse(entries=[ListCatalogResponse.Entry(tool=b'{"name":"c"}')], lane="real_test"),
    }

    @pytest.mark.parametrize("headers", [AGENT_BUILDER, LEGACY])
    async def test_legacy_gets_all_in_one_answer(self, gateway, script, headers):
        script.pages = self.PAGES
        answer = await post(gateway, rpc("tools/list"), **headers)
        assert answer.json["result"] == {
            "tools": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
            "_meta": {"xdata.kr/lane": "real_test"},
        }

    async def test_modern_gets_pages(self, gateway, script):
        script.pages = self.PAGES
        body, headers = modern(rpc("tools/list"))
        result = (await post(gateway, body, **headers)).json["result"]
        assert [tool["name"] for tool in result["tools"]] == ["a", "b"]
        assert result["tools"][1]["outputSchema"] is True
        assert (result["nextCursor"], result["cacheScope"], result["resultType"]) == ("t2", "private", "complete")
        assert 0 <= result["ttlMs"] <= 5000
        body, headers = modern(rpc("tools/list", {"cursor": "t2"}))
        result = (await post(gateway, body, **headers)).json["result"]
        assert [tool["name"] for tool in result["tools"]] == ["c"]
        assert "nextCursor" not in result

    @pytest.mark.parametrize("cursor", ["made-up", ""])
    async def test_a_cursor_that_nobody_issued(self, gateway, script, cursor):
        script.pages = self.PAGES
        body, headers = modern(rpc("tools/list", {"cursor": cursor}))
        answer = await post(gateway, body, **headers)
        assert (answer.status, answer.json["error"]["code"]) == (200, -32602)
        answer = await post(gateway, rpc("tools/list", {"cursor": cursor}), **LEGACY)
        assert (answer.status, answer.json["error"]["code"]) == (200, -32602)

    async def test_the_lane_is_passed_on(self, gateway, script):
        script.pages = self.PAGES
        await post(gateway, rpc("tools/list"), X_MCP_Env_Scope="real_test", **LEGACY)
        assert script.listings[0].requested_lane == "real_test"

    async def test_the_registry_refuses(self, gateway, script):
        script.refuse = (grpc.StatusCode.INVALID_ARGUMENT, "LANE_INVALID")
        answer = await post(gateway, rpc("tools/list"), **LEGACY)
        assert (answer.status, answer.json["error"]["code"]) == (200, -32006)
        body, headers = modern(rpc("tools/list"))
        answer = await post(gateway, body, **headers)
        assert (answer.status, answer.json["error"]["code"]) == (200, -31006)

    async def test_over_sse_it_is_one_frame(self, gateway, script):
        script.pages = self.PAGES
        answer = await post(gateway, rpc("tools/list"), Accept="text/event-stream")
        assert [frame["id"] for frame in answer.messages] == [1]


class TestCallTool:
    async def test_agent_builder_success(self, gateway, script):
        script.run = answering(text_result('{"characters":5}', structured_content=b'{"characters":5}'))
        answer = await post(gateway, tool_call("text_stats", {"text": "안녕하세요"}, id=2), **AGENT_BUILDER)
        assert answer.status == 200
        assert answer.json == {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "content": [{"type": "text", "text": '{"characters":5}'}],
                "structuredContent": {"characters": 5},
                "isError": False,
            },
        }
        assert answer.header("x-naru-call-id") == "call-1"

    async def test_agent_builder_execution_error(self, gateway, script):
        script.run = failing(
            "TOOL_TIMED_OUT", tool="slow", call_id="call-9", timeout_seconds=10.0, limit="tool", safe_to_retry=True
        )
        answer = await post(gateway, tool_call("slow", id=2), **AGENT_BUILDER)
        assert answer.status == 200
        assert answer.json == {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "content": [{"type": "text", "text": "도구가 제한 시간(10초) 안에 응답하지 않았습니다."}],
                "isError": True,
                "_meta": {
                    "xdata.kr/error": {
                        "reason": "TOOL_TIMED_OUT",
                        "error_code": "E1302",
                        "safe_to_retry": True,
                        "next_action": "잠시 후 같은 인자로 다시 호출하세요.",
                    }
                },
            },
        }
        assert answer.header("x-naru-call-id") == "call-9"

    async def test_what_the_registry_is_asked(self, gateway, script):
        params = b'{"arguments":{"b": 1.0,"a":9007199254740993},"name":"echo"}'
        raw = b'{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":%b}' % params
        answer = await post(gateway, raw, X_MCP_Env_Scope="real_test", mcp_session_id="s-1", **AGENT_BUILDER)
        (call,) = script.calls
        assert call.arguments == b'{"b": 1.0,"a":9007199254740993}'
        assert (call.name, call.requested_lane, call.session_id) == ("echo", "real_test", "s-1")
        assert (call.jsonrpc_id, call.client_capabilities) == ("9007199254740993", b"")
        assert call.on_disconnect == CallToolRequest.CONTINUE
        assert not call.stream
        assert b'"id":9007199254740993' in answer.body
        metadata = script.metadata[-1]
        assert metadata["authorization"] == "Basic aWQ6c2VjcmV0"
        assert metadata["x-naru-token"] == TOKEN
        assert script.time_remaining > 3600

    async def test_modern_cancels_and_declares(self, gateway, script):
        body, headers = modern(tool_call(meta={"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}))
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"sampling": {}}
        result = (await post(gateway, body, **headers)).json["result"]
        (call,) = script.calls
        assert call.on_disconnect == CallToolRequest.CANCEL
        assert json.loads(call.client_capabilities) == {"sampling": {}}
        assert result["resultType"] == "complete"
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "naru"

    async def test_absent_arguments(self, gateway, script):
        answer = await post(gateway, rpc("tools/call", {"name": "echo"}), **AGENT_BUILDER)
        assert answer.json["result"]["isError"] is False
        assert script.calls[0].arguments == b""

    @pytest.mark.parametrize(
        "params", [{}, {"name": 1}, {"name": "x", "arguments": []}, {"name": "x", "arguments": "{}"}]
    )
    async def test_params_of_another_shape(self, gateway, script, params):
        answer = await post(gateway, rpc("tools/call", params), **AGENT_BUILDER)
        assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32602, 1)
        assert script.calls == []

    @pytest.mark.parametrize("params", [None, [], "x", 1, False])
    async def test_params_that_are_no_object(self, gateway, script, params):
        for headers in (AGENT_BUILDER, LEGACY):
            answer = await post(gateway, {**rpc("tools/list"), "params": params}, **headers)
            assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32602, 1)

    async def test_an_id_of_a_megabyte(self, gateway, script):
        answer = await post(gateway, tool_call(id="x" * 1_000_000), Accept="text/event-stream")
        assert (len(answer.body) < 2000, script.calls) == (True, [])
        assert b'"id":null' in answer.body

    async def test_an_unknown_version_in_the_header(self, gateway, script):
        headers = {**BOTH, "MCP_Protocol_Version": "2026-05-11"}
        asked = rpc("initialize", {"protocolVersion": "2026-05-11", "capabilities": {}})
        answer = await post(gateway, asked, **headers)
        assert (answer.status, answer.json["result"]["protocolVersion"]) == (200, "2025-11-25")
        for message in (rpc("tools/list"), rpc("ping"), tool_call(), rpc("made up")):
            answer = await post(gateway, message, **headers)
            error = answer.json["error"]
            assert (answer.status, error["code"], error["data"]["requested"]) == (400, -32022, "2026-05-11")
            assert "2025-11-25" in error["data"]["supported"]
            assert "2026-05-11" in error["message"]

    async def test_params_of_another_shape_in_modern(self, gateway, script):
        body, headers = modern(rpc("tools/call", {"name": "x", "arguments": []}))
        answer = await post(gateway, body, **headers)
        assert (answer.status, answer.json["error"]["code"]) == (200, -32602)
        assert script.calls == []

    async def test_the_tools_own_meta_is_kept(self, gateway, script):
        script.run = answering(text_result("x", meta=b'{"vendor/x":1,"xdata.kr/error":"forged"}', is_error=True))
        result = (await post(gateway, tool_call(), **LEGACY)).json["result"]
        assert result["_meta"]["vendor/x"] == 1

    async def test_an_http_error_of_the_tool(self, gateway, script):
        failure = errors_pb2.Failure(reason=errors_pb2.TOOL_HTTP_ERROR, facts={"http_status": "500", "tool": '"x"'})
        script.run = answering(text_result("boom", is_error=True, failure=failure))
        result = (await post(gateway, tool_call(), **LEGACY)).json["result"]
        assert result["isError"] is True
        assert result["content"] == [{"type": "text", "text": "boom"}]
        assert result["_meta"]["xdata.kr/error"].items() >= {"reason": "TOOL_HTTP_ERROR", "http_status": 500}.items()

    async def test_an_http_error_without_a_body(self, gateway, script):
        failure = errors_pb2.Failure(reason=errors_pb2.TOOL_HTTP_ERROR, facts={"http_status": "500"})
        result = CallToolEvent.Result(call_id="c", content=b"[]", is_error=True, failure=failure)
        script.run = answering(CallToolEvent(result=result))
        shown = (await post(gateway, tool_call(), **AGENT_BUILDER)).json["result"]
        assert shown["content"] == [{"type": "text", "text": "도구 서버가 오류로 응답했습니다. (HTTP 500)"}]
        assert set(shown["_meta"]["xdata.kr/error"]) == {"reason", "error_code", "safe_to_retry", "next_action"}


class TestFailures:
    @pytest.mark.parametrize("reason", CALL_REASONS)
    @pytest.mark.parametrize("client", ["agent-builder", "legacy", "modern"])
    async def test_every_reason_on_its_surface(self, gateway, script, reason, client):
        script.run = failing(reason, tool="echo")
        entry = TABLE[reason]
        if client == "modern":
            body, headers = modern(tool_call())
        else:
            body, headers = tool_call(), AGENT_BUILDER if client == "agent-builder" else LEGACY
        answer = await post(gateway, body, **headers)
        assert answer.json["id"] == 1
        as_result = entry.surface is Surface.RESULT
        if reason == "ARGUMENTS_INVALID":
            as_result = client != "agent-builder"
        if as_result:
            assert answer.status == 200
            result = answer.json["result"]
            assert result["isError"] is True
            assert result["content"][0]["type"] == "text"
            data = result["_meta"]["xdata.kr/error"]
        else:
            assert answer.status == (entry.modern_status if client == "modern" else entry.status)
            error = answer.json["error"]
            assert error["code"] == (entry.modern_code if client == "modern" else entry.code)
            data = error["data"]
        assert (data["reason"], data["error_code"]) == (reason, entry.error_code)
        assert data["safe_to_retry"] is entry.safe_to_retry
        assert data["next_action"]

    @pytest.mark.parametrize(
        ("version", "as_error"),
        [("2024-11-05", True), ("2025-03-26", True), ("2025-06-18", True), ("2025-11-25", False), (None, False)],
    )
    async def test_invalid_arguments_by_revision(self, gateway, script, version, as_error):
        violations = [{"pointer": "/text", "message": "is not a string"}]
        script.run = failing("ARGUMENTS_INVALID", tool="echo", violations=violations)
        answer = await post(gateway, tool_call(), **{**LEGACY, "MCP_Protocol_Version": version})
        if as_error:
            assert answer.json["error"]["code"] == -32602
            assert answer.json["error"]["data"]["violations"] == violations
        else:
            result = answer.json["result"]
            assert result["_meta"]["xdata.kr/error"]["violations"] == violations
            assert "arguments/text: is not a string" in result["content"][0]["text"]

    async def test_required_capabilities_are_an_object(self, gateway, script):
        script.run = failing("MISSING_CLIENT_CAPABILITY", required_capabilities={"sampling": {}})
        body, headers = modern(tool_call())
        answer = await post(gateway, body, **headers)
        assert (answer.status, answer.json["error"]["code"]) == (400, -32021)
        assert answer.json["error"]["data"]["requiredCapabilities"] == {"sampling": {}}

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    async def test_every_status_without_a_reason_is_an_answer(self, gateway, script, code):
        script.run = aborting(code)
        answer = await post(gateway, tool_call(), **AGENT_BUILDER)
        unimplemented = code is grpc.StatusCode.UNIMPLEMENTED
        error = answer.json["error"]
        assert error["data"]["reason"] == ("SERVICE_UNAVAILABLE" if unimplemented else "CALL_OUTCOME_UNKNOWN")
        assert error["data"]["safe_to_retry"] is unimplemented
        assert "broken" not in answer.body.decode(), "exception text reached the wire"

    async def test_a_stream_that_ends_without_a_result(self, gateway, script):
        script.run = answering()
        answer = await post(gateway, tool_call(), **AGENT_BUILDER)
        assert answer.json["error"]["data"]["reason"] == "CALL_OUTCOME_UNKNOWN"

    async def test_a_link_that_breaks_after_the_result_changes_nothing(self, gateway, script):
        async def run(_request, context):
            yield text_result("done")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

        script.run = run
        answer = await post(gateway, tool_call(), **AGENT_BUILDER)
        assert answer.json["result"]["content"][0]["text"] == "done"

    async def test_a_result_above_what_grpc_carries(self, gateway, script):
        script.run = answering(text_result("x" * (49 << 20)))
        answer = await post(gateway, tool_call(), **AGENT_BUILDER)
        error = answer.json["result"]["_meta"]["xdata.kr/error"]
        assert (error["reason"], error["safe_to_retry"]) == ("RESULT_TOO_LARGE", False)

    async def test_an_internal_error_has_a_fixed_sentence_and_a_trace_id(self, gateway, script):
        script.run = failing("INTERNAL", trace_id="t" * 32)
        error = (await post(gateway, tool_call(), Accept_Language="en", **AGENT_BUILDER)).json["error"]
        assert error["code"] == -32603
        assert error["message"] == f"Something unforeseen went wrong (trace id {'t' * 32})."
        assert error["data"]["trace_id"] == "t" * 32

    async def test_retry_after(self, gateway, script):
        script.run = failing("SERVICE_UNAVAILABLE", retry_after_seconds=7)
        answer = await post(gateway, tool_call(), **AGENT_BUILDER)
        assert answer.header("retry-after") == "7"
        assert answer.json["error"]["data"].items() >= {"retry_after_seconds": 7, "safe_to_retry": True}.items()

    async def test_english_where_it_is_preferred(self, gateway, script):
        script.run = failing("TOOL_NOT_FOUND", tool="nope")
        answer = await post(gateway, tool_call(), Accept_Language="ko;q=0.5, en-US", **AGENT_BUILDER)
        assert answer.json["error"]["message"] == "No such tool is registered: nope"


class TestStreaming:
    EVENTS = (ACCEPTED, progress(1, 3, "하나"), progress(2.5, 3), text_result("끝"))

    async def test_sse_only_gets_progress_under_its_request_id(self, gateway, script):
        script.run = answering(*self.EVENTS)
        answer = await post(gateway, tool_call(id=7), Accept="text/event-stream")
        assert script.calls[0].stream
        first, second, last = answer.messages
        assert first == {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": 7, "progress": 1, "total": 3, "message": "하나"},
        }
        assert second["params"] == {"progressToken": 7, "progress": 2.5, "total": 3}
        assert last["id"] == 7
        assert last["result"]["content"][0]["text"] == "끝"
        assert answer.header("x-naru-call-id") == "call-1"

    async def test_both_with_a_token(self, gateway, script):
        script.run = answering(*self.EVENTS)
        answer = await post(gateway, tool_call(meta={"progressToken": "t-1"}), **LEGACY)
        assert [frame["params"]["progressToken"] for frame in answer.messages[:-1]] == ["t-1", "t-1"]

    async def test_both_without_a_token_is_json(self, gateway, script):
        script.run = answering(*self.EVENTS)
        answer = await post(gateway, tool_call(), **LEGACY)
        assert answer.json["result"]["content"][0]["text"] == "끝"
        assert answer.header("x-naru-call-id") == "call-1"

    async def test_ndjson(self, gateway, script):
        script.run = answering(*self.EVENTS)
        answer = await post(gateway, tool_call(id="x"), Accept="application/x-ndjson")
        lines = [json.loads(line) for line in answer.body.decode().splitlines() if line]
        assert [line.get("id") for line in lines] == [None, None, "x"]

    async def test_a_failure_before_the_first_byte_keeps_its_status(self, gateway, script):
        script.run = failing("UNAUTHENTICATED")
        answer = await post(gateway, tool_call(), Accept="text/event-stream")
        assert (answer.status, answer.json["error"]["data"]["reason"]) == (401, "UNAUTHENTICATED")

    async def test_a_failure_in_the_stream_is_its_last_frame(self, gateway, script):
        async def run(_request, context):
            yield ACCEPTED
            await fail(context, grpc.StatusCode.UNAVAILABLE, "TOOL_UNREACHABLE", safe_to_retry=False)

        script.run = run
        answer = await post(gateway, tool_call(), Accept="text/event-stream")
        (last,) = answer.messages
        assert last["result"]["_meta"]["xdata.kr/error"]["reason"] == "TOOL_UNREACHABLE"
        script.run = aborted_after_accepted
        (last,) = (await post(gateway, tool_call(), Accept="text/event-stream")).messages
        assert last["error"]["data"]["reason"] == "CALL_OUTCOME_UNKNOWN"


async def aborted_after_accepted(_request, context):
    yield ACCEPTED
    await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


class TestDisconnect:
    async def leave(self, gateway, body, headers, script) -> None:
        """Sends a request, waits until the call runs, and drops the connection."""
        raw = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        writer.write(head_of("POST", "/mcp", named, len(raw)) + raw)
        async with asyncio.timeout(5):
            await self.started.wait()
        writer.transport.abort()

    @pytest.fixture
    def waiting(self, script):
        self.started, self.go_on = asyncio.Event(), asyncio.Event()
        self.finished = asyncio.Event()

        async def run(_request, _context):
            self.started.set()
            await self.go_on.wait()
            yield text_result("done")
            self.finished.set()

        script.run = run

    async def test_modern_cancels_a_pending_json_answer(self, gateway, script, waiting):
        body, headers = modern(tool_call())
        await self.leave(gateway, body, headers, script)
        async with asyncio.timeout(2):
            await script.cancelled.wait()
        await gateway.record("request", outcome="cancelled")

    async def test_legacy_runs_on(self, gateway, script, waiting):
        await self.leave(gateway, tool_call(), LEGACY, script)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await script.cancelled.wait()
        self.go_on.set()
        async with asyncio.timeout(2):
            await self.finished.wait()
