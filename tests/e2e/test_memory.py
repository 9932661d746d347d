"""Checks what must not add up: refusals, calls, and clients that ask and never read."""

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from ops.admin import Credential
from ops.stack import Process, Stack
from tests.support.scene import Load, Scene, assert_no_faults, client_session, metric, opened, rss, samples
from tests.support.scripted_endpoint import ndjson
from tests.support.speaker import AGENT_BUILDER, LEGACY, MODERN, MODERN_SSE, NDJSON, XDATA
from tests.support.waiting import eventually

CONTRACTS = (AGENT_BUILDER, LEGACY, XDATA, NDJSON, MODERN, MODERN_SSE)
MIB = 1 << 20
WARM_UP = 1000
CALLS = 3000
REFUSALS = 2000
# Of either process, over CALLS or REFUSALS: less than a kilobyte each. The registry's share holds SQLite's page cache,
# whose 2 MiB fill in the first ten thousand calls.
GROWTH = 2 * MIB
# How often the work is done until it adds less than that.
ROUNDS = 3

# Of a gateway, over REFUSALS calls that are refused: gRPC's own share of each was 550 bytes.
REFUSED_GROWTH = MIB // 2
ACCEPTS = ("application/json", "text/event-stream")
WORKERS = 8 * len(ACCEPTS)

# Connections that may be kept for reuse.
POOLED = 16

SILENT_CLIENTS = 3
PROGRESS_BYTES = 32 << 10
PROGRESS_FRAMES = 800
RESULT_BYTES = MIB // 2
# Of the SILENT_CLIENTS * PROGRESS_FRAMES * PROGRESS_BYTES = 75 MiB of progress that nobody reads, next to nothing may
# be kept; of each result, which is in an answer twice, a few copies.
SILENT_GROWTH = 15 * MIB
# Each is in an answer twice, and of those that wait 32 MiB may be held, or twice that for a moment.
LARGE_RESULT = 3 * MIB
UNREAD_CLIENTS = 24
UNREAD_GROWTH = 150 * MIB
# For one call of a normal client meanwhile.
UNDISTURBED_SECONDS = 1.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("memory")) as stack:
        stack.gateway(stack.registry())
        yield stack
        assert_no_faults(*stack.processes)


@pytest.fixture
async def scene(pair: Stack) -> AsyncIterator[Scene]:
    async with opened(pair, pair.registries[0], pair.gateways[0]) as scene:
        yield scene


def both(scene: Scene) -> tuple[Process, Process]:
    return scene.stack.registries[0], scene.stack.gateways[0]


def footprint(scene: Scene) -> list[tuple[int, int, int]]:
    """Returns, for each process, its memory, its open files, and the time series in its metrics."""
    return [(rss(process), psutil.Process(process.pid).num_fds(), samples(process)) for process in both(scene)]


async def assert_flat(scene: Scene, work: Callable[[], Awaitable[object]]) -> None:
    """Fails if the work leaves files or time series behind, or memory each time: a cache fills once, a leak never."""
    growth: list[list[int]] = []
    while len(growth) < ROUNDS and not (growth and max(growth[-1]) < GROWTH):
        before = footprint(scene)
        await work()
        after = footprint(scene)
        for (_, files, series), (_, more_files, more_series) in zip(before, after, strict=True):
            assert more_files - files < POOLED
            assert more_series == series
        growth.append([more - memory for (memory, _, _), (more, _, _) in zip(before, after, strict=True)])
    assert max(growth[-1]) < GROWTH, growth


