"""Checks what the RPC of a call hears of it, what becomes of a call whose RPC ends, and records of calls."""

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from naru.v1 import (
    errors_pb2,
    execution_pb2,
)
from registry_service import execution as execution_module
from registry_service.identity.caller import CALLER, Caller
from registry_service.identity.credentials import parse_basic
from registry_service.rpc.pagination import timestamp
from tests.support.registry_in_process import (
    AS_ADMIN,
    BOTH_DATABASES,
    CONTINUE,
    SERVICE,
    SUCCEEDED,
    failing,
)
from tests.support.scripted_endpoint import LIMIT_SECONDS, ndjson
from tests.support.waiting import eventually


class TestStreaming:
    async def test_accepted_progress_in_order_then_the_result(self, house):
        await house.tool("/ndjson")
        events = await house.events(stream=True)
        accepted = events[0].accepted
        assert (accepted.tool, accepted.version, accepted.lane) == ("tool", "1.0.0", "production")
        progress = [event.progress for event in events[1:-1]]
        assert [(one.progress, one.message) for one in progress] == [(1, "하나"), (2, ""), (3.5, "")]
        assert [one.HasField("total") for one in progress] == [True, True, False]
        assert events[-1].result.call_id == accepted.call_id == (await house.row()).call_id

    async def test_without_stream_there_is_the_result_alone(self, house):
        await house.tool("/ndjson")
        assert json.loads((await house.call()).structured_content)["done"]

    async def test_a_call_that_ends_while_its_id_is_told_is_answered(self, house, monkeypatch):
        """gRPC takes as long as it likes to send metadata: here until the call has been settled."""
        monkeypatch.setattr(execution_module, "TELL_SECONDS", 0.05)
        await house.tool("/gate")
        events = []

        async def send_initial_metadata(metadata):
            house.endpoint.gate.set()
            row = await house.settled(execution_pb2.Call.SUCCEEDED)
            assert metadata == (("x-naru-call-id", row.call_id),)

        async def write(event):
            events.append(event)

        context = SimpleNamespace(
            time_remaining=lambda: LIMIT_SECONDS, send_initial_metadata=send_initial_metadata, write=write
        )
        credential = parse_basic(f"Basic {base64.b64encode(house.credential.encode()).decode()}")
        CALLER.set(Caller(admin=False, credential=credential, request_id="", traceparent="", tracestate=""))
        async with asyncio.timeout(LIMIT_SECONDS):
            await house.execution.CallTool(execution_pb2.CallToolRequest(name="tool"), cast(Any, context))
        assert [event.result.structured_content for event in events] == [b'{"passed": true}']

    async def test_a_call_that_was_admitted_late_tells_its_id_as_well(self, house, monkeypatch):
        monkeypatch.setattr(execution_module, "TELL_SECONDS", 0.05)
        await house.tool("/gate")
        async with house.database.write() as session:
            await session.execute(text("UPDATE calls SET session_id = session_id"))
            rpc = house.start()
            waiting = asyncio.ensure_future(rpc.initial_metadata())
            done, _ = await asyncio.wait({waiting}, timeout=0.3)
            assert not done
        metadata = await waiting
        assert dict(metadata)["x-naru-call-id"] == (await house.row()).call_id
        house.endpoint.gate.set()
        assert (await rpc.read()).result.call_id == dict(metadata)["x-naru-call-id"]

    async def test_events_come_while_the_tool_works(self, house):
        await house.tool("/gated-progress")
        rpc = house.start(stream=True)
        assert (await rpc.read()).HasField("accepted")
        assert (await rpc.read()).progress.message == "waits"
        house.endpoint.gate.set()
        assert (await rpc.read()).progress.progress == 2
        assert (await rpc.read()).HasField("result")
        assert await rpc.read() is grpc.aio.EOF

    async def test_progress_that_does_not_grow_is_left_out(self, house):
        frames = [{"progress": n} for n in (1, 1, 0, 2, 2, 1.5, 3)]
        await house.tool(house.endpoint.serve("/odd", ndjson(*frames, {"result": {}})))
        events = await house.events(stream=True)
        assert [event.progress.progress for event in events[1:-1]] == [1, 2, 3]

    async def test_a_failure_after_accepted_is_a_status(self, house):
        await house.tool("/ndjson-without-result")
        rpc, seen = house.start(stream=True), []

        async def read():
            while (event := await rpc.read()) is not grpc.aio.EOF:
                seen.append(event.WhichOneof("event"))

        assert (await failing(read())).reason == "TOOL_RESPONSE_INVALID"
        assert seen == ["accepted", "progress", "progress", "progress"]

    async def test_a_client_that_does_not_read_holds_up_nothing(self, house):
        """The call ends, and what is kept for the client is bounded."""
        frames = [{"progress": n, "message": "x" * 3000} for n in range(5000)]
        await house.tool(house.endpoint.serve("/flood", ndjson(*frames, {"result": {"end": True}})))
        rpc = house.start(stream=True)
        row = await house.settled(execution_pb2.Call.SUCCEEDED)
        events = [event async for event in rpc]
        assert events[-1].result.call_id == row.call_id
        numbers = [event.progress.progress for event in events[1:-1]]
        assert numbers == sorted(numbers)
        assert numbers[-1] == 4999
        assert len(numbers) < 2500
        assert {len(event.progress.message) for event in events[1:-1]} == {2000}


