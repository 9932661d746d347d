"""Broken links: gateway to registry, registry to database, registry to endpoint. What is said, and what heals."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ops.stack import Process, Stack, wait_for
from registry_service.execution import TELL_SECONDS
from tests.support.postgresql import running_postgresql
from tests.support.scene import Reply, Scene, assert_no_faults, assert_usage_is_ledger, call_id_of, ledger, opened
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.speaker import AGENT_BUILDER, LEGACY, MODERN, NDJSON, XDATA, Speaker
from tests.support.waiting import eventually

CONTRACTS = (AGENT_BUILDER, LEGACY, XDATA, NDJSON, MODERN)
# No answer about a link that is known to be down may take longer.
PROMPT_SECONDS = 5.0
# From the start of what was missing to the first success.
HEAL_SECONDS = 15.0
LIMIT_SECONDS = 1.0
# Of a call that says nothing, at one ping a second: twice as many as gRPC's own limit lets pass.
PINGS = 7.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A pair that no test of this module harms."""
    with Stack(tmp_path_factory.mktemp("link")) as stack:
        stack.gateway(stack.registry())
        yield stack


@pytest.fixture
async def scene(pair: Stack) -> AsyncIterator[Scene]:
    async with opened(pair, pair.registries[0], pair.gateways[0]) as scene:
        yield scene


async def until_ready(scene: Scene) -> None:
    async def ready() -> bool:
        return (await scene.client.get("/readyz"))[0] == 200

    await eventually(ready, HEAL_SECONDS)


def listening(registry: Process) -> str:
    """The address of a registry that need not be ready."""

    def address() -> str:
        return next((record["address"] for record in registry.records() if record["event"] == "listening"), "")

    return wait_for(address, HEAL_SECONDS, "a port")


async def until_unready(scene: Scene) -> None:
    async def unready() -> bool:
        return (await scene.client.get("/readyz"))[0] == 503

    await eventually(unready, HEAL_SECONDS)


def assert_unavailable(reply: Reply) -> None:
    assert reply.status == 200
    assert (reply.reason, reply.error["safe_to_retry"]) == ("SERVICE_UNAVAILABLE", True)


def assert_unknown(reply: Reply) -> None:
    assert reply.status == 200
    assert reply.envelope["id"] == reply.id
    assert (reply.reason, reply.error["safe_to_retry"]) == ("CALL_OUTCOME_UNKNOWN", False)


async def start_calls(scene: Scene, tool: str) -> list[asyncio.Task[Reply]]:
    """A call by each speaker, which its endpoint has got and does not answer yet."""
    calls = [asyncio.create_task(scene.client.call(tool, speaker=speaker)) for speaker in CONTRACTS]
    for _ in calls:
        await scene.arrived()
    return calls


async def assert_all_unavailable(scene: Scene, tool: str) -> None:
    """Every method and speaker: at once, safe to retry, and nothing was executed."""
    executed = scene.endpoint.executions
    for speaker in CONTRACTS:
        began = time.monotonic()
        assert_unavailable(await scene.client.call(tool, speaker=speaker))
        assert_unavailable(await scene.client.ask("tools/list", speaker=speaker))
        if not speaker.modern:
            assert_unavailable(await scene.client.ask("ping", speaker=speaker))
        assert time.monotonic() - began < PROMPT_SECONDS
    assert scene.endpoint.executions == executed


