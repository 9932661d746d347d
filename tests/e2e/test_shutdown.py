"""Orderly ends under load: what runs may finish within the grace, what cannot is told the truth; the exit code is 0."""

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ops.stack import Process, Stack
from tests.support.nameserver import Nameserver
from tests.support.postgresql import PostgresqlServer
from tests.support.scene import Load, Reply, Scene, assert_no_faults, ledger, metric, opened
from tests.support.speaker import AGENT_BUILDER, LEGACY, MODERN_SSE, NDJSON, XDATA, Speaker
from tests.support.waiting import eventually

CONTRACTS = (AGENT_BUILDER, LEGACY, XDATA, NDJSON, MODERN_SSE)
SHORT_GRACE = 1
# What an end takes besides its grace, on a busy machine.
SLACK_SECONDS = 6.0
# What an end takes where nothing runs.
NOTHING_RUNS_SECONDS = 3.0
# How long a client may take to find a new replica.
FOUND_SECONDS = 15.0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A registry, for tests that end the gateways before it."""
    with Stack(tmp_path_factory.mktemp("shutdown")) as stack:
        stack.registry()
        yield stack


@asynccontextmanager
async def at_new_gateway(house: Stack, **settings: str) -> AsyncIterator[tuple[Scene, Process]]:
    """A scene at a gateway of its own, in whose logs there must be nothing unforeseen afterwards."""
    gateway = await asyncio.to_thread(house.gateway, **settings)
    async with opened(house, house.registries[0], gateway) as scene:
        yield scene, gateway
    assert_no_faults(gateway, house.registries[0])


@asynccontextmanager
async def at_new_registry(stack: Stack, **settings: str) -> AsyncIterator[tuple[Scene, Process]]:
    """A scene at a registry of its own, in whose logs there must be nothing unforeseen afterwards."""
    registry = stack.registry(**settings)
    async with opened(stack, registry, stack.gateway(registry)) as scene:
        yield scene, registry
    assert_no_faults(*stack.processes)


async def running_calls(scene: Scene, tool: str) -> dict[Speaker, asyncio.Task[Reply]]:
    """A call by each speaker, which its endpoint has got and does not answer yet."""
    calls = {speaker: asyncio.create_task(scene.client.call(tool, speaker=speaker)) for speaker in CONTRACTS}
    for _ in calls:
        await scene.arrived()
    return calls


async def ended(process: Process) -> int:
    """The exit code."""
    return await asyncio.to_thread(process.wait_exit)


async def closed(process: Process) -> None:
    """The port takes no connections any more."""
    host, _, port = process.address.rpartition(":")

    def refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    await eventually(refused)


def assert_unknown(reply: Reply) -> None:
    assert reply.status == 200
    assert reply.envelope["id"] == reply.id
    assert (reply.reason, reply.error["safe_to_retry"]) == ("CALL_OUTCOME_UNKNOWN", False)


async def test_where_nothing_runs_an_end_waits_for_nobody(stack: Stack):
    """Clients may keep their connections, and watch the registry's health: that is nothing that could end."""
    registry = stack.registry()
    gateway = stack.gateway(registry)
    async with opened(stack, registry, gateway) as scene, grpc.aio.insecure_channel(registry.address) as channel:
        for speaker in CONTRACTS:
            assert (await scene.client.call(scene.tool("/echo"), {"n": 1}, speaker)).value == {"n": 1}
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        host, _, port = gateway.address.rpartition(":")
        with socket.create_connection((host, int(port))) as silent, contextlib.closing(socket.socket()) as begun:
            begun.connect((host, int(port)))
            begun.sendall(b"POST /mcp HTTP/1.1\r\nHost: loc")
            for process in (registry, gateway):
                began = time.monotonic()
                process.popen.send_signal(signal.SIGTERM)
                assert await ended(process) == 0
                assert time.monotonic() - began < NOTHING_RUNS_SECONDS
            assert silent.recv(1) == b""
    assert_no_faults(*stack.processes)


