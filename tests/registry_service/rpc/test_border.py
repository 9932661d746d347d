"""The border of every RPC, over a real socket. The servicers behind it are the test's own."""

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from naru import logs
from naru.v1 import accounts_pb2, accounts_pb2_grpc, execution_pb2, execution_pb2_grpc, registry_pb2
from registry_service import errors
from registry_service.identity.caller import CALLER
from registry_service.identity.credentials import Credential
from registry_service.rpc.border import Gate, GuardedServer
from registry_service.rpc.tokens import Policy, Tokens, policy_of
from registry_service.storage.database import DatabaseUnreachableError
from registry_service.telemetry.metrics import METRICS

ADMIN, SERVICE = "admin-token-of-the-tests", "service-token-of-the-tests"
AS_ADMIN = (("x-naru-admin-token", ADMIN),)
AS_GATEWAY = (("x-naru-token", SERVICE),)
BASIC = ("authorization", "Basic aWQ6c2VjcmV0")


class Accounts(accounts_pb2_grpc.AccountsServicer):
    """Does what `script` says, and notes who called."""

    def __init__(self):
        self.script = None
        self.caller = None

    async def Authenticate(self, request, context):
        self.caller = CALLER.get()
        await self._run()
        return accounts_pb2.AuthenticateResponse(client_id="id")

    async def GetUsage(self, request, context):
        self.caller = CALLER.get()
        return accounts_pb2.GetUsageResponse()

    async def GetAccount(self, request, context):
        self.caller = CALLER.get()
        await self._run()
        return accounts_pb2.Account(client_id=request.client_id)

    async def _run(self):
        if self.script is not None:
            await self.script()


class Execution(execution_pb2_grpc.ExecutionServicer):
    """Streams until told to stop, or fails."""

    def __init__(self):
        self.failure = None
        self.ended = asyncio.Event()

    async def CallTool(self, request, context):
        try:
            for number in range(3):
                yield execution_pb2.CallToolEvent(progress=execution_pb2.CallToolEvent.Progress(progress=number))
            if self.failure:
                raise self.failure
            if request.stream:
                await asyncio.Event().wait()
            yield execution_pb2.CallToolEvent(result=execution_pb2.CallToolEvent.Result(call_id=request.name))
        finally:
            self.ended.set()


class WritingExecution(execution_pb2_grpc.ExecutionServicer):
    """The same by the other interface of grpc.aio: a coroutine that writes."""

    failure = None

    async def CallTool(self, request, context):  # type: ignore[override]  # the stubs know generators only
        await context.write(execution_pb2.CallToolEvent(progress=execution_pb2.CallToolEvent.Progress(progress=1)))
        if self.failure:
            raise self.failure


@asynccontextmanager
async def serving(execution=None, service_token=SERVICE):
    gate, server = Gate("starting"), grpc.aio.server()
    guarded = cast(grpc.aio.Server, GuardedServer(server, gate, Tokens(ADMIN, service_token)))
    accounts = cast(Any, Accounts)()
    execution = execution or cast(Any, Execution)()
    accounts_pb2_grpc.add_AccountsServicer_to_server(accounts, guarded)
    execution_pb2_grpc.add_ExecutionServicer_to_server(execution, guarded)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), guarded)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gate.open()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield SimpleNamespace(
                gate=gate,
                accounts=accounts,
                execution=execution,
                channel=channel,
                account_stub=accounts_pb2_grpc.AccountsStub(channel),
                execution_stub=execution_pb2_grpc.ExecutionStub(channel),
            )
    finally:
        await server.stop(0)


async def drained(call):
    return [event async for event in call]