class TestDisconnects:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", ["/hang", "/headers-then-stall", "/gated-progress"])
    async def test_cancel_goes_down_to_the_endpoints_socket(self, house, path, stream):
        await house.tool(path)
        rpc = house.start(stream=stream)
        waiting = asyncio.ensure_future(rpc.read())
        await house.endpoint.arrived()
        rpc.cancel()
        async with asyncio.timeout(1):
            await house.endpoint.gone()
        row = await house.settled(execution_pb2.Call.CANCELLED)
        assert row.reason == 0
        waiting.cancel()

    @BOTH_DATABASES
    @pytest.mark.parametrize("stream", [False, True])
    async def test_continue_runs_on_to_the_end(self, house, stream):
        await house.tool("/gate")
        rpc = house.start(stream=stream, on_disconnect=CONTINUE)
        waiting = asyncio.ensure_future(rpc.read())
        await house.endpoint.arrived()
        rpc.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        house.endpoint.gate.set()
        await house.settled(execution_pb2.Call.SUCCEEDED)

    @pytest.mark.parametrize("on_disconnect", [CONTINUE, execution_pb2.CallToolRequest.CANCEL])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_call_whose_client_leaves_before_it_is_admitted_never_runs(self, house, on_disconnect, stream):
        await house.tool("/echo")
        async with house.database.write() as session:
            await session.execute(text("UPDATE calls SET session_id = session_id"))
            rpc = house.start(stream=stream, on_disconnect=on_disconnect)
            waiting = asyncio.ensure_future(rpc.read())
            await eventually(lambda: house.calls._running)
            (call,) = house.calls._running.values()
            rpc.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await eventually(lambda: call.abandoned)
        await eventually(lambda: not house.calls._running)
        await house.call()
        states = [row.state for row in await house.rows()]
        assert states in ([SUCCEEDED], [execution_pb2.Call.CANCELLED, SUCCEEDED])
        assert house.endpoint.executions == 1

    async def test_continue_tells_the_truth_of_a_failure(self, house):
        await house.tool("/sleep?seconds=30", timeout="300ms")
        rpc = house.start(on_disconnect=CONTINUE)
        waiting = asyncio.ensure_future(rpc.read())
        await house.endpoint.arrived()
        rpc.cancel()
        row = await house.settled(execution_pb2.Call.FAILED)
        assert row.reason == errors_pb2.TOOL_TIMED_OUT
        await house.endpoint.gone()
        await asyncio.gather(waiting, return_exceptions=True)

    async def test_a_lost_connection_is_a_disconnect(self, house):
        await house.tool("/hang")
        waiting = asyncio.ensure_future(house.call())
        await house.endpoint.arrived()
        await house.channel.close()
        async with asyncio.timeout(2):
            await house.endpoint.gone()
        await house.settled(execution_pb2.Call.CANCELLED)
        await asyncio.gather(waiting, return_exceptions=True)

    @BOTH_DATABASES
    async def test_many_that_leave_leave_nothing_behind(self, house):
        await house.tool("/gated-progress")
        rpcs = [house.start(stream=True) for _ in range(30)]
        for rpc in rpcs:
            await rpc.read()
            await rpc.read()
        for rpc in rpcs:
            rpc.cancel()
        for _ in rpcs:
            await house.endpoint.gone()
        await house.all_settled(execution_pb2.Call.CANCELLED, len(rpcs))
        assert house.endpoint.open_connections == 0


