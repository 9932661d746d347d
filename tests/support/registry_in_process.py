"""A registry service with all its parts in the test's own process, and a client that is an account or the admin."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from sqlalchemy import func, select

from naru.v1 import (
    accounts_pb2,
    accounts_pb2_grpc,
    execution_pb2,
    execution_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from registry_service.accounts import AccountsServicer
from registry_service.calls.admission import Admissions
from registry_service.calls.runner import Calls
from registry_service.catalog import Catalog
from registry_service.execution import ExecutionServicer
from registry_service.identity.plans import load_plans
from registry_service.ledger.ledger import Ledger
from registry_service.ledger.records import Records
from registry_service.registry import RegistryServicer
from registry_service.rpc.border import Gate, GuardedServer
from registry_service.rpc.pagination import PageTokens
from registry_service.rpc.tokens import Tokens
from registry_service.storage.models import Call, Usage
from registry_service.tools.checks import Checks
from registry_service.tools.definition_lint import Site
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.reach import Reach
from tests.support.samples import definition, raw
from tests.support.scripted_endpoint import LIMIT_SECONDS, ScriptedEndpoint

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
        self.execution = ExecutionServicer(
            calls=self.calls, catalog=self.catalog, records=Records(database), pages=PageTokens(PEPPER)
        )
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


BOTH_DATABASES = pytest.mark.parametrize("house", ["sqlite", "postgresql"], indirect=True)