def refusals(scene: Scene) -> list[tuple[str, bytes, dict[str, str]]]:
    """Requests that are refused, each in another place: method, body, headers."""
    own = {"Authorization": scene.client.credential.basic, "Accept": "application/json"}
    typed = {**own, "Content-Type": "application/json"}

    def call(name: str) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}}).encode()

    return [
        ("GET", b"", {"Accept": "text/html"}),
        ("GET", b"", {**own, "Accept": "text/event-stream"}),
        ("DELETE", b"", own),
        ("POST", b"{", typed),
        ("POST", b"[" * 2000, typed),
        ("POST", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', typed),
        ("POST", b'{"jsonrpc":"2.0","id":1,"method":"made up"}', typed),
        ("POST", call("made up"), typed),
        ("POST", call("x"), {**typed, "Authorization": "Basic bm9ib2R5Om5vdGhpbmc="}),
        ("POST", call("x"), {**typed, "Authorization": "Basic !"}),
        ("POST", call("x"), {**own, "Content-Type": "text/plain"}),
        ("POST", call("x"), {**typed, "Accept": "image/png"}),
        ("POST", call("x"), {**typed, "Origin": "https://evil.example"}),
        ("POST", call("x"), {**typed, "X-MCP-Env-Scope": "made up"}),
        ("POST", call("x"), {**typed, "MCP-Protocol-Version": "2026-07-28"}),
    ]


async def refuse(session: aiohttp.ClientSession, scene: Scene, number: int) -> None:
    """Sends so many requests, of every kind in turn, four at a time."""
    url = f"{scene.client.gateway.url}/mcp"
    kinds = refusals(scene)

    async def send(start: int) -> None:
        for index in range(start, number, 4):
            method, body, headers = kinds[index % len(kinds)]
            async with session.request(method, url, data=body, headers=headers) as response:
                assert "error" in await response.json()

    async with asyncio.timeout(60):
        await asyncio.gather(*(send(start) for start in range(4)))


async def test_refusals_leave_nothing_behind(scene: Scene):
    async with client_session() as session:
        await refuse(session, scene, WARM_UP)
        await assert_flat(scene, lambda: refuse(session, scene, REFUSALS))


class Refusals:
    """Calls of the same kind, each of which is to be refused for one of these reasons."""

    def __init__(self, gateway: Process, credential: Credential, tool: str, *reasons: str) -> None:
        self._url = f"{gateway.url}/mcp"
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
        self._body = json.dumps(call).encode()
        self._authorization = credential.basic
        self._reasons = [reason.encode() for reason in reasons]

    async def provoke(self, number: int) -> None:
        async with client_session() as session, asyncio.timeout(60):
            await asyncio.gather(*(self._some(session, number // WORKERS, kind) for kind in ACCEPTS * 8))

    async def _some(self, session: aiohttp.ClientSession, number: int, accept: str) -> None:
        headers = {"Authorization": self._authorization, "Accept": accept, "Content-Type": "application/json"}
        for _ in range(number):
            async with session.post(self._url, data=self._body, headers=headers) as response:
                answer = await response.read()
                assert any(reason in answer for reason in self._reasons)

    async def are_flat(self, *processes: Process) -> None:
        """Fails if each round of refusals adds memory: a cache fills once, a leak never."""
        await self.provoke(WARM_UP)
        growth: list[list[int]] = []
        while len(growth) < ROUNDS and not (growth and max(growth[-1]) < REFUSED_GROWTH):
            before = [rss(process) for process in processes]
            await self.provoke(REFUSALS)
            growth.append([rss(process) - memory for process, memory in zip(processes, before, strict=True)])
        assert max(growth[-1]) < REFUSED_GROWTH, growth


class TestRefusedCalls:
    """A client that hears `safe_to_retry` does so, for as long as the reason lasts."""

    async def test_by_a_registry_that_was_never_reached(self, scene: Scene):
        away = await asyncio.to_thread(scene.stack.gateway, GATEWAY_REGISTRY="dns:///127.0.0.1:1")
        await Refusals(away, scene.client.credential, "x", "SERVICE_UNAVAILABLE").are_flat(away)

    async def test_by_a_registry_that_has_gone(self, tmp_path: Path):
        with Stack(tmp_path) as stack:
            registry = stack.registry()
            gateway = stack.gateway(registry)
            async with opened(stack, registry, gateway) as scene:
                assert (await scene.client.call(scene.tool("/echo"))).reason == ""
                registry.kill()
                await Refusals(gateway, scene.client.credential, "x", "SERVICE_UNAVAILABLE").are_flat(gateway)

    async def test_by_the_service_token(self, tmp_path: Path):
        with Stack(tmp_path) as stack:
            registry = stack.registry()
            wrong = stack.gateway(registry, GATEWAY_REGISTRY_TOKEN="not-the-token")
            await Refusals(wrong, Credential("any", "one"), "x", "SERVICE_UNAVAILABLE").are_flat(wrong, registry)

    async def test_by_a_registry_that_drains(self, tmp_path: Path):
        with Stack(tmp_path) as stack:
            registry = stack.registry(REGISTRY_SHUTDOWN_GRACE_SECONDS="60")
            gateway = stack.gateway(registry)
            async with opened(stack, registry, gateway) as scene:
                call = asyncio.create_task(scene.client.call(scene.tool("/gate")))
                await scene.arrived()
                registry.popen.send_signal(signal.SIGTERM)
                refusals = Refusals(gateway, scene.client.credential, "x", "SERVICE_UNAVAILABLE")
                await eventually(lambda: any(record["event"] == "stopping" for record in registry.records()))
                await refusals.are_flat(gateway, registry)
                scene.endpoint.gate.set()
                assert (await call).value == {"passed": True}

    async def test_by_their_deadline(self, tmp_path: Path):
        """The registry names it, if it is not too busy to be in time."""
        with Stack(tmp_path) as stack:
            registry = stack.registry()
            gateway = stack.gateway(registry, GATEWAY_CALL_TIMEOUT_SECONDS="0.1")
            async with opened(stack, registry, gateway) as scene:
                reasons = ("TOOL_TIMED_OUT", "CALL_OUTCOME_UNKNOWN")
                await Refusals(gateway, scene.client.credential, scene.tool("/hang"), *reasons).are_flat(gateway)

    async def test_by_the_credential(self, scene: Scene):
        stranger = Credential("nobody", "nothing")
        refusals = Refusals(scene.stack.gateways[0], stranger, "x", "UNAUTHENTICATED")
        await refusals.are_flat(*both(scene))


async def test_calls_leave_nothing_behind(scene: Scene):
    """Calls as every speaker, with and without progress."""
    load = Load(scene.client, scene.tool("/ndjson"), CONTRACTS, workers=len(CONTRACTS))
    load.start()
    await load.succeeded(WARM_UP, 60)
    await assert_flat(scene, lambda: load.succeeded(CALLS, 60))
    await load.stop()
    assert set(load.reasons()) == {""}


async def test_clients_that_never_read_disturb_nobody(scene: Scene):
    """Progress that nobody takes is dropped, and the results wait without holding up anything else."""
    registry, gateway = both(scene)
    frames = [{"progress": n, "message": "x" * PROGRESS_BYTES} for n in range(PROGRESS_FRAMES)]
    scene.endpoint.serve("/flood", ndjson(*frames, {"result": {"text": "x" * RESULT_BYTES}}))
    flood, echo = scene.tool("/flood"), scene.tool("/echo")
    await scene.client.call(flood)
    await scene.arrived()
    before = [rss(process) for process in (registry, gateway)]
    files = psutil.Process(gateway.pid).num_fds()
    with contextlib.ExitStack() as silent:
        for _ in range(SILENT_CLIENTS):
            silent.enter_context(contextlib.closing(ask_and_never_read(scene, flood)))
        call_ids = [await scene.arrived() for _ in range(SILENT_CLIENTS)]
        slowest = 0.0
        for number in range(150):
            began = time.monotonic()
            reply = await scene.client.call(echo, {"n": number}, CONTRACTS[number % len(CONTRACTS)])
            slowest = max(slowest, time.monotonic() - began)
            assert reply.value == {"n": number}
        assert slowest < UNDISTURBED_SECONDS
        for call_id in call_ids:
            assert await scene.settled(call_id) == "SUCCEEDED"
        growth = [rss(process) - then for process, then in zip((registry, gateway), before, strict=True)]
        assert max(growth) < SILENT_GROWTH
    await eventually(lambda: metric(gateway, "naru_gateway_in_flight") == 0)
    await eventually(lambda: psutil.Process(gateway.pid).num_fds() <= files)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "application/x-ndjson"])
async def test_large_answers_that_nobody_takes_are_cut(scene: Scene, accept: str):
    """Their memory is bounded while they wait, and others are served meanwhile."""
    registry, _ = both(scene)
    gateway = await asyncio.to_thread(
        scene.stack.gateway, registry,
        GATEWAY_WRITE_TIMEOUT_SECONDS="3", GATEWAY_MAX_UNREAD_BYTES=str(32 * MIB),
    )  # fmt: skip
    frames = [{"progress": n, "message": "x" * PROGRESS_BYTES} for n in range(100)]
    scene.endpoint.serve("/large", ndjson(*frames, {"result": {"text": "x" * LARGE_RESULT}}))
    large, echo = scene.tool("/large"), scene.tool("/echo")
    client = scene.client.of(gateway)
    assert (await client.call(large)).reason == ""
    before = rss(gateway)
    with contextlib.ExitStack() as silent:
        for number in range(UNREAD_CLIENTS):
            asking = await asyncio.to_thread(ask_and_never_read, scene, large, gateway, accept)
            silent.enter_context(contextlib.closing(asking))
            assert (await client.call(echo, {"n": number})).value == {"n": number}
        await eventually(lambda: metric(gateway, "naru_gateway_unread_cut_total") == UNREAD_CLIENTS, 60)
        growth = rss(gateway) - before
    assert growth < UNREAD_GROWTH
    await eventually(lambda: metric(gateway, "naru_gateway_in_flight") == 0)


def ask_and_never_read(
    scene: Scene, tool: str, gateway: Process | None = None, accept: str = "text/event-stream"
) -> socket.socket:
    """A connection with an answer on its way that nobody takes from it."""
    host, _, port = (gateway or scene.client.gateway).address.rpartition(":")
    params = {"name": tool, "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Accept: {accept}\r\nAuthorization: {scene.client.credential.basic}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(head.encode() + body)
    return client
