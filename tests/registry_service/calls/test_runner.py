"""Calls from their admission to their settlement, over a socket: gRPC in, HTTP out, the ledger behind."""

import asyncio
import json
import time
from collections import Counter

import grpc
import pytest
from sqlalchemy import text

from naru.v1 import (
    errors_pb2,
    execution_pb2,
)
from registry_service.calls import runner as calls_module
from registry_service.telemetry.metrics import METRICS
from registry_service.tools import checks as checks_module
from tests.support.registry_in_process import (
    BOTH_DATABASES,
    CONTINUE,
    MEBIBYTE,
    TRACE,
    failing,
    failure_facts,
)
from tests.support.scripted_endpoint import Script
from tests.support.waiting import eventually


class TestAnswers:
    @BOTH_DATABASES
    async def test_a_call_is_answered_recorded_and_counted(self, house):
        await house.tool("/echo")
        arguments = b'{"n":9007199254740993,"f":1.0}'
        result = await house.call(arguments, session_id="s-1", jsonrpc_id='"7"')
        assert result.structured_content == arguments
        assert json.loads(result.content) == [{"type": "text", "text": arguments.decode()}]
        assert not result.is_error
        assert not result.HasField("failure")
        record = await house.get(result.call_id)
        assert (record.state, record.reason) == (execution_pb2.Call.SUCCEEDED, 0)
        assert (record.client_id, record.tool, record.version) == (house.client_id, "tool", "1.0.0")
        assert (record.lane, record.session_id, record.jsonrpc_id) == ("production", "s-1", '"7"')
        assert abs(record.create_time.seconds - time.time()) < 60
        assert record.settle_time.ToNanoseconds() >= record.create_time.ToNanoseconds()
        assert await house.usage() == 1

    async def test_what_the_endpoint_is_told(self, house):
        await house.tool("/echo", timeout="7s")
        result = await house.call()
        request = house.endpoint.received[0]
        assert request.body == b"{}"
        assert request.header("Idempotency-Key") == request.header("X-Naru-Call-Id") == result.call_id
        assert request.header("X-Request-Id") == "r-1"
        assert request.header("traceparent")[:36] == TRACE[:36]
        assert request.header("traceparent")[36:52] != TRACE[36:52]
        assert request.header("tracestate") == "v=1"
        assert 6000 < int(request.header("X-Naru-Deadline-Ms")) <= 7000
        names = {name.lower() for name, _ in request.headers}
        assert not {name for name in names if name in ("authorization", "cookie") or name.startswith("mcp-")}

    @BOTH_DATABASES
    async def test_the_ledger_knows_the_call_before_the_endpoint_does(self, house):
        await house.tool("/gate")
        rpc = house.start()
        waiting = asyncio.ensure_future(rpc.read())
        await house.endpoint.arrived()
        row = await house.row()
        assert (row.state, row.settle_time) == (execution_pb2.Call.RUNNING, None)
        assert await house.usage() == 1
        house.endpoint.gate.set()
        assert (await waiting).result.call_id == row.call_id

    async def test_a_tools_own_error_is_a_result(self, house):
        body = b'{"content":[{"type":"text","text":"no"}],"isError":true,"_meta":{"a/b":1.0}}'
        await house.tool(house.endpoint.serve("/mcp", Script(chunks=[body])), result="mcp")
        result = await house.call()
        assert (result.is_error, result.HasField("failure"), result.meta) == (True, False, b'{"a/b":1.0}')
        assert ((await house.row()).state, (await house.row()).reason) == (execution_pb2.Call.TOOL_ERROR, 0)

    async def test_an_http_error_is_a_result_with_its_failure(self, house):
        await house.tool("/500")
        result = await house.call()
        assert result.is_error
        assert "고장" in json.loads(result.content)[0]["text"]
        assert result.failure.reason == errors_pb2.TOOL_HTTP_ERROR
        assert failure_facts(result) == {
            "http_status": 500,
            "tool": "tool",
            "call_id": result.call_id,
            "safe_to_retry": False,
        }
        row = await house.row()
        assert (row.state, row.reason) == (execution_pb2.Call.TOOL_ERROR, errors_pb2.TOOL_HTTP_ERROR)

    async def test_a_tool_that_may_be_repeated_is_safe_to_retry(self, house):
        await house.tool("/500", idempotent=True)
        assert failure_facts(await house.call())["safe_to_retry"] is True
        await house.tool("/404", name="other", idempotent=True)
        assert failure_facts(await house.call(name="other"))["safe_to_retry"] is False

    @pytest.mark.parametrize(
        ("path", "reason", "facts"),
        [
            ("/401", "TOOL_REFUSED", {"http_status": 401}),
            ("/empty", "TOOL_RESPONSE_INVALID", {"detail": "empty body"}),
            ("/commit-then-drop", "TOOL_UNREACHABLE", {"detail": "broken off"}),
            ("/size?n=9000000", "RESULT_TOO_LARGE", {"limit_bytes": 8 * MEBIBYTE}),
            ("http://169.254.169.254/", "TOOL_UNREACHABLE", {"detail": "address not allowed"}),
        ],
    )
    async def test_an_endpoint_that_fails(self, house, path, reason, facts):
        await house.tool(path)
        failure = await failing(house.call())
        row = await house.row()
        assert failure.reason == reason
        assert failure.facts == {**facts, "tool": "tool", "call_id": row.call_id, "safe_to_retry": False}
        assert (row.state, row.reason) == (execution_pb2.Call.FAILED, errors_pb2.Reason.Value(reason))
        assert house.endpoint.executions <= 1

    async def test_a_result_of_five_mebibytes_passes(self, house):
        await house.tool(f"/size?n={5 * MEBIBYTE}")
        assert len((await house.call()).structured_content) == 5 * MEBIBYTE

    async def test_the_output_schema_is_enforced(self, house):
        await house.tool("/hangul", outputSchema={"type": "object", "required": ["absent"]})
        assert (await failing(house.call())).reason == "TOOL_RESPONSE_INVALID"

    @BOTH_DATABASES
    async def test_a_large_answer_that_cannot_be_checked_in_time_is_no_call_that_never_was(self, house, monkeypatch):
        """Its tool has done its work."""
        monkeypatch.setattr(checks_module, "WAIT_SECONDS", 0.0)
        answer = json.dumps({"items": [n / 7 for n in range(400_000)]}).encode()
        output = {"type": "object", "properties": {"items": {"type": "array", "uniqueItems": True}}}
        await house.tool(house.endpoint.serve("/large", Script(chunks=[answer])), outputSchema=output)
        failure = await failing(house.call())
        assert failure.reason == "TOOL_RESPONSE_INVALID"
        assert (failure.facts["detail"], failure.facts["safe_to_retry"]) == ("too large to be checked in time", False)
        row = await house.row()
        assert (row.state, row.reason) == (execution_pb2.Call.FAILED, errors_pb2.TOOL_RESPONSE_INVALID)

    @BOTH_DATABASES
    async def test_a_record_says_how_the_call_went(self, house):
        names = {"/sleep?seconds=0.2": 200, "/404": 404, "/html": 200, "/commit-then-drop": 0, "/hang": 0}
        for number, path in enumerate(names):
            promised = {"outputSchema": {"type": "object"}} if path == "/html" else {}
            await house.tool(path, name=f"tool_{number}", timeout="400ms", **promised)
            await asyncio.gather(house.call(name=f"tool_{number}"), return_exceptions=True)
        calls = [await house.get(row.call_id) for row in await house.rows()]
        assert [call.http_status for call in calls] == [*names.values()]
        details = [
            "",
            "",
            "no structured content, which outputSchema demands",
            "broken off",
            "the tool's limit of 0.4 s",
        ]
        assert [call.detail for call in calls] == details
        milliseconds = [call.duration.ToMilliseconds() for call in calls]
        assert 200 <= milliseconds[0] < 400
        assert 400 <= milliseconds[4] < 2000
        assert all(0 < call.duration.ToMicroseconds() < 2_000_000 for call in calls)
        assert not any(call.trial for call in calls)

    async def test_a_call_that_runs_has_no_duration(self, house):
        await house.tool("/gate")
        waiting = asyncio.ensure_future(house.call())
        await house.endpoint.arrived()
        call = await house.get((await house.row()).call_id)
        assert not call.HasField("duration")
        house.endpoint.gate.set()
        await waiting

    async def test_a_detail_is_fit_for_a_terminal_and_a_database(self, house):
        coding = "x\u202e\x1b[31m" + "y" * 300
        script = Script(chunks=[b"{}"], headers=[("Content-Encoding", coding)])
        await house.tool(house.endpoint.serve("/odd", script))
        await asyncio.gather(house.call(), return_exceptions=True)
        detail = (await house.get((await house.row()).call_id)).detail
        assert detail.isprintable()
        assert 0 < len(detail) <= 200

    async def test_many_calls_at_once_each_get_their_own(self, house):
        await house.tool("/echo")
        results = await asyncio.gather(*(house.call(b'{"n":%d}' % n) for n in range(50)))
        assert [json.loads(result.structured_content)["n"] for result in results] == list(range(50))
        assert len({result.call_id for result in results}) == 50
        assert {row.state for row in await house.rows()} == {execution_pb2.Call.SUCCEEDED}
        assert await house.usage() == 50


