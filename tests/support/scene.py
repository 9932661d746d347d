"""A scene for fault tests: a running pair, tools on a scripted endpoint, clients of each speaker, and what shows.

async with opened(stack.registry(), stack.gateway(), …) as scene:
    tool = scene.tool("/gate")
    reply = await scene.client.call(tool)
"""

import asyncio
import contextlib
import json
import socket
import sqlite3
import struct
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any, NamedTuple

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from naru.v1 import execution_pb2
from ops.admin import Admin, Credential
from ops.stack import Process, Stack
from tests.support.postgresql import PostgresqlServer
from tests.support.scripted_endpoint import Received, ScriptedEndpoint
from tests.support.speaker import LEGACY, Speaker, message, replaced
from tests.support.waiting import eventually

ANSWER_SECONDS = 20.0
# How long a client of a load waits after it was told to come again.
_BACKOFF_SECONDS = 0.02
_RESET = struct.pack("ii", 1, 0)

_tools = count(1)
_ids = count(1)


class Reply(NamedTuple):
    """A whole answer: its messages in order, of which the last is the envelope. `id` is what was asked with."""

    status: int
    headers: Mapping[str, str]
    messages: list[dict[str, Any]]
    id: int

    @property
    def envelope(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def call_id(self) -> str:
        return self.headers.get("X-Naru-Call-Id", "")

    @property
    def error(self) -> dict[str, Any]:
        """The data of the failure, whatever it shows as; empty for a success."""
        if "error" in self.envelope:
            return dict(self.envelope["error"]["data"])
        return dict(self.envelope["result"].get("_meta", {}).get("xdata.kr/error", {}))

    @property
    def reason(self) -> str:
        """Empty for a success."""
        return str(self.error.get("reason", ""))

    @property
    def value(self) -> dict[str, Any]:
        """The structured content of a success."""
        assert "result" in self.envelope, self.envelope
        assert not self.envelope["result"].get("isError"), self.envelope
        return dict(self.envelope["result"]["structuredContent"])


class Open:
    """A request whose answer has begun."""

    def __init__(self, response: aiohttp.ClientResponse, id: int) -> None:
        self.response = response
        self.id = id
        self._read: list[dict[str, Any]] = []
        self._buffer = bytearray()

    @property
    def call_id(self) -> str:
        return self.response.headers.get("X-Naru-Call-Id", "")

    async def message(self) -> dict[str, Any] | None:
        """The next message of a stream; None at its end."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while line := await self._line():
                text = line.removeprefix(b"data: ").strip()
                if text.startswith(b"{"):
                    message: dict[str, Any] = json.loads(text)
                    self._read.append(message)
                    return message
        return None

    async def _line(self) -> bytes:
        """The next line with its end, of any length; empty when there are no more."""
        while b"\n" not in self._buffer and (chunk := await self.response.content.readany()):
            self._buffer += chunk
        end = self._buffer.find(b"\n") + 1 or len(self._buffer)
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    async def rest(self) -> Reply:
        """Reads to the end; the messages that were read before are part of the reply."""
        while await self.message() is not None:
            pass
        return Reply(self.response.status, self.response.headers, self._read, self.id)

    def reset(self) -> None:
        """Ends the connection with a reset, as a client that was killed."""
        assert self.response.connection is not None
        assert self.response.connection.transport is not None
        transport = self.response.connection.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    def leave(self) -> None:
        """Closes the connection in order, in the middle of the answer."""
        self.response.close()


class Client:
    """One account's requests to one gateway."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Process, credential: Credential) -> None:
        self._session = session
        self.gateway = gateway
        self.credential = credential

    def of(self, gateway: Process | None = None, credential: Credential | None = None) -> "Client":
        """The same client at another gateway, or for another account."""
        return Client(self._session, gateway or self.gateway, credential or self.credential)

    async def open(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        speaker: Speaker = LEGACY,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Open:
        """Sends a request, with its id for its progress token, and waits for the head of the answer."""
        number = next(_ids)
        built = message(speaker, method, params, id=number, meta={"progressToken": number})
        lines = replaced(built.headers, [("Authorization", self.credential.basic), *(headers or {}).items()])
        sent = {name: value if isinstance(value, str) else value.decode() for name, value in lines}
        async with asyncio.timeout(ANSWER_SECONDS):
            response = await self._session.post(f"{self.gateway.url}/mcp", data=built.body, headers=sent)
        return Open(response, number)

    async def ask(self, method: str, params: dict[str, Any] | None = None, speaker: Speaker = LEGACY) -> Reply:
        return await (await self.open(method, params, speaker)).rest()

    async def open_call(self, tool: str, arguments: dict[str, Any] | None = None, speaker: Speaker = LEGACY) -> Open:
        return await self.open("tools/call", {"name": tool, "arguments": arguments or {}}, speaker)

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, speaker: Speaker = LEGACY) -> Reply:
        return await (await self.open_call(tool, arguments, speaker)).rest()

    async def list(self, speaker: Speaker = LEGACY) -> dict[str, dict[str, Any]]:
        """The tools of `tools/list`, by name."""
        reply = await self.ask("tools/list", speaker=speaker)
        return {tool["name"]: tool for tool in reply.envelope["result"]["tools"]}

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """The status and the JSON body of a plain GET."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with self._session.get(f"{self.gateway.url}{path}", timeout=timeout) as response:
            return response.status, await response.json()


class Row(NamedTuple):
    """A call in the ledger. `id` is the JSON-RPC id that it was asked for with, of which tests use numbers only."""

    call_id: str
    client_id: str
    id: int
    state: str


_QUERY = "SELECT call_id, client_id, request_id, state FROM calls"


def ledger(stack: Stack, postgresql: PostgresqlServer | None = None) -> dict[str, Row]:
    """All calls in the ledger, by call id, read from the database itself."""
    if postgresql is None:
        path = stack.database_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            rows = [[str(column) for column in row] for row in connection.execute(_QUERY)]
    else:
        rows = [line.split("|") for line in postgresql.query(_QUERY, stack.database_url).splitlines()]
    state = execution_pb2.Call.State.Name
    return {
        call_id: Row(call_id, client_id, int(request_id), state(execution_pb2.Call.State.ValueType(int(number))))
        for call_id, client_id, request_id, number in rows
    }


@dataclass
class Scene:
    """See the module."""

    stack: Stack
    admin: Admin
    endpoint: ScriptedEndpoint
    client: Client

    def tool(self, path: str, **fields: Any) -> str:
        """Registers a new tool, whose production endpoint is that mode of the scripted endpoint; returns its name."""
        name = f"tool_{next(_tools)}"
        self.admin.apply({"tools": [definition(name, self.endpoint.url(path), **fields)]})
        return name

    def state(self, call_id: str) -> str:
        return state_of(self.admin, call_id)

    def rows(self, postgresql: PostgresqlServer | None = None) -> dict[str, Row]:
        """The calls of the scene's account in the ledger, by call id."""
        own = self.client.credential.client_id
        return {call_id: row for call_id, row in ledger(self.stack, postgresql).items() if row.client_id == own}

    async def settled(self, call_id: str, seconds: float = 10.0) -> str:
        """The state in the ledger, once the call has one."""
        await eventually(lambda: self.state(call_id) != "RUNNING", seconds)
        return self.state(call_id)

    async def arrived(self) -> str:
        """The call id of the next request at the endpoint."""
        return call_id_of(await self.endpoint.arrived())

    async def gone(self) -> str:
        """The call id of the next request whose connection was closed before it had its answer."""
        return call_id_of(await self.endpoint.gone())


def definition(name: str, url: str, *, version: str = "1.0.0", active: bool = True, **fields: Any) -> dict[str, Any]:
    """A manifest's entry of a tool that takes any arguments."""
    return {
        "name": name,
        "version": version,
        "active": active,
        "description": f"{name} {version}",
        "inputSchema": {"type": "object"},
        "endpoint": {"production": {"url": url}},
        **fields,
    }


def call_id_of(request: Received) -> str:
    call_id = request.header("X-Naru-Call-Id")
    assert call_id, request.headers
    return call_id


def state_of(admin: Admin, call_id: str) -> str:
    return execution_pb2.Call.State.Name(admin.get_call(call_id).state)


@asynccontextmanager
async def client_session() -> AsyncIterator[aiohttp.ClientSession]:
    """No limit of connections, no time limit but the client's own."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


@asynccontextmanager
async def opened(stack: Stack, registry: Process, gateway: Process) -> AsyncIterator[Scene]:
    """A scene over processes that run, with an account of its own."""
    admin = stack.admin(registry)
    credential = admin.create_account()
    async with ScriptedEndpoint() as endpoint, client_session() as session:
        yield Scene(stack, admin, endpoint, Client(session, gateway, credential))


def assert_usage_is_ledger(admin: Admin, rows: Mapping[str, Row]) -> None:
    """Each account's counters, of days and of months, are what the ledger holds."""
    for client_id, calls in Counter(row.client_id for row in rows.values()).items():
        usage = admin.usage(client_id)
        for length in (len("2026-01-01"), len("2026-01")):
            counted = sum(number for (_, period), number in usage.items() if len(period) == length)
            assert counted == calls, (usage, calls)


@dataclass
class Load:
    """Clients that call, each one call after the other, until `stop()`. Replies are kept in the order of their ends."""

    client: Client
    tool: str
    speakers: tuple[Speaker, ...]
    workers: int = 8
    replies: list[Reply] = field(default_factory=list)
    # When calls succeeded, by the event loop's clock.
    successes: list[float] = field(default_factory=list)

    def start(self) -> None:
        self._go = True
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(self.workers)]

    async def _work(self, number: int) -> None:
        speaker = self.speakers[number % len(self.speakers)]
        while self._go:
            reply = await self.client.call(self.tool, {"worker": number}, speaker)
            self.replies.append(reply)
            if not reply.reason:
                self.successes.append(asyncio.get_running_loop().time())
            if reply.reason == "SERVICE_UNAVAILABLE":
                await asyncio.sleep(_BACKOFF_SECONDS)

    def longest_gap(self, since: float) -> float:
        """The longest time without a success since then, in seconds."""
        moments = [since, *(moment for moment in self.successes if moment > since), asyncio.get_running_loop().time()]
        return max(later - earlier for earlier, later in pairwise(moments))

    def reasons(self, since: int = 0) -> Counter[str]:
        return Counter(reply.reason for reply in self.replies[since:])

    async def succeeded(self, number: int, seconds: float = ANSWER_SECONDS) -> None:
        """Waits until so many more calls have succeeded."""
        since = len(self.replies)
        await eventually(lambda: any(task.done() for task in self._tasks) or self.reasons(since)[""] >= number, seconds)
        if any(task.done() for task in self._tasks):
            await self.stop()

    async def stop(self) -> None:
        """Waits for the calls that run. Raises what a worker has failed of."""
        self._go = False
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.gather(*self._tasks)