class TestRegistry:
    @pytest.mark.parametrize("speaker", CONTRACTS, ids=lambda speaker: speaker.name)
    async def test_the_answer_names_the_call_whose_outcome_nobody_knows(self, stack: Stack, speaker: Speaker):
        """`naru record` needs it, and a JSON answer has no earlier event to hear it from."""
        registry = stack.registry()
        gateway = stack.gateway(registry)
        async with opened(stack, registry, gateway) as scene:
            call = asyncio.create_task(scene.client.call(scene.tool("/gate"), speaker=speaker))
            call_id = await scene.arrived()
            await asyncio.sleep(2 * TELL_SECONDS)
            registry.kill()
            reply = await call
            assert_unknown(reply)
            assert reply.call_id == call_id
        gateway.stop()  # and with it come the last lines of its log
        (record,) = (r for r in gateway.records() if r.get("method") == "tools/call")
        assert record["call_id"] == call_id

    async def test_it_dies_in_the_middle_of_calls_and_comes_back(self, stack: Stack):
        """Kills it: running calls end as unknown, also in mid-stream; new ones meanwhile are safe; then calls work."""
        registry = stack.registry()
        gateway = stack.gateway(registry)
        async with opened(stack, registry, gateway) as scene:
            tool, echo = scene.tool("/gated-progress"), scene.tool("/echo")
            calls = await start_calls(scene, tool)
            registry.kill()
            for call in calls:
                reply = await call
                assert_unknown(reply)
                assert len(reply.messages) <= 2
            await assert_all_unavailable(scene, echo)
            assert (await scene.client.get("/healthz"))[0] == 200
            status, body = await scene.client.get("/readyz")
            assert (status, body["status"]) == (503, "unavailable")
            assert any("naru.v1.Execution" in trouble for trouble in body["troubles"])

            await asyncio.to_thread(stack.registry, REGISTRY_BIND=registry.address)
            await until_ready(scene)
            for speaker in CONTRACTS:
                assert (await scene.client.call(echo, {"n": 1}, speaker)).value == {"n": 1}
            assert sorted(row.state for row in ledger(stack).values()) == ["SUCCEEDED"] * 5 + ["UNKNOWN"] * 5
        assert_no_faults(*stack.processes)

    async def test_a_restart_between_two_calls_costs_a_retry_at_most(self, stack: Stack):
        """The client does not wait for the gateway to have noticed."""
        registry = stack.registry()
        async with opened(stack, registry, stack.gateway(registry)) as scene:
            echo = scene.tool("/echo")
            assert (await scene.client.call(echo, {"n": 1})).value == {"n": 1}
            assert await asyncio.to_thread(registry.stop) == 0
            await asyncio.to_thread(stack.registry, REGISTRY_BIND=registry.address)

            async def succeeds() -> bool:
                reply = await scene.client.call(echo, {"n": 2})
                if reply.reason:
                    assert_unavailable(reply)
                return not reply.reason

            await eventually(succeeds, HEAL_SECONDS)
            assert scene.endpoint.executions == 2
        assert_no_faults(*stack.processes)

    async def test_a_frozen_registry_meets_the_deadline(self, stack: Stack):
        """Nothing waits for ever, and what was frozen goes on as if nothing had been."""
        registry = stack.registry()
        limit = str(LIMIT_SECONDS)
        gateway = stack.gateway(registry, GATEWAY_CALL_TIMEOUT_SECONDS=limit, GATEWAY_REGISTRY_TIMEOUT_SECONDS=limit)
        async with opened(stack, registry, gateway) as scene:
            echo = scene.tool("/echo")
            assert (await scene.client.call(echo)).reason == ""
            registry.popen.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            replies = await asyncio.gather(*(scene.client.call(echo, speaker=speaker) for speaker in CONTRACTS))
            lists = await asyncio.gather(*(scene.client.ask("tools/list", speaker=speaker) for speaker in CONTRACTS))
            assert time.monotonic() - began < 2 * LIMIT_SECONDS + PROMPT_SECONDS
            registry.popen.send_signal(signal.SIGCONT)
            for reply in replies:
                assert_unknown(reply)
            for reply in lists:
                assert_unavailable(reply)
            await until_ready(scene)
            assert (await scene.client.call(echo)).reason == ""
            await eventually(lambda: all(row.state != "RUNNING" for row in ledger(stack).values()))
            rows = ledger(stack)
            assert {call_id_of(request) for request in scene.endpoint.received} <= rows.keys()
            assert_usage_is_ledger(scene.admin, rows)
        assert_no_faults(*stack.processes)

    async def test_a_slow_tool_meets_the_gateways_deadline_and_hears_of_it(self, scene: Scene):
        """The registry answers before the deadline is over, so that the client gets the reason, not a broken link."""
        gateway = await asyncio.to_thread(scene.stack.gateway, GATEWAY_CALL_TIMEOUT_SECONDS="1")
        tool, client = scene.tool("/hang"), scene.client.of(gateway)
        for reply in await asyncio.gather(*(client.call(tool, speaker=speaker) for speaker in CONTRACTS)):
            assert (reply.reason, reply.error["safe_to_retry"]) == ("TOOL_TIMED_OUT", False)
            assert await scene.settled(await scene.gone()) == "FAILED"

    async def test_a_call_silent_for_long_lives(self, stack: Stack):
        """Pings keep the link under a call that says nothing, and the registry takes as many as there are."""
        registry = stack.registry()
        async with opened(stack, registry, stack.gateway(registry, GATEWAY_REGISTRY_PING_SECONDS="1")) as scene:
            tool = scene.tool("/gate")
            calls = await start_calls(scene, tool)
            ended, _ = await asyncio.wait(calls, timeout=PINGS, return_when=asyncio.FIRST_COMPLETED)
            assert not ended
            scene.endpoint.gate.set()
            for call in calls:
                assert (await call).value == {"passed": True}
        assert_no_faults(*stack.processes)


