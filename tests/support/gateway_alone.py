"""The gateway alone, as a real process in front of a scripted registry service, and requests to it."""

import asyncio
import json
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ops.stack import Process, Stack
from tests.support.scripted_registry import CREDENTIAL, TOKEN
from tests.support.waiting import eventually
from tests.support.wire import Reply, Wire


class GatewayProcess:
    """A running gateway, with what it logged."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.host, _, port = process.address.rpartition(":")
        self.port = int(port)
        ready = next(record for record in self.records if record["event"] == "gateway ready")
        self.metrics_port = int(ready["metrics"].rpartition(":")[2]) if "metrics" in ready else 0

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.process.records()

    async def record(self, event: str, **fields: Any) -> dict[str, Any]:
        """Waits for a log record with these fields; returns the last."""
        wanted = {"event": event, **fields}

        def found() -> list[dict[str, Any]]:
            return [record for record in self.records if wanted.items() <= record.items()]

        await eventually(found)
        return found()[-1]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.popen.send_signal(number)

    async def ended(self, seconds: float = 15) -> int:
        """Waits for the end of the process; returns its exit code."""
        return await asyncio.to_thread(self.process.wait_exit, seconds)


@asynccontextmanager
async def gateway_process(registry_port: int, **environ: str) -> AsyncGenerator[GatewayProcess]:
    """Starts a gateway on ports of its own; stops it at the end if it still runs."""
    settings = {
        "GATEWAY_BIND": "127.0.0.1:0",
        "GATEWAY_METRICS_BIND": "127.0.0.1:0",
        "GATEWAY_REGISTRY": f"dns:///127.0.0.1:{registry_port}",
        "GATEWAY_REGISTRY_TOKEN": TOKEN,
        "GATEWAY_PUBLIC_URL": "https://gateway.example/mcp",
    }
    with tempfile.TemporaryDirectory() as directory, Stack(Path(directory)) as stack:
        process = stack.run("gateway", settings={**settings, **environ})
        await asyncio.to_thread(process.wait_ready)
        yield GatewayProcess(process)
        # The scripted registry lives in the tests' event loop, which must not stand still meanwhile.
        await asyncio.to_thread(stack.close)


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


async def send(port: int, head: bytes, *chunks: bytes, host: str = "127.0.0.1") -> Reply:
    """Sends bytes on a connection of its own, and reads one whole answer."""
    async with await Wire.open(f"{host.strip('[]')}:{port}") as wire:
        for piece in (head, *chunks):
            await wire.write(piece)
        return await wire.reply(bodiless=head.startswith(b"HEAD "))


async def post(gateway: GatewayProcess, body: Any, path: str = "/mcp", method: str = "POST", **headers: Any) -> Reply:
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