class TestLimits:
    @pytest.mark.parametrize("path", ["/hang", "/headers-then-stall", "/gated-progress"])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_tools_own_limit(self, house, path, stream):
        await house.tool(path, timeout="300ms", idempotent=path == "/hang")
        began = time.monotonic()
        failure = await failing(house.events(stream=stream))
        assert 0.2 < time.monotonic() - began < 5
        assert failure.reason == "TOOL_TIMED_OUT"
        row = await house.row()
        assert failure.facts == {
            "tool": "tool",
            "call_id": row.call_id,
            "timeout_seconds": 0.3,
            "limit": "tool",
            "safe_to_retry": path == "/hang",
        }
        assert (row.state, row.reason) == (execution_pb2.Call.FAILED, errors_pb2.TOOL_TIMED_OUT)
        await house.endpoint.gone()

    async def test_the_clients_limit_leaves_time_to_say_so(self, house):
        await house.tool("/hang")
        failure = await failing(house.call(seconds=1))
        assert failure.reason == "TOOL_TIMED_OUT"
        assert failure.facts["limit"] == "client"
        assert 0.9 < failure.facts["timeout_seconds"] < 1.1
        assert int(house.endpoint.received[0].header("X-Naru-Deadline-Ms")) <= 920
        await house.settled(execution_pb2.Call.FAILED)

    @pytest.mark.parametrize(("wanted", "seconds"), [(None, 0.2), ("1h", 0.4)])
    async def test_the_servers_limits(self, house, monkeypatch, wanted, seconds):
        monkeypatch.setattr(house.calls, "_default_timeout", 0.2)
        monkeypatch.setattr(house.calls, "_max_timeout", 0.4)
        await house.tool("/hang", timeout=wanted)
        facts = (await failing(house.call())).facts
        assert (facts["limit"], facts["timeout_seconds"]) == ("server", seconds)


