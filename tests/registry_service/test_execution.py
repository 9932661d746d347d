"""Calls of tools over a socket: gRPC in, HTTP out, the ledger behind."""

import asyncio
import base64
import json
import time
from collections import Counter
from contextlib import asynccontextmanager
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from sqlalchemy import func, select, text, update

from naru.v1 import (
    accounts_pb2,
    accounts_pb2_grpc,
    errors_pb2,
    execution_pb2,
    execution_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from registry_service import execution as execution_module
from registry_service.accounts import AccountsServicer
from registry_service.calls import runner as calls_module
from registry_service.calls.admission import Admissions
from registry_service.calls.runner import Calls
from registry_service.catalog import Catalog
from registry_service.execution import ExecutionServicer
from registry_service.identity.caller import CALLER, Caller
from registry_service.identity.credentials import parse_basic
from registry_service.identity.plans import load_plans
from registry_service.ledger.ledger import Ledger
from registry_service.registry import RegistryServicer
from registry_service.rpc.border import Gate, GuardedServer
from registry_service.rpc.pagination import PageTokens
from registry_service.rpc.tokens import Tokens
from registry_service.storage.models import Call, CatalogRevision, Usage
from registry_service.telemetry.metrics import CALLS_RUNNING, METRICS
from registry_service.tools import checks as checks_module
from registry_service.tools.checks import Checks
from registry_service.tools.definition_lint import Site
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.reach import Reach
from tests.support.samples import definition, raw
from tests.support.scripted_endpoint import LIMIT_SECONDS, Script, ScriptedEndpoint, ndjson
from tests.support.waiting import eventually

ADMIN, SERVICE = "admin-token-of-the-tests", "service-token-of-the-tests"
AS_ADMIN = (("x-naru-admin-token", ADMIN),)
PEPPER = b"pepper-of-the-tests-of-32-bytes!"
MEBIBYTE = 1024 * 1024
OPTIONS = [("grpc.max_receive_message_length", 16 * MEBIBYTE), ("grpc.max_send_message_length", 16 * MEBIBYTE)]
SUCCEEDED = execution_pb2.Call.SUCCEEDED
CONTINUE = execution_pb2.CallToolRequest.CONTINUE
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "id": {}}}
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class House:
    """One registry service with all its parts, and a client that is an account or the admin."""

    def __init__(self, database: Any, endpoint: ScriptedEndpoint, secrets_dir: Any) -> None:
        self.database = database
        self.endpoint = endpoint
        plans = load_plans(None)
        self.catalog = Catalog(database, plans, PEPPER)
        ledger = Ledger(database)
        self.ledger: Ledger | None = ledger
        self.checks = Checks()
        self.endpoints = EndpointClient([ip_network("127.0.0.0/8")], secrets_dir, 8 * MEBIBYTE, self.checks)
        admissions = Admissions(catalog=self.catalog, ledger=ledger, upstream=self.endpoints, checks=self.checks)
        self.calls = Calls(
            admissions=admissions, ledger=ledger, upstream=self.endpoints, default_timeout=20, max_timeout=30
        )
        self.execution = ExecutionServicer(calls=self.calls, catalog=self.catalog, database=database)
        self.server = grpc.aio.server(options=OPTIONS)
        guarded = cast(grpc.aio.Server, GuardedServer(self.server, gate := Gate("starting"), Tokens(ADMIN, SERVICE)))
        execution_pb2_grpc.add_ExecutionServicer_to_server(self.execution, guarded)
        registry = RegistryServicer(database, self.catalog, PageTokens(PEPPER), Reach((), None), Site(30.0, None))
        registry_pb2_grpc.add_RegistryServicer_to_server(registry, guarded)
        accounts = AccountsServicer(
            database=database, catalog=self.catalog, plans=plans, pages=PageTokens(PEPPER), pepper=PEPPER
        )
        accounts_pb2_grpc.add_AccountsServicer_to_server(accounts, guarded)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        gate.open()

    async def open(self) -> None:
        await self.catalog.load()
        await self.endpoints.open()
        assert self.ledger is not None
        await self.ledger.start()
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=OPTIONS)
        self.stub = execution_pb2_grpc.ExecutionStub(self.channel)
        self.registry = registry_pb2_grpc.RegistryStub(self.channel)
        self.accounts = accounts_pb2_grpc.AccountsStub(self.channel)
        made = await self.new_account()
        self.client_id, self.credential = made.account.client_id, f"{made.account.client_id}:{made.secret}"

    async def close(self) -> None:
        await self.channel.close()
        await self.calls.drain(0)
        await self.server.stop(0)
        await self.close_ledger()
        await self.endpoints.close()
        await self.checks.close()

    async def close_ledger(self) -> None:
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            await ledger.close()

    async def new_account(self, plan="standard"):
        request = accounts_pb2.CreateAccountRequest(display_name="시험", plan=plan)
        return await self.accounts.CreateAccount(request, metadata=AS_ADMIN)

    async def tool(self, path, *, name="tool", version="1.0.0", idempotent=False, **changes):
        """Registers and activates a tool whose endpoint of production is a path of the scripted one."""
        url = path if path.startswith("http") else self.endpoint.url(path)
        settings = {key: changes.pop(key) for key in ("method", "headers", "result") if key in changes}
        whole: dict[str, Any] = {
            "inputSchema": SCHEMA,
            "endpoint": {"production": {"url": url, **settings}},
            "annotations": {"idempotentHint": True} if idempotent else None,
            **changes,
        }
        request = registry_pb2.CreateToolVersionRequest(tool=name, version=version, definition=raw(definition(**whole)))
        await self.registry.CreateToolVersion(request, metadata=AS_ADMIN)
        activate = registry_pb2.ActivateToolVersionRequest(tool=name, version=version)
        await self.registry.ActivateToolVersion(activate, metadata=AS_ADMIN)

    async def tried(self, version, **fields):
        """Calls a version as the admin, for the account, and returns which ran."""
        accepted, _ = await self.events(version=version, stream=True, more=AS_ADMIN, **fields)
        return accepted.accepted.version

    def start(self, arguments=b"", *, credential=None, seconds=LIMIT_SECONDS, name="tool", more=(), **fields):
        """Begins an RPC and returns it."""
        basic = base64.b64encode((credential or self.credential).encode()).decode()
        metadata = (
            ("x-naru-token", SERVICE),
            ("authorization", f"Basic {basic}"),
            ("x-request-id", "r-1"),
            ("traceparent", TRACE),
            ("tracestate", "v=1"),
            *more,
        )
        request = execution_pb2.CallToolRequest(name=name, arguments=arguments, **fields)
        return self.stub.CallTool(request, metadata=metadata, timeout=seconds)

    async def events(self, *arguments, **fields):
        return [event async for event in self.start(*arguments, **fields)]

    async def call(self, *arguments, **fields):
        (event,) = await self.events(*arguments, **fields)
        return event.result

    async def get(self, call_id, metadata=AS_ADMIN):
        return await self.stub.GetCall(execution_pb2.GetCallRequest(call_id=call_id), metadata=metadata)

    async def rows(self):
        async with self.database.sessions() as session:
            return list(await session.scalars(select(Call).order_by(Call.call_id)))

    async def row(self):
        (row,) = await self.rows()
        return row

    async def settled(self, state):
        """Waits until the one call has this state."""
        await self.all_settled(state, 1)
        return await self.row()

    async def all_settled(self, state, calls):
        async with asyncio.timeout(5):
            while True:
                if [row.state for row in await self.rows()] == [state] * calls:
                    return
                await asyncio.sleep(0.01)

    async def usage(self):
        async with self.database.sessions() as session:
            return (await session.scalar(select(func.coalesce(func.sum(Usage.calls), 0)))) // 2


