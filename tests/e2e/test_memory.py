"""What must not add up: refusals, calls, and clients that ask and never read."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiohttp
import psutil
import pytest

from tests.e2e.processes import Process, Stack
from tests.e2e.scene import Contract, Load, Scene, assert_no_faults, client_session, metric, opened, rss, samples
from tests.scripted_endpoint import ndjson
from tests.waiting import eventually

CONTRACTS = tuple(Contract)
MIB = 1 << 20
WARM_UP = 1000
CALLS = 3000
REFUSALS = 2000
# Of either process, over CALLS or REFUSALS: less than a kilobyte each. The registry's share holds SQLite's page cache,
# whose 2 MiB fill in the first ten thousand calls.
GROWTH = 2 * MIB
# How often the work is done until it adds less than that.
ROUNDS = 3

# Connections that may be kept for reuse.
POOLED = 16

SILENT_CLIENTS = 3
PROGRESS_BYTES = 32 << 10
PROGRESS_FRAMES = 800
RESULT_BYTES = MIB // 2
# Of the SILENT_CLIENTS * PROGRESS_FRAMES * PROGRESS_BYTES = 75 MiB of progress that nobody reads, next to nothing may
# be kept; of each result, which is in an answer twice, a few copies.
SILENT_GROWTH = 15 * MIB
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
    """Of each process: memory, open files, and time series in its metrics."""
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
    """Case U01."""
    async with client_session() as session:
        await refuse(session, scene, WARM_UP)
        await assert_flat(scene, lambda: refuse(session, scene, REFUSALS))


async def test_calls_leave_nothing_behind(scene: Scene):
    """Case U02: of every contract, with and without progress."""
    load = Load(scene.client, scene.tool("/ndjson"), CONTRACTS, workers=len(CONTRACTS))
    load.start()
    await load.succeeded(WARM_UP, 60)
    await assert_flat(scene, lambda: load.succeeded(CALLS, 60))
    await load.stop()
    assert set(load.reasons()) == {""}


async def test_clients_that_never_read_disturb_nobody(scene: Scene):
    """Case U04: progress that nobody takes is dropped, and the results wait without holding up anything else."""
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


def ask_and_never_read(scene: Scene, tool: str) -> socket.socket:
    """A connection with an answer on its way that nobody takes from it."""
    host, _, port = scene.client.gateway.address.rpartition(":")
    params = {"name": tool, "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Accept: text/event-stream\r\nAuthorization: {scene.client.credential.basic}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(head.encode() + body)
    return client