class TestGateway:
    async def test_what_runs_ends_within_the_grace(self, house: Stack):
        """The streams get their results, and then the process ends, long before the grace does."""
        async with at_new_gateway(house) as (scene, gateway):
            calls = await running_calls(scene, scene.tool("/gated-progress"))
            gateway.popen.send_signal(signal.SIGTERM)
            await closed(gateway)
            assert gateway.popen.poll() is None
            began = time.monotonic()
            scene.endpoint.gate.set()
            for call in calls.values():
                assert (await call).value == {"passed": True}
            assert await ended(gateway) == 0
            assert time.monotonic() - began < SLACK_SECONDS

    async def test_what_does_not_end_gets_a_last_frame(self, house: Stack):
        """Legacy calls go on behind the gateway that had to leave them; modern ones are cancelled."""
        async with at_new_gateway(house, GATEWAY_SHUTDOWN_GRACE_SECONDS=str(SHORT_GRACE)) as (scene, gateway):
            calls = await running_calls(scene, scene.tool("/gated-progress"))
            began = time.monotonic()
            gateway.popen.send_signal(signal.SIGTERM)
            for speaker, call in calls.items():
                reply = await call
                assert_unknown(reply)
                streamed = speaker is not AGENT_BUILDER
                assert [message.get("method") for message in reply.messages[:-1]] == [
                    "notifications/progress" for _ in range(streamed)
                ]
            assert SHORT_GRACE - 0.2 < time.monotonic() - began < SHORT_GRACE + SLACK_SECONDS
            assert await ended(gateway) == 0
            cancelled = await scene.gone()
            assert await scene.settled(cancelled) == "CANCELLED"
            scene.endpoint.gate.set()
            states = [await scene.settled(call_id) for call_id in scene.rows()]
            assert sorted(states) == ["CANCELLED", *["SUCCEEDED"] * (len(CONTRACTS) - 1)]

    @pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
    async def test_a_second_signal_ends_the_grace(self, house: Stack, second: signal.Signals):
        async with at_new_gateway(house) as (scene, gateway):
            calls = await running_calls(scene, scene.tool("/hang"))
            gateway.popen.send_signal(signal.SIGTERM)
            await closed(gateway)
            gateway.popen.send_signal(second)
            began = time.monotonic()
            for call in calls.values():
                assert_unknown(await call)
            assert await ended(gateway) == 0
            assert time.monotonic() - began < SLACK_SECONDS

    async def test_a_client_that_does_not_read_cannot_hold_it_up(self, house: Stack):
        """Its answer is ready and on its way; a second signal does not wait for it."""
        async with at_new_gateway(house) as (scene, gateway):
            stream = await scene.client.open_call(scene.tool("/size?n=7000000"), speaker=XDATA)
            await scene.settled(await scene.arrived())
            gateway.popen.send_signal(signal.SIGTERM)
            await closed(gateway)
            gateway.popen.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert await ended(gateway) == 0
            assert time.monotonic() - began < SLACK_SECONDS
            stream.leave()

    async def test_no_call_runs_unheard(self, house: Stack):
        """Under load: a client may find the door shut, but what was executed has been answered."""
        async with at_new_gateway(house) as (scene, gateway):
            tool, replies = scene.tool("/echo"), []

            async def call_until_shut(speaker: Speaker) -> None:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    while True:
                        replies.append(await scene.client.call(tool, speaker=speaker))

            clients = [asyncio.create_task(call_until_shut(speaker)) for speaker in CONTRACTS * 2]
            await eventually(lambda: len(replies) > 100)
            gateway.popen.send_signal(signal.SIGTERM)
            await asyncio.gather(*clients)
            assert await ended(gateway) == 0
            assert {reply.reason for reply in replies} == {""}
            assert {row.id for row in scene.rows().values()} == {reply.id for reply in replies}

    async def test_a_request_that_is_not_whole_cannot_hold_it_up(self, house: Stack):
        async with at_new_gateway(house, GATEWAY_SHUTDOWN_GRACE_SECONDS=str(SHORT_GRACE)) as (scene, gateway):
            reader, writer = await asyncio.open_connection(*gateway.address.split(":"))
            head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
            writer.write(f"{head}Authorization: {scene.client.credential.basic}\r\n\r\n{{".encode())
            await eventually(lambda: metric(gateway, "naru_gateway_in_flight") == 1)
            began = time.monotonic()
            gateway.popen.send_signal(signal.SIGTERM)
            assert await ended(gateway) == 0
            assert time.monotonic() - began < SHORT_GRACE + SLACK_SECONDS
            status, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert status.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["error"]["data"]["reason"] == "SERVICE_UNAVAILABLE"
            writer.close()

    async def test_a_conversation_goes_on_at_another_replica(self, house: Stack):
        """No replica knows anything of a client, so any of them may end between two requests."""
        async with at_new_gateway(house) as (scene, gateway):
            gateways = [gateway, house.gateway(), house.gateway()]
            tool = scene.tool("/echo")
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            for turn in range(15):
                clients = [scene.client.of(gateways[(turn + step) % 3]) for step in range(3)]
                assert (await clients[0].ask("initialize", hello)).envelope["result"]["serverInfo"]["name"] == "naru"
                assert tool in await clients[1].list()
                assert (await clients[2].call(tool, {"turn": turn})).value == {"turn": turn}
            leaving = gateways[0]
            assert await asyncio.to_thread(leaving.stop) == 0
            with pytest.raises(aiohttp.ClientConnectionError):
                await scene.client.of(leaving).call(tool)
            replacement = await asyncio.to_thread(house.gateway, GATEWAY_BIND=leaving.address)
            assert (await scene.client.of(replacement).call(tool, {"turn": 16})).value == {"turn": 16}