class TestGatewayDies:
    async def test_its_legacy_calls_run_on_and_its_modern_ones_are_cancelled(self, scene: Scene):
        gateway = await asyncio.to_thread(scene.stack.gateway)
        client = scene.client.of(gateway)
        tool = scene.tool("/gate")
        legacy = asyncio.create_task(client.call(tool, speaker=XDATA))
        legacy_id = await scene.arrived()
        modern = asyncio.create_task(client.call(tool, speaker=MODERN))
        modern_id = await scene.arrived()
        gateway.kill()
        await asyncio.wait([legacy, modern])
        assert legacy.exception()
        assert modern.exception()
        assert await scene.gone() == modern_id
        assert await scene.settled(modern_id) == "CANCELLED"
        assert scene.state(legacy_id) == "RUNNING"
        scene.endpoint.gate.set()
        assert await scene.settled(legacy_id) == "SUCCEEDED"


class TestToken:
    async def test_a_wrong_service_token_is_named_wherever_one_looks(self, scene: Scene):
        wrong = await asyncio.to_thread(scene.stack.gateway, GATEWAY_REGISTRY_TOKEN="not-the-token")
        at_wrong = Scene(scene.stack, scene.admin, scene.endpoint, scene.client.of(wrong))
        await assert_all_unavailable(at_wrong, scene.tool("/echo"))
        assert await at_wrong.client.get("/readyz") == (
            503,
            {"status": "unavailable", "troubles": ["GATEWAY_REGISTRY_TOKEN: the registry refuses it"]},
        )
        await eventually(lambda: "GATEWAY_REGISTRY_TOKEN" in wrong.tail())
        errors = [record for record in wrong.records() if record["level"] == "error"]
        assert {record["setting"] for record in errors} == {"GATEWAY_REGISTRY_TOKEN"}
        doctor = await asyncio.to_thread(self.doctor, scene, wrong)
        assert "GATEWAY_REGISTRY_TOKEN" in doctor

    def doctor(self, scene: Scene, gateway: Process) -> str:
        """Returns what `naru doctor` says of this pair, which it must not call healthy."""
        credential = scene.client.credential
        process = scene.stack.run(
            "naru_cli.app",
            "doctor",
            settings={
                "NARU_REGISTRY": scene.stack.registries[0].address,
                "NARU_ADMIN_TOKEN": scene.stack.admin_token,
                "NARU_URL": f"{gateway.url}/mcp",
                "NARU_CREDENTIALS": f"{credential.client_id}:{credential.secret}",
                "COLUMNS": "200",
            },
        )
        assert process.wait_exit() != 0
        return process.tail()


