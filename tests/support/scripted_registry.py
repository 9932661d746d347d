"""The other side of the contract, scripted; the gateway as a real process; and HTTP as bare as a test needs it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from naru.v1 import (
    accounts_pb2,
    accounts_pb2_grpc,
    execution_pb2,
    execution_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)

TOKEN = "the-service-token"
CREDENTIAL = "Basic aWQ6c2VjcmV0"  # id:secret
SERVICES = ("naru.v1.Accounts", "naru.v1.Registry", "naru.v1.Execution")

Event = execution_pb2.CallToolEvent
Run = Callable[[execution_pb2.CallToolRequest, Any], AsyncIterator[Event]]


async def fail(context: Any, code: grpc.StatusCode, reason: str, **facts: Any) -> None:
    """Ends an RPC as the registry service does."""
    info = error_details_pb2.ErrorInfo(
        reason=reason, domain="naru", metadata={name: json.dumps(fact) for name, fact in facts.items()}
    )
    packed = any_pb2.Any()
    packed.Pack(info)
    status = status_pb2.Status(code=code.value[0], message=reason, details=[packed])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
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
    """What the registry service answers, and what it was asked."""

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


class GatewayProcess:
    """`python -m gateway`, with what it logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.records: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())
        self.host = ""
        self.port = 0
        self.metrics_port = 0

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._news:
                self.records.append(json.loads(line))
                self._news.notify_all()

    async def record(self, event: str, **fields: Any) -> dict[str, Any]:
        """Waits for a log record with these fields."""

        def found() -> list[dict[str, Any]]:
            wanted = {"event": event, **fields}
            return [record for record in self.records if wanted.items() <= record.items()]

        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(found)
        return found()[-1]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def ended(self, seconds: float = 15) -> int:
        async with asyncio.timeout(seconds):
            status = await self.process.wait()
            await self._reading
        return status


@asynccontextmanager
async def gateway_process(registry_port: int, **environ: str) -> AsyncGenerator[GatewayProcess]:
    """Starts a gateway on ports of its own; stops it at the end if it still runs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    settings = {
        "GATEWAY_BIND": "127.0.0.1:0",
        "GATEWAY_METRICS_BIND": "127.0.0.1:0",
        "GATEWAY_REGISTRY": f"dns:///127.0.0.1:{registry_port}",
        "GATEWAY_REGISTRY_TOKEN": TOKEN,
        "GATEWAY_PUBLIC_URL": "https://gateway.example/mcp",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", env={**inherited, **settings, **environ}, stdout=asyncio.subprocess.PIPE
    )
    gateway = GatewayProcess(process)
    try:
        ready = await gateway.record("gateway ready")
        gateway.host, _, port = ready["address"].rpartition(":")
        gateway.port = int(port)
        gateway.metrics_port = int(ready["metrics"].rpartition(":")[2]) if "metrics" in ready else 0
        yield gateway
    finally:
        if process.returncode is None:
            gateway.signal()
            await gateway.ended()


@dataclass
class Answer:
    """One HTTP response; header names in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def header(self, name: str) -> str | None:
        found = self.all(name)
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def json(self) -> Any:
        assert self.header("content-type") == "application/json"
        return json.loads(self.body)

    @property
    def frames(self) -> list[Any]:
        """The messages of an SSE answer."""
        assert self.header("content-type") == "text/event-stream"
        return [json.loads(line[6:]) for line in self.body.decode().split("\n") if line.startswith("data: ")]


async def send(port: int, head: bytes, *chunks: bytes, host: str = "127.0.0.1") -> Answer:
    """Sends bytes, and reads the answer until the connection closes."""
    reader, writer = await asyncio.open_connection(host.strip("[]"), port)
    try:
        async with asyncio.timeout(20):
            writer.write(head)
            for chunk in chunks:
                writer.write(chunk)
            await writer.drain()
            raw = await reader.read()
    finally:
        writer.close()
    return parse(raw)


def parse(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    if ("transfer-encoding", "chunked") in headers:
        body = _dechunked(body)
    return Answer(int(status.split(" ")[1]), headers, body)


def _dechunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return whole


HeaderValue = str | bytes | list[str | bytes] | None


def head_of(method: str, path: str, headers: dict[str, HeaderValue], length: int | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1".encode()]
    all_headers: dict[str, HeaderValue] = {"Host": "127.0.0.1", "Connection": "close"}
    if method == "POST":
        all_headers |= {"Authorization": CREDENTIAL, "Content-Type": "application/json"}
    if length is not None:
        all_headers["Content-Length"] = str(length)
    for name, value in {**all_headers, **headers}.items():
        values = [line for line in (value if isinstance(value, list) else [value]) if line is not None]
        lines += [name.encode() + b": " + (line if isinstance(line, bytes) else line.encode()) for line in values]
    return b"\r\n".join([*lines, b"", b""])


async def post(gateway: GatewayProcess, body: Any, path: str = "/mcp", method: str = "POST", **headers: Any) -> Answer:
    """Sends one request; bytes as they are, else as JSON. In header names `_` stands for `-`; None leaves one out."""
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send(gateway.port, head_of(method, path, named, len(raw)), raw, host=gateway.host)


def rpc(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return message if params is None else {**message, "params": params}


def tool_call(name: str = "echo", arguments: Any = None, meta: Any = None, id: Any = 1) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": {} if arguments is None else arguments}
    return rpc("tools/call", params if meta is None else {**params, "_meta": meta}, id)


AGENT_BUILDER: dict[str, Any] = {"Accept": "application/json"}
BOTH: dict[str, Any] = {"Accept": "application/json, text/event-stream"}
LEGACY: dict[str, Any] = {**BOTH, "MCP_Protocol_Version": "2025-11-25"}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def modern(message: dict[str, Any], **headers: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dresses a message as a client of 2026-07-28 does; returns it with its headers."""
    params = {**message.get("params", {})}
    params["_meta"] = {**MODERN_META, **params.get("_meta", {})}
    dressed: dict[str, Any] = {
        **BOTH, "MCP_Protocol_Version": "2026-07-28", "Mcp_Method": message["method"]
    }  # fmt: skip
    if message["method"] == "tools/call":
        dressed["Mcp_Name"] = params["name"]
    return {**message, "params": params}, {**dressed, **headers}