class TestRegistry:
    async def test_what_runs_ends_within_the_grace_and_nothing_else_begins(self, stack: Stack):
        """Meanwhile the gateway's clients hear that they may come again, and nothing is done."""
        async with at_new_registry(stack) as (scene, registry):
            tool = scene.tool("/gate")
            calls = await running_calls(scene, tool)
            executed = scene.endpoint.executions
            registry.popen.send_signal(signal.SIGTERM)
            refused = await self.until_refused(scene)
            for speaker in CONTRACTS:
                refused.append(await scene.client.call(tool, speaker=speaker))
            for reply in refused:
                assert (reply.reason, reply.error["safe_to_retry"]) == ("SERVICE_UNAVAILABLE", True)
            assert scene.endpoint.executions == executed
            assert {reply.id for reply in refused}.isdisjoint(row.id for row in scene.rows().values())
            assert (await scene.client.get("/readyz"))[0] == 503
            began = time.monotonic()
            scene.endpoint.gate.set()
            for call in calls.values():
                assert (await call).value == {"passed": True}
            assert await ended(registry) == 0
            assert time.monotonic() - began < SLACK_SECONDS
            assert {row.state for row in scene.rows().values()} == {"SUCCEEDED"}

    async def until_refused(self, scene: Scene) -> list[Reply]:
        """Calls until the service is told to stop; the first answers may still be successes."""
        tool = "no_such_tool"
        async with asyncio.timeout(10):
            while (reply := await scene.client.call(tool)).reason == "TOOL_NOT_FOUND":
                pass
        return [reply]

    async def test_what_does_not_end_is_cut_and_told(self, stack: Stack):
        """The drain has a bound."""
        async with at_new_registry(stack, REGISTRY_SHUTDOWN_GRACE_SECONDS=str(SHORT_GRACE)) as (scene, registry):
            calls = await running_calls(scene, scene.tool("/gated-progress"))
            began = time.monotonic()
            registry.popen.send_signal(signal.SIGTERM)
            for call in calls.values():
                assert_unknown(await call)
            assert await ended(registry) == 0
            assert time.monotonic() - began < SHORT_GRACE + SLACK_SECONDS
            assert {await scene.gone() for _ in calls} == scene.rows().keys()
            assert {row.state for row in scene.rows().values()} == {"UNKNOWN"}

    async def test_a_second_signal_ends_it_at_once(self, stack: Stack):
        async with at_new_registry(stack) as (scene, registry):
            calls = await running_calls(scene, scene.tool("/hang"))
            registry.popen.send_signal(signal.SIGTERM)
            await self.until_refused(scene)
            began = time.monotonic()
            registry.popen.send_signal(signal.SIGTERM)
            for call in calls.values():
                assert_unknown(await call)
            assert await ended(registry) == 0
            assert time.monotonic() - began < SLACK_SECONDS
            assert {row.state for row in scene.rows().values()} == {"UNKNOWN"}


class TestReplicas:
    @pytest.fixture
    def nameserver(self) -> Iterator[Nameserver]:
        with Nameserver() as nameserver:
            yield nameserver

    async def test_one_leaves_under_load_and_another_is_found(
        self, postgresql_stack: Stack, postgresql: PostgresqlServer, nameserver: Nameserver
    ):
        """Replicas behind one name come and go, and no client hears more than 'come again'.

        A stream that is older than its connection may be goes on all the while.
        """
        stack = postgresql_stack
        settings = {"REGISTRY_MAX_CONNECTION_AGE_SECONDS": "1"}
        first = stack.registry(**settings)
        port = first.address.rpartition(":")[2]
        nameserver.addresses = ["127.0.0.1"]
        gateway = stack.gateway(first, GATEWAY_REGISTRY=nameserver.target(port))
        async with opened(stack, first, gateway) as scene:
            stream = asyncio.create_task(scene.client.call(scene.tool("/gated-progress")))
            await scene.arrived()
            load = Load(scene.client, scene.tool("/echo"), CONTRACTS, workers=4)
            load.start()
            await load.succeeded(20)
            second = await asyncio.to_thread(stack.registry, REGISTRY_BIND=f"127.0.0.2:{port}", **settings)
            nameserver.addresses = ["127.0.0.1", "127.0.0.2"]
            await eventually(lambda: served(second) > 0, FOUND_SECONDS)
            assert set(load.reasons()) == {""}

            nameserver.addresses = ["127.0.0.2"]
            first.popen.send_signal(signal.SIGTERM)
            await closed(first)
            await load.succeeded(20)
            scene.endpoint.gate.set()
            assert (await stream).value == {"passed": True}
            assert await ended(first) == 0
            await load.stop()
            assert set(load.reasons()) <= {"", "SERVICE_UNAVAILABLE"}
            rows = ledger(stack, postgresql)
            assert {row.state for row in rows.values()} == {"SUCCEEDED"}
            assert len(rows) == load.reasons()[""] + 1 == scene.endpoint.executions
        assert_no_faults(*stack.processes)


def served(registry: Process) -> float:
    return metric(registry, "naru_grpc_requests_total", method="/naru.v1.Execution/CallTool", code="OK")