class TestDatabase:
    async def test_a_restart_of_postgresql_heals_and_loses_nothing(self, tmp_path: Path):
        """Calls that run while it is away are told their true outcome, if it is back in time."""
        with running_postgresql() as server, Stack(tmp_path, server.create_database()) as stack:
            registry = stack.registry()
            async with opened(stack, registry, stack.gateway(registry)) as scene:
                gate, echo = scene.tool("/gate"), scene.tool("/echo")
                assert (await scene.client.call(echo, {"n": 1})).value == {"n": 1}
                calls = await start_calls(scene, gate)
                await asyncio.to_thread(server.stop)
                executed = scene.endpoint.executions
                for speaker in CONTRACTS:
                    assert_unavailable(await scene.client.call(echo, {"n": 2}, speaker))
                assert scene.endpoint.executions == executed
                scene.endpoint.gate.set()
                await until_unready(scene)
                await asyncio.to_thread(server.start)
                for call in calls:
                    assert (await call).value == {"passed": True}
                await until_ready(scene)
                for speaker in CONTRACTS:
                    assert (await scene.client.call(echo, {"n": 3}, speaker)).value == {"n": 3}
                rows = ledger(stack, server)
                assert {row.state for row in rows.values()} == {"SUCCEEDED"}
                assert len(rows) == scene.endpoint.executions == 11
                assert_usage_is_ledger(scene.admin, rows)
        assert_no_faults(*stack.processes)

    async def test_a_replica_without_its_database_gets_no_calls(self, stack: Stack):
        """Its neighbour does, and all of them: the gateway asks replicas how they are."""
        registry = stack.registry()
        ill = stack.run_registry(DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
        ill.address = await asyncio.to_thread(listening, ill)
        async with opened(stack, registry, stack.gateway(registry, ill)) as scene:
            echo = scene.tool("/echo")
            for n in range(20):
                for speaker in CONTRACTS:
                    assert (await scene.client.call(echo, {"n": n}, speaker)).value == {"n": n}
            assert (await scene.client.get("/readyz"))[0] == 200
        assert_no_faults(*stack.processes)


class TestEndpoint:
    """Groups V and W: the tool's own faults are data, and say whether the same call may be sent again."""

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("/404", "TOOL_HTTP_ERROR"),
            ("/500-empty", "TOOL_HTTP_ERROR"),
            ("/empty", "TOOL_RESPONSE_INVALID"),
            ("/headers-then-stall", "TOOL_TIMED_OUT"),
            ("/commit-then-drop", "TOOL_UNREACHABLE"),
            ("/ndjson-without-result", "TOOL_RESPONSE_INVALID"),
        ],
    )
    async def test_its_faults_are_results(self, scene: Scene, path: str, reason: str):
        """An `isError` result with words in it, after one execution."""
        tool = scene.tool(path, timeout="300ms")
        replies = await asyncio.gather(*(scene.client.call(tool, speaker=speaker) for speaker in CONTRACTS))
        for reply in replies:
            result = reply.envelope["result"]
            assert reply.status == 200
            assert result["isError"] is True
            assert result["content"][0]["text"]
            assert (reply.reason, reply.error["safe_to_retry"]) == (reason, False)
        assert scene.endpoint.executions == len(CONTRACTS)

    async def test_a_host_that_is_down_was_not_asked(self, scene: Scene):
        """Provably not sent, so that the same call may be sent again; whatever the tool does."""
        async with ScriptedEndpoint() as down:
            url = down.url("/echo")
        tool = scene.tool("/echo", endpoint={"production": {"url": url}})
        for speaker in CONTRACTS:
            reply = await scene.client.call(tool, speaker=speaker)
            assert (reply.reason, reply.error["safe_to_retry"]) == ("TOOL_UNREACHABLE", True)
            assert reply.envelope["result"]["isError"] is True

    async def test_an_idempotent_tool_may_be_called_again(self, scene: Scene):
        """Holds for tools that say of themselves that once more does no harm."""
        tool = scene.tool("/commit-then-drop", annotations={"idempotentHint": True})
        reply = await scene.client.call(tool)
        assert (reply.reason, reply.error["safe_to_retry"]) == ("TOOL_UNREACHABLE", True)
        assert 1 <= scene.endpoint.executions <= 2