async def failing(call):
    """Returns the code, the reason, the facts and the message of an RPC that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (drained(call) if hasattr(call, "__aiter__") else call)
    trailers = dict(caught.value.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    (packed,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert packed.Unpack(info)
    assert info.domain == "naru"
    assert status.code == caught.value.code().value[0]
    assert status.message == caught.value.details()
    facts = {name: json.loads(value) for name, value in info.metadata.items()}
    return SimpleNamespace(
        code=caught.value.code().name, reason=info.reason, facts=facts, message=caught.value.details()
    )


def authenticate(served, metadata=(*AS_GATEWAY, BASIC)):
    return served.account_stub.Authenticate(accounts_pb2.AuthenticateRequest(), metadata=metadata, timeout=10)


def get_account(served, metadata=AS_ADMIN):
    return served.account_stub.GetAccount(
        accounts_pb2.GetAccountRequest(client_id="nrci_x"), metadata=metadata, timeout=10
    )


def call_tool(served, **fields):
    return served.execution_stub.CallTool(
        execution_pb2.CallToolRequest(name="echo", **fields), metadata=AS_GATEWAY, timeout=10
    )


def test_the_policy_of_every_method_is_meant():
    """A method added to the contract falls to the admin alone until this list and the table say otherwise."""
    others = {
        "/naru.v1.Registry/ListCatalog": Policy.ACCOUNT,
        "/naru.v1.Accounts/Authenticate": Policy.ACCOUNT,
        "/naru.v1.Accounts/GetUsage": Policy.EITHER,
        "/naru.v1.Execution/CallTool": Policy.ACCOUNT,
        "/naru.v1.Execution/GetCall": Policy.EITHER,
    }
    for module in (registry_pb2, accounts_pb2, execution_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                name = f"/{service.full_name}/{method.name}"
                assert policy_of(name) is others.pop(name, Policy.ADMIN)
    assert not others
    assert policy_of("/grpc.health.v1.Health/Check") is Policy.OPEN
    assert policy_of("/grpc.health.v1.Health/Watch") is Policy.OPEN
    assert policy_of("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") is Policy.TOKEN
    assert policy_of("/some.other.Service/Method") is Policy.ADMIN
    assert descriptor_pool.Default().FindServiceByName("naru.v1.Registry")


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        AS_GATEWAY,
        (("x-naru-admin-token", f"{ADMIN}x"),),
        (("x-naru-admin-token", SERVICE),),
        (("authorization", f"Basic {ADMIN}"),),
        (("authorization", f"Bearer {ADMIN}"),),
        (("x-naru-admin-token", ""),),
        (("x-naru-token", ADMIN),),
    ],
)
async def test_admin_methods_need_the_admin_token(metadata):
    async with serving() as served:
        failure = await failing(get_account(served, metadata))
        assert (failure.code, failure.reason) == ("PERMISSION_DENIED", "TOKEN_INVALID")
        assert ADMIN not in failure.message
        assert served.accounts.caller is None


async def test_the_admin_is_let_in():
    async with serving() as served:
        answer = await get_account(served, (*AS_ADMIN, ("x-request-id", "r-1")))
        assert answer.client_id == "nrci_x"
        assert served.accounts.caller.admin is True
        assert served.accounts.caller.credential is None
        assert served.accounts.caller.request_id == "r-1"


@pytest.mark.parametrize("token", [(), (("x-naru-token", "wrong-token-of-the-tests"),), (("x-naru-token", ADMIN),)])
async def test_the_service_token_guards_the_port(token):
    async with serving() as served:
        failure = await failing(authenticate(served, (*token, BASIC)))
        assert (failure.code, failure.reason) == ("PERMISSION_DENIED", "TOKEN_INVALID")
        assert SERVICE not in failure.message
        assert served.accounts.caller is None


async def test_the_caller_is_what_the_metadata_says():
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with serving() as served:
        await authenticate(
            served,
            (*AS_GATEWAY, BASIC, ("x-request-id", "r-1"), ("traceparent", traceparent), ("tracestate", "a=b")),
        )
        assert served.accounts.caller == (False, Credential("id", "secret"), "r-1", traceparent, "a=b")
        await authenticate(served, AS_GATEWAY)
        assert served.accounts.caller == (False, None, "", "", "")


@pytest.mark.parametrize("value", ["Basic !", "Bearer aWQ6c2VjcmV0", "aWQ6c2VjcmV0"])
async def test_a_credential_that_cannot_be_read(value):
    async with serving() as served:
        failure = await failing(authenticate(served, (*AS_GATEWAY, ("authorization", value))))
        assert (failure.code, failure.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


async def test_either_an_account_or_the_admin():
    async with serving() as served:
        request = accounts_pb2.GetUsageRequest()
        await served.account_stub.GetUsage(request, metadata=AS_ADMIN, timeout=10)
        assert served.accounts.caller.admin is True
        await served.account_stub.GetUsage(request, metadata=(*AS_GATEWAY, BASIC), timeout=10)
        assert served.accounts.caller[:2] == (False, Credential("id", "secret"))
        failure = await failing(served.account_stub.GetUsage(request, metadata=(BASIC,), timeout=10))
        assert failure.reason == "TOKEN_INVALID"


async def test_without_a_service_token_tls_alone_guards_the_port():
    async with serving(service_token=None) as served:
        await authenticate(served, (BASIC,))
        assert served.accounts.caller.credential == Credential("id", "secret")
        assert (await failing(get_account(served, ()))).reason == "TOKEN_INVALID"


async def test_a_failure_keeps_its_name_and_facts():
    async with serving() as served:

        async def script():
            raise errors.ArgumentsInvalidError(
                "잘못된 인자",
                tool="echo",
                count=2**60,
                ratio=0.5,
                none=None,
                violations=[{"pointer": "/가", "ok": False}],
            )

        served.accounts.script = script
        failure = await failing(authenticate(served))
        assert (failure.code, failure.reason, failure.message) == (
            "INVALID_ARGUMENT",
            "ARGUMENTS_INVALID",
            "잘못된 인자",
        )
        assert failure.facts == {
            "tool": "echo",
            "count": 2**60,
            "ratio": 0.5,
            "none": None,
            "violations": [{"pointer": "/가", "ok": False}],
        }


async def test_facts_that_would_overflow_the_trailers_are_dropped_largest_first():
    async with serving() as served:

        async def script():
            raise errors.DefinitionInvalidError("많음" * 2000, tool="echo", faults=["가" * 3000], notes="n" * 4000)

        served.accounts.script = script
        failure = await failing(authenticate(served))
        assert failure.facts == {"tool": "echo", "notes": "n" * 4000}
        assert len(failure.message) == 300


async def test_something_unforeseen_tells_a_trace_id_and_nothing_else(capfd):
    lines = logs.configure("registry", "info")
    lines.drain()
    capfd.readouterr()  # what earlier tests have left
    async with serving() as served:

        async def script():
            raise LookupError("private words")

        served.accounts.script = script
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        traced = ("traceparent", f"00-{trace_id}-b7ad6b7169203331-01")
        failure = await failing(authenticate(served, (*AS_GATEWAY, BASIC, traced)))
        assert (failure.code, failure.reason) == ("INTERNAL", "INTERNAL")
        assert failure.facts == {"trace_id": trace_id}
        assert "private" not in failure.message
        untraced = await failing(authenticate(served))
        assert len(untraced.facts["trace_id"]) == 32
    lines.drain()
    logged = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [record["trace_id"] for record in logged] == [trace_id, untraced.facts["trace_id"]]
    assert "LookupError: private words" in logged[0]["exception"]


async def test_a_database_out_of_reach_is_safe_to_retry():
    async with serving() as served:

        async def script():
            raise DatabaseUnreachableError("somewhere private")

        served.accounts.script = script
        failure = await failing(authenticate(served))
        assert (failure.code, failure.reason) == ("UNAVAILABLE", "SERVICE_UNAVAILABLE")
        assert failure.facts == {"cause": "database_unreachable"}


async def test_a_shut_gate_says_why_but_only_to_those_who_may_call():
    async with serving() as served:
        served.gate.shut("database_not_migrated")
        failure = await failing(authenticate(served))
        assert (failure.code, failure.reason) == ("UNAVAILABLE", "SERVICE_UNAVAILABLE")
        assert failure.facts == {"cause": "database_not_migrated"}
        assert (await failing(authenticate(served, (BASIC,)))).reason == "TOKEN_INVALID"
        assert (await failing(call_tool(served))).reason == "SERVICE_UNAVAILABLE"
        served.gate.open()
        await authenticate(served)


@pytest.mark.parametrize("execution", [Execution, WritingExecution])
async def test_a_stream_arrives_and_may_end_in_a_failure(execution):
    async with serving(execution()) as served:
        events = [event.WhichOneof("event") async for event in call_tool(served)]
        assert events[0] == "progress"
        served.execution.failure = errors.ToolTimedOutError(tool="echo", limit="tool")
        failure = await failing(call_tool(served))
        assert (failure.code, failure.reason) == ("DEADLINE_EXCEEDED", "TOOL_TIMED_OUT")
        assert failure.facts == {"tool": "echo", "limit": "tool"}


async def test_a_cancelled_stream_ends_its_generator():
    async with serving() as served:
        call = call_tool(served, stream=True)
        await call.read()
        assert not served.execution.ended.is_set()
        call.cancel()
        async with asyncio.timeout(10):
            await served.execution.ended.wait()


async def test_rpcs_are_counted_by_method_and_code():
    def count(code):
        labels = {"method": "/naru.v1.Accounts/Authenticate", "code": code}
        return METRICS.get_sample_value("naru_grpc_requests_total", labels) or 0

    before = count("OK"), count("PERMISSION_DENIED")
    async with serving() as served:
        await authenticate(served)
        await failing(authenticate(served, ()))
    assert (count("OK"), count("PERMISSION_DENIED")) == (before[0] + 1, before[1] + 1)


async def test_an_rpc_that_a_servicer_aborts_keeps_its_status():
    """As the health servicer does for a service that it does not know."""
    labels = {"method": "/grpc.health.v1.Health/Check", "code": "NOT_FOUND"}
    before = METRICS.get_sample_value("naru_grpc_requests_total", labels) or 0
    async with serving() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(served.channel).Check(
                health_pb2.HealthCheckRequest(service="unknown"), timeout=10
            )
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert METRICS.get_sample_value("naru_grpc_requests_total", labels) == before + 1


async def test_a_watcher_that_leaves_is_let_go_and_one_that_stays_is_told_of_the_end():
    async with serving() as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        leaving = stub.Watch(health_pb2.HealthCheckRequest(), timeout=10)
        await leaving.read()
        (handler,) = served.gate.endless
        staying = stub.Watch(health_pb2.HealthCheckRequest(), timeout=10)
        await staying.read()
        leaving.cancel()
        await asyncio.wait({handler}, timeout=10)
        assert handler.cancelled()
        served.gate.end_streams()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await staying.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not served.gate.endless


async def test_admin_rpcs_are_recorded_without_secrets(capfd):
    lines = logs.configure("registry", "info")
    lines.drain()
    capfd.readouterr()  # what earlier tests have left
    async with serving() as served:
        await get_account(served, (*AS_ADMIN, ("x-request-id", "r-1")))
        await failing(get_account(served, ()))
        await authenticate(served)
    lines.drain()
    out = capfd.readouterr().out
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["event"] == "rpc"
    assert first["method"] == "/naru.v1.Accounts/GetAccount"
    assert (first["code"], first["client_id"], first["request_id"]) == ("OK", "nrci_x", "r-1")
    assert first["token"] == "admin"
    assert first["peer"].startswith("ipv4:127.0.0.1:")
    assert first["duration_ms"] >= 0
    assert (second["code"], second["reason"]) == ("PERMISSION_DENIED", "TOKEN_INVALID")
    assert second["token"] == "refused"
    assert ADMIN not in out


async def test_a_client_that_names_methods_by_hand_is_served_too():
    """As grpcurl does: without generated stubs, which tell the core their methods beforehand."""
    async with serving() as served:
        by_hand = served.channel.unary_unary(
            "/naru.v1.Accounts/Authenticate",
            request_serializer=accounts_pb2.AuthenticateRequest.SerializeToString,
            response_deserializer=accounts_pb2.AuthenticateResponse.FromString,
        )
        answer = await by_hand(accounts_pb2.AuthenticateRequest(), metadata=AS_GATEWAY, timeout=10)
        assert answer.client_id == "id"
        unknown = served.channel.unary_unary("/naru.v1.Accounts/Unknown")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unknown(b"", metadata=AS_ADMIN, timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
