"""The other side of the contract, scripted, for tests of the gateway alone."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from naru.v1 import (
    accounts_pb2,
    accounts_pb2_grpc,
    execution_pb2,
    execution_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    wire,
)

TOKEN = "the-service-token"
CREDENTIAL = "Basic aWQ6c2VjcmV0"  # id:secret
SERVICES = ("naru.v1.Accounts", "naru.v1.Registry", "naru.v1.Execution")

Event = execution_pb2.CallToolEvent
Run = Callable[[execution_pb2.CallToolRequest, Any], AsyncIterator[Event]]


async def fail(context: Any, code: grpc.StatusCode, reason: str, **facts: Any) -> None:
    """Ends an RPC as the registry service does."""
    status = wire.pack_status(code.value[0], reason, reason, facts)
    context.set_trailing_metadata(((wire.STATUS_KEY, status),))
    await context.abort(code, reason)


def text_result(text: str, **more: Any) -> Event:
    content = json.dumps([{"type": "text", "text": text}], ensure_ascii=False).encode()
    return Event(result=Event.Result(call_id="call-1", content=content, **more))


async def _echo(request: execution_pb2.CallToolRequest, _context: Any) -> AsyncIterator[Event]:
    if request.stream:
        yield Event(accepted=Event.Accepted(call_id="call-1", tool=request.name, version="1.0.0", lane="production"))
    yield text_result(request.arguments.decode())


@dataclass
class Script:
    """Holds what the registry service answers, and what it was asked."""

    run: Run = _echo
    pages: dict[str, registry_pb2.ListCatalogResponse] = field(default_factory=dict)
    refuse: tuple[grpc.StatusCode, str] | None = None  # Authenticate and ListCatalog fail so
    refuse_token: bool = False
    calls: list[execution_pb2.CallToolRequest] = field(default_factory=list)
    listings: list[registry_pb2.ListCatalogRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    time_remaining: float = 0.0

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]

    def note(self, context: Any) -> None:
        self.metadata.append({key: value for key, value in context.invocation_metadata() if isinstance(value, str)})
        self.time_remaining = context.time_remaining()


class _Accounts(accounts_pb2_grpc.AccountsServicer):
    def __init__(self, script: Script) -> None:
        self.script = script

    async def Authenticate(self, request: Any, context: Any) -> Any:
        self.script.note(context)
        if self.script.refuse_token:
            await fail(context, grpc.StatusCode.PERMISSION_DENIED, "TOKEN_INVALID")
        if self.script.refuse is not None:
            await fail(context, *self.script.refuse)
        return accounts_pb2.AuthenticateResponse(client_id="id", plan="standard")


class _Registry(registry_pb2_grpc.RegistryServicer):
    def __init__(self, script: Script) -> None:
        self.script = script

    async def ListCatalog(self, request: Any, context: Any) -> Any:
        self.script.note(context)
        self.script.listings.append(request)
        if self.script.refuse is not None:
            await fail(context, *self.script.refuse)
        page = self.script.pages.get(request.page_token)
        if page is None:
            await fail(context, grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")
        return page


class _Execution(execution_pb2_grpc.ExecutionServicer):
    def __init__(self, script: Script) -> None:
        self.script = script

    async def GetCall(self, request: Any, context: Any) -> Any:
        reason = "TOKEN_INVALID" if self.script.refuse_token else "UNAUTHENTICATED"
        await fail(context, grpc.StatusCode.PERMISSION_DENIED, reason)

    async def CallTool(self, request: Any, context: Any) -> AsyncIterator[Event]:
        self.script.note(context)
        self.script.calls.append(request)
        try:
            async for event in self.script.run(request, context):
                yield event
        except asyncio.CancelledError:
            self.script.cancelled.set()
            raise


@asynccontextmanager
async def registry_server(
    script: Script, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> AsyncGenerator[tuple[int, Callable[[bool], Awaitable[None]]]]:
    """Serves the script; yields the port, and a switch for its health."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    # What the gateway never asks for answers UNIMPLEMENTED.
    accounts_pb2_grpc.add_AccountsServicer_to_server(_Accounts(script), server)  # type: ignore[abstract]
    registry_pb2_grpc.add_RegistryServicer_to_server(_Registry(script), server)  # type: ignore[abstract]
    execution_pb2_grpc.add_ExecutionServicer_to_server(_Execution(script), server)  # type: ignore[abstract]
    states = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(states, server)

    async def serving(on: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if on else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in SERVICES:
            await states.set(service, status)

    await serving(True)
    address = f"127.0.0.1:{port}"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield port, serving
    finally:
        await server.stop(None)