def metric(process: Process, name: str, **labels: str) -> float:
    """The sum of the samples of a metric that have these labels; 0 where there are none."""
    found = [sample for sample in _samples(process) if sample.name == name and labels.items() <= sample.labels.items()]
    return sum(sample.value for sample in found)


def samples(process: Process) -> int:
    """Returns the number of time series that the process has."""
    return len(_samples(process))


def _samples(process: Process) -> list[Sample]:
    address = next(filter(None, map(_metrics_address, process.records())))
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
        families = text_string_to_metric_families(response.read().decode())
    return [sample for family in families for sample in family.samples]


def _metrics_address(record: Mapping[str, Any]) -> str | None:
    return record.get("metrics") or (record["address"] if record.get("event") == "metrics" else None)


def rss(process: Process) -> int:
    """Resident memory, in bytes."""
    return int(psutil.Process(process.pid).memory_info().rss)


def connections(process: Process, status: str) -> int:
    """Returns how many TCP connections of the process are in this state (`psutil.CONN_…`)."""
    return sum(item.status == status for item in psutil.Process(process.pid).net_connections("tcp"))


def assert_no_faults(*processes: Process) -> None:
    """Nothing unforeseen is in the logs: no error, no traceback, no line that is not a record."""
    for process in processes:
        lines = process.log.read_text(errors="replace").splitlines()
        strange = [
            line for line in lines if not line.startswith("{") or '"level":"error"' in line or "Traceback" in line
        ]
        assert not strange, f"{process.name}: {strange[:5]}"