@BOTH_DATABASES
class TestGetCall:
    async def test_an_account_sees_its_own_calls_only(self, house):
        await house.tool("/echo")
        call_id = (await house.call()).call_id
        made = await house.new_account()

        def metadata(credential):
            return (
                ("x-naru-token", SERVICE),
                ("authorization", f"Basic {base64.b64encode(credential.encode()).decode()}"),
            )

        assert (await house.get(call_id, metadata(house.credential))).call_id == call_id
        other = metadata(f"{made.account.client_id}:{made.secret}")
        assert (await failing(house.get(call_id, other))).reason == "CALL_NOT_FOUND"
        assert (await failing(house.get("nonsense"))).reason == "CALL_NOT_FOUND"
        assert (await failing(house.get(call_id, metadata("a:b")))).reason == "UNAUTHENTICATED"


@BOTH_DATABASES
class TestListCalls:
    async def listed(self, house, metadata=AS_ADMIN, **fields):
        """The numbers of the calls that were listed, page by page, and how many pages there were."""
        numbers, pages, token = [], 0, ""
        while token or not pages:
            request = execution_pb2.ListCallsRequest(page_token=token, **fields)
            page = await house.stub.ListCalls(request, metadata=metadata)
            numbers += [int(call.jsonrpc_id) for call in page.calls]
            pages, token = pages + 1, page.next_page_token
        return numbers, pages

    async def test_calls_are_listed_newest_first_in_pages(self, house):
        await house.tool("/echo")
        for number in range(5):
            await house.call(jsonrpc_id=str(number))
        assert await self.listed(house) == ([4, 3, 2, 1, 0], 1)
        assert await self.listed(house, page_size=2) == ([4, 3, 2, 1, 0], 3)
        assert await self.listed(house, page_size=5) == ([4, 3, 2, 1, 0], 1)
        page = await house.stub.ListCalls(execution_pb2.ListCallsRequest(page_size=1), metadata=AS_ADMIN)
        assert page.calls[0] == await house.get(page.calls[0].call_id)

    async def test_each_filter_admits_what_it_says(self, house):
        await house.tool("/echo")
        await house.tool("/500", name="other")
        await house.call(jsonrpc_id="0")
        await house.call(jsonrpc_id="1", name="other")
        made = await house.new_account()
        await house.call(jsonrpc_id="2", credential=f"{made.account.client_id}:{made.secret}")
        times = {int(row.request_id): row.create_time for row in await house.rows()}
        second = timestamp(times[1])
        for fields, expected in [
            ({"tool": "other"}, [1]),
            ({"client_id": made.account.client_id}, [2]),
            ({"client_id": made.account.client_id, "tool": "other"}, []),
            ({"state": execution_pb2.Call.SUCCEEDED}, [2, 0]),
            ({"state": execution_pb2.Call.TOOL_ERROR}, [1]),
            ({"reason": errors_pb2.TOOL_HTTP_ERROR}, [1]),
            ({"create_time_from": second}, [2, 1]),
            ({"create_time_until": second}, [0]),
            ({"create_time_from": second, "create_time_until": timestamp(times[1] + 1)}, [1]),
            ({"create_time_from": timestamp(0), "create_time_until": timestamp(253_402_300_799_000_000)}, [2, 1, 0]),
        ]:
            assert (await self.listed(house, page_size=1, **fields))[0] == expected, fields

    async def test_who_asks_wrongly_hears_so(self, house):
        await house.tool("/echo")
        for number in range(2):
            await house.call(jsonrpc_id=str(number))

        async def refused(metadata=AS_ADMIN, **fields):
            return (await failing(self.listed(house, metadata, **fields))).reason

        for fields in (
            {"tool": "\0"},
            {"client_id": "x" * 129},
            {"tool": "도구"},
            {"state": 99},
            {"reason": 70_000},
            {"page_size": -1},
            {"create_time_from": Timestamp(seconds=-1)},
            {"create_time_until": Timestamp(seconds=1 << 60)},
            {"create_time_until": Timestamp(nanos=-1)},
        ):
            assert await refused(**fields) == "REQUEST_INVALID", fields
        assert await refused(metadata=(("x-naru-token", SERVICE),)) == "TOKEN_INVALID"
        page = await house.stub.ListCalls(execution_pb2.ListCallsRequest(page_size=1), metadata=AS_ADMIN)
        for fields in ({"tool": "tool"}, {"state": 2}, {"create_time_from": Timestamp(seconds=1)}):
            request = execution_pb2.ListCallsRequest(page_token=page.next_page_token, **fields)
            assert (await failing(house.stub.ListCalls(request, metadata=AS_ADMIN))).reason == "PAGE_TOKEN_INVALID"