@asynccontextmanager
async def opened(database, secrets_dir):
    async with ScriptedEndpoint() as endpoint:
        house = House(database, endpoint, secrets_dir)
        await house.open()
        try:
            yield house
        finally:
            await house.close()


@pytest.fixture
def database_url(request):
    """SQLite, where the test does not ask for both."""
    return request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")


BOTH_DATABASES = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
async def house(database, tmp_path):
    async with opened(database, tmp_path) as opened_house:
        yield opened_house
        # Whatever a test did, nothing is left running.
        assert CALLS_RUNNING._value.get() == 0


async def failing(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    trailers = dict(caught.value.trailing_metadata() or ())
    if "grpc-status-details-bin" not in trailers:
        return SimpleNamespace(reason=caught.value.code().name, facts={})
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    facts = {name: json.loads(value) for name, value in info.metadata.items()}
    return SimpleNamespace(reason=info.reason, facts=facts, code=caught.value.code())


def failure_facts(result):
    return {name: json.loads(value) for name, value in result.failure.facts.items()}


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

    async def test_many_calls_at_once_each_get_their_own(self, house):
        await house.tool("/echo")
        results = await asyncio.gather(*(house.call(b'{"n":%d}' % n) for n in range(50)))
        assert [json.loads(result.structured_content)["n"] for result in results] == list(range(50))
        assert len({result.call_id for result in results}) == 50
        assert {row.state for row in await house.rows()} == {execution_pb2.Call.SUCCEEDED}
        assert await house.usage() == 50


class TestAdmission:
    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"credential": "nrci_nobody:wrong"}, "UNAUTHENTICATED"),
            ({"requested_lane": "moon"}, "LANE_INVALID"),
            ({"requested_lane": "real_test"}, "LANE_NOT_CONFIGURED"),
            ({"name": "other"}, "TOOL_NOT_FOUND"),
            ({"arguments": b'{"n":"x"}'}, "ARGUMENTS_INVALID"),
            ({"arguments": b"[]"}, "ARGUMENTS_INVALID"),
            ({"arguments": b"{oops"}, "ARGUMENTS_INVALID"),
            ({"arguments": b'{"n":' + b"[" * 100_000}, "ARGUMENTS_INVALID"),
            ({"client_capabilities": b'{"elicitation":{}}'}, "MISSING_CLIENT_CAPABILITY"),
        ],
        ids=lambda value: str(value)[:40],
    )
    async def test_what_may_not_run_is_neither_run_nor_recorded(self, house, fields, reason):
        await house.tool("/echo", requiredClientCapabilities={"elicitation": {"url": {}}})
        failure = await failing(house.call(**fields))
        assert failure.reason == reason
        assert "call_id" not in failure.facts
        assert (await house.rows(), await house.usage(), house.endpoint.executions) == ([], 0, 0)

    async def test_violations_are_told_by_pointer(self, house):
        await house.tool("/echo/{id}", inputSchema={**SCHEMA, "required": ["id"]})
        facts = (await failing(house.call(b'{"n":"x","id":"a"}'))).facts
        assert [violation["pointer"] for violation in facts["violations"]] == ["/n"]
        facts = (await failing(house.call(b'{"id":".."}'))).facts
        assert [violation["pointer"] for violation in facts["violations"]] == ["/id"]
        assert facts["tool"] == "tool"

    async def test_capabilities_are_demanded_at_any_depth_of_clients_that_declare_them(self, house):
        await house.tool("/echo", requiredClientCapabilities={"elicitation": {"url": {}}})
        await house.call(client_capabilities=b"")
        await house.call(client_capabilities=b'{"elicitation":{"url":{},"form":{}},"more":1}')
        facts = (await failing(house.call(client_capabilities=b"{}"))).facts
        assert facts == {"required_capabilities": {"elicitation": {"url": {}}}}

    async def test_lanes_have_their_own_endpoints(self, house):
        lanes = {lane: {"url": house.endpoint.url(f"/target/{lane}")} for lane in ("production", "real_test")}
        await house.tool("/", endpoint=lanes)
        made = await house.new_account("lite")
        await house.call()
        await house.call(credential=f"{made.account.client_id}:{made.secret}")
        await house.call(requested_lane="real_test")
        seen = [(request.path, request.header("X-Naru-Lane")) for request in house.endpoint.received]
        assert [path for path, _ in seen] == ["/target/production", "/target/real_test", "/target/real_test"]
        assert all(path.endswith(lane) for path, lane in seen)

    async def test_two_active_versions_run_neither(self, house):
        await house.tool("/echo", version="1.0.0")
        await house.tool("/echo", version="2.0.0")
        request = registry_pb2.ActivateToolVersionRequest(tool="tool", version="1.0.0", keep_others_active=True)
        await house.registry.ActivateToolVersion(request, metadata=AS_ADMIN)
        failure = await failing(house.call())
        assert (failure.reason, failure.facts["active_versions"]) == ("TOOL_VERSION_AMBIGUOUS", ["1.0.0", "2.0.0"])
        assert house.endpoint.executions == 0
        activate = registry_pb2.ActivateToolVersionRequest(tool="tool", version="2.0.0")
        await house.registry.ActivateToolVersion(activate, metadata=AS_ADMIN)
        await house.call()
        assert house.endpoint.received[0].header("X-Naru-Version") == "2.0.0"

    @BOTH_DATABASES
    async def test_the_admin_tries_a_version_before_anybody_gets_it(self, house):
        await house.tool("/echo", version="2.0.0rc1")
        await house.tool("/echo")
        assert await house.tried("2.0.0rc1") == "2.0.0rc1"
        assert await house.tried("v2.0-rc.1") == "2.0.0rc1"
        assert await house.tried("1.0") == "1.0.0"
        await house.call()
        versions = ["2.0.0rc1", "2.0.0rc1", "1.0.0", "1.0.0"]
        assert [request.header("X-Naru-Version") for request in house.endpoint.received] == versions
        assert [row.version for row in await house.rows()] == versions
        assert await house.usage() == 4

    @pytest.mark.parametrize("version", ["2.0.0", "1.0.1", "1.0.0.dev1", "nonsense", "1" * 5000, "1.0.0'; --"])
    async def test_a_version_that_is_not_there_cannot_be_tried(self, house, version):
        await house.tool("/echo")
        await house.tool("/echo", version="2.0.0", name="another")
        failure = await failing(house.tried(version))
        assert failure.reason == "TOOL_VERSION_NOT_FOUND"
        assert failure.facts == {"tool": "tool", "version": version[:64]}
        assert (await house.rows(), house.endpoint.executions) == ([], 0)

    async def test_a_version_is_tried_by_the_admin_only_and_for_an_account(self, house):
        await house.tool("/echo")
        assert (await failing(house.call(version="1.0.0"))).reason == "TOKEN_INVALID"
        assert (await failing(house.tried("1.0.0", credential="nrci_x:nrcs_x"))).reason == "UNAUTHENTICATED"
        request = execution_pb2.CallToolRequest(name="tool", version="1.0.0")
        assert (await failing(house.stub.CallTool(request, metadata=AS_ADMIN).read())).reason == "UNAUTHENTICATED"
        assert (await house.rows(), house.endpoint.executions) == ([], 0)

    async def test_a_trial_obeys_what_the_version_says(self, house):
        await house.tool("/echo", version="2.0.0", access={"plans": ["pro"]})
        await house.tool("/echo", version="3.0.0", inputSchema={"type": "object", "required": ["b"]})
        await house.tool("/gate", version="4.0.0", maxConcurrency=1)
        await house.tool("/echo")
        assert (await failing(house.tried("2.0.0"))).reason == "PERMISSION_DENIED"
        assert (await failing(house.tried("3.0.0"))).reason == "ARGUMENTS_INVALID"
        assert (await failing(house.tried("3.0.0", requested_lane="real_test"))).reason == "LANE_NOT_CONFIGURED"
        running = asyncio.ensure_future(house.tried("4.0.0"))
        await house.endpoint.arrived()
        assert (await failing(house.tried("4.0.0"))).reason == "TOOL_BUSY"
        house.endpoint.gate.set()
        assert await running == "4.0.0"

    async def test_a_secret_that_is_not_there_costs_nothing(self, house):
        await house.tool("/echo", headers={"X-Api-Key": "${secret:key}"})
        failure = await failing(house.call())
        assert failure.reason == "TOOL_UNREACHABLE"
        assert failure.facts == {
            "tool": "tool",
            "detail": "secret not available",
            "secret": "key",
            "safe_to_retry": False,
        }
        assert (await house.rows(), house.endpoint.executions) == ([], 0)

    @BOTH_DATABASES
    async def test_a_tool_takes_as_many_calls_as_it_says(self, house):
        await house.tool("/gate", maxConcurrency=2)
        running = [asyncio.ensure_future(house.call()) for _ in range(2)]
        for _ in running:
            await house.endpoint.arrived()
        failure = await failing(house.call())
        assert failure.reason == "TOOL_BUSY"
        assert failure.facts == {"tool": "tool", "max_concurrency": 2, "safe_to_retry": True}
        house.endpoint.gate.set()
        await asyncio.gather(*running)
        await house.call()
        assert (len(await house.rows()), await house.usage()) == (3, 3)

    async def test_a_call_that_was_refused_frees_its_place(self, house):
        await house.tool("/commit-then-drop", maxConcurrency=1)
        for _ in range(3):
            assert (await failing(house.call())).reason == "TOOL_UNREACHABLE"

    @BOTH_DATABASES
    async def test_a_change_by_another_replica_is_seen_before_a_call_is_admitted_or_refused(self, house):
        """The view of this process is stale each time; nothing tells it."""
        await house.tool("/echo")
        fresh, house.catalog.view = house.catalog.view, house.catalog.view
        made = await house.new_account()
        await house.tool("/echo", name="young")
        house.catalog.view = fresh
        await house.call(name="young", credential=f"{made.account.client_id}:{made.secret}")
        newest = house.catalog.view
        deactivate = registry_pb2.DeactivateToolVersionRequest(tool="tool", version="1.0.0")
        await house.registry.DeactivateToolVersion(deactivate, metadata=AS_ADMIN)
        house.catalog.view = newest
        assert (await failing(house.call())).reason == "TOOL_NOT_ACTIVE"
        assert [row.tool for row in await house.rows()] == ["young"]

    @BOTH_DATABASES
    async def test_a_catalog_that_never_rests_ends_in_an_error(self, house, monkeypatch):
        await house.tool("/echo")
        view = house.catalog.view

        async def stale():
            return view

        monkeypatch.setattr(house.catalog, "fresh", stale)
        async with house.database.change() as session:
            session.info["unchanged"] = True
            await session.execute(update(CatalogRevision).values(revision=CatalogRevision.revision + 1))
        failure = await failing(house.call())
        assert (failure.reason, failure.code) == ("SERVICE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE)
        assert house.endpoint.executions == 0


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