@BOTH_DATABASES
class TestTroubleWithTheLedger:
    async def test_an_outcome_that_cannot_be_recorded_is_not_told(self, house, monkeypatch):
        """The table is locked for longer than the client waits; it is recorded afterwards nonetheless."""
        monkeypatch.setattr(calls_module, "SETTLE_SECONDS", 0.3)
        await house.tool("/gate")
        waiting = asyncio.ensure_future(failing(house.call()))
        await house.endpoint.arrived()
        async with house.database.write() as session:
            await session.execute(text("UPDATE calls SET session_id = session_id"))
            house.endpoint.gate.set()
            failure = await waiting
            assert failure.reason == "CALL_OUTCOME_UNKNOWN"
        row = await house.settled(execution_pb2.Call.SUCCEEDED)
        assert failure.facts == {"tool": "tool", "call_id": row.call_id}

    async def test_a_client_hears_within_its_own_limit_that_an_outcome_is_not_recorded(self, house):
        """In words of ours: its own gRPC would say DEADLINE_EXCEEDED, without the call's id."""
        await house.tool("/gate")
        waiting = asyncio.ensure_future(failing(house.call(seconds=2)))
        await house.endpoint.arrived()
        async with house.database.write() as session:
            await session.execute(text("UPDATE calls SET session_id = session_id"))
            house.endpoint.gate.set()
            failure = await waiting
        assert failure.reason == "CALL_OUTCOME_UNKNOWN"
        row = await house.settled(execution_pb2.Call.SUCCEEDED)
        assert failure.facts == {"tool": "tool", "call_id": row.call_id}

    async def test_a_call_that_is_cut_while_it_is_recorded_is_unknown_to_its_client(self, house):
        await house.tool("/gate")
        waiting = asyncio.ensure_future(failing(house.call()))
        await house.endpoint.arrived()
        async with house.database.write() as session:
            await session.execute(text("UPDATE calls SET session_id = session_id"))
            house.endpoint.gate.set()
            await house.calls.drain(0.2)
            assert (await waiting).reason == "CALL_OUTCOME_UNKNOWN"
        await house.settled(execution_pb2.Call.SUCCEEDED)

    async def test_a_call_that_cannot_be_admitted_is_not_run(self, house):
        await house.tool("/echo")
        await house.close_ledger()
        failure = await failing(house.call())
        assert failure.reason == "SERVICE_UNAVAILABLE"
        assert house.endpoint.executions == 0


class TestCancellationFromElsewhere:
    """Neither the client nor a stop of the service has cancelled the call's task, and the client waits."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_admitted_call_is_recorded_as_cancelled_and_its_client_hears_that_it_may_have_run(
        self, house, stream
    ):
        await house.tool("/hang")
        waiting = asyncio.ensure_future(failing(house.events(stream=stream)))
        await house.endpoint.arrived()
        (task,) = house.calls._running
        task.cancel()
        async with asyncio.timeout(2):
            failure = await waiting
        row = await house.settled(execution_pb2.Call.CANCELLED)
        assert (failure.reason, failure.facts) == ("CALL_OUTCOME_UNKNOWN", {"tool": "tool", "call_id": row.call_id})

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_call_that_was_not_admitted_may_be_sent_again(self, house, stream):
        await house.tool("/echo")
        async with house.database.write() as session:
            await session.execute(text("UPDATE calls SET session_id = session_id"))
            waiting = asyncio.ensure_future(failing(house.events(stream=stream)))
            await eventually(lambda: house.calls._running)
            (task,) = house.calls._running
            task.cancel()
            async with asyncio.timeout(2):
                failure = await waiting
        assert failure.reason == "SERVICE_UNAVAILABLE"
        assert house.endpoint.executions == 0


class TestTheUnforeseen:
    """An error of our own, forced."""

    @pytest.fixture(autouse=True)
    async def _broken(self, house, monkeypatch):
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

        async def call(*_):
            self.begun.set()
            await self.gate.wait()
            raise RuntimeError("something very secret")

        monkeypatch.setattr(house.endpoints, "call", call)
        await house.tool("/echo")

    async def test_it_is_settled_and_the_client_hears_nothing_of_it(self, house, monkeypatch, capfd):
        self.gate.set()
        failure = await failing(house.call())
        assert (failure.reason, failure.facts) == ("INTERNAL", {"trace_id": "a" * 32})
        row = await house.row()
        assert (row.state, row.reason) == (execution_pb2.Call.FAILED, errors_pb2.INTERNAL)
        assert "something very secret" in capfd.readouterr().out
        monkeypatch.undo()
        await house.call()

    async def test_it_is_logged_also_when_nobody_waits(self, house, capfd):
        rpc = house.start(on_disconnect=CONTINUE)
        waiting = asyncio.ensure_future(rpc.read())
        await self.begun.wait()
        rpc.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(5):
            while not next(iter(house.calls._running.values())).abandoned:
                await asyncio.sleep(0.01)
        self.gate.set()
        await house.settled(execution_pb2.Call.FAILED)
        assert "something very secret" in capfd.readouterr().out


@BOTH_DATABASES
class TestDrain:
    async def test_running_calls_may_end_within_the_grace(self, house):
        await house.tool("/gate")
        waiting = asyncio.ensure_future(house.call())
        await house.endpoint.arrived()
        draining = asyncio.ensure_future(house.calls.drain(10))
        await asyncio.sleep(0)
        assert not draining.done()
        house.endpoint.gate.set()
        assert (await waiting).structured_content == b'{"passed": true}'
        async with asyncio.timeout(2):
            await draining

    @pytest.mark.parametrize("on_disconnect", [CONTINUE, execution_pb2.CallToolRequest.CANCEL])
    async def test_what_is_cut_is_unknown_and_its_client_hears_so(self, house, on_disconnect):
        await house.tool("/hang")
        waiting = asyncio.ensure_future(failing(house.call(on_disconnect=on_disconnect)))
        await house.endpoint.arrived()
        await house.calls.drain(0.1)
        failure = await waiting
        row = await house.row()
        assert (failure.reason, failure.facts["call_id"]) == ("CALL_OUTCOME_UNKNOWN", row.call_id)
        assert (row.state, row.reason) == (execution_pb2.Call.UNKNOWN, errors_pb2.CALL_OUTCOME_UNKNOWN)
        await house.endpoint.gone()

    async def test_calls_that_end_when_the_grace_does_are_told_what_is_recorded(self, house):
        """Some end before it, some are cut, and of those that end just then each is one or the other."""
        await house.tool("/sleep", method="GET", inputSchema={"type": "object"})
        calls = [
            asyncio.ensure_future(house.events(b'{"seconds":%.4f}' % (0.4 + 0.002 * step), stream=step % 2 == 0))
            for step in range(-20, 21)
        ]
        for _ in calls:
            await house.endpoint.arrived()
        await house.calls.drain(0.38)
        told: Counter[str] = Counter()
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            told["UNKNOWN" if isinstance(answer, grpc.aio.AioRpcError) else "SUCCEEDED"] += 1
        recorded = Counter(execution_pb2.Call.State.Name(row.state) for row in await house.rows())
        assert told.total() == recorded.total() == len(calls)
        # A call that was cut while its success was being recorded is unknown to its client.
        assert recorded["SUCCEEDED"] >= told["SUCCEEDED"]
        assert set(recorded) <= {"SUCCEEDED", "UNKNOWN"}

    async def test_nothing_to_wait_for_is_not_waited_for(self, house):
        async with asyncio.timeout(1):
            await house.calls.drain(60)


class TestTelemetry:
    async def test_calls_are_counted_by_tool_version_lane_outcome_and_reason(self, house):
        await house.tool("/echo", name="counted")
        await house.tool("/500", name="counted-too")
        await house.call(name="counted")
        await house.call(name="counted-too")

        def count(tool, outcome, reason):
            labels = {"tool": tool, "version": "1.0.0", "lane": "production", "outcome": outcome, "reason": reason}
            return METRICS.get_sample_value("naru_calls_total", labels) or 0

        assert count("counted", "succeeded", "") >= 1
        assert count("counted-too", "tool_error", "TOOL_HTTP_ERROR") >= 1
        labels = {"tool": "counted", "lane": "production"}
        assert METRICS.get_sample_value("naru_call_seconds_count", labels)

    async def test_each_call_has_one_record_without_its_content(self, house, capfd):
        await house.tool("/echo", name="recorded")
        result = await house.call(b'{"n":1,"id":"very-secret"}', name="recorded")
        await failing(house.call(b'{"n":"very-secret"}', name="recorded"))
        printed = capfd.readouterr().out
        assert "very-secret" not in printed
        assert printed.count(result.call_id) == 1
        for fact in (house.client_id, "recorded", "1.0.0", "production", "succeeded", "a" * 32, "r-1"):
            assert fact in printed
        assert "ARGUMENTS_INVALID" in printed
