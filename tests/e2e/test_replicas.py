"""Two registry services on one PostgreSQL, seen from outside: what one was told, the other knows."""

import asyncio
import json
import random
import signal

import httpx2

from ops.stack import Stack
from tests.conformance.pack import start_pack
from tests.support.postgresql import PostgresqlServer
from tests.support.scene import Load, assert_no_faults, assert_usage_is_ledger, call_id_of, ledger, opened
from tests.support.speaker import AGENT_BUILDER, MODERN
from tests.support.waiting import eventually

# The longest that a frozen replica may hold up the others, and a change of the catalog.
HELD_UP_SECONDS = 3.0
APPLY_SECONDS = 5.0


def call(url: str, authorization: str, tool: str, arguments: dict[str, object]) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"Accept": "application/json", "Authorization": authorization}
    return httpx2.post(url, json=message, headers=headers, timeout=30)


def test_second_replica_knows_what_the_first_was_told(postgresql_stack: Stack):
    running = start_pack(postgresql_stack)
    second = postgresql_stack.registry()
    url = f"{postgresql_stack.gateway(second).url}/mcp"
    authorization = running.credential.basic

    answer = call(url, authorization, "add", {"a": 2, "b": 3})
    assert answer.json()["result"]["structuredContent"] == {"sum": 5}
    call_id = answer.headers["x-naru-call-id"]
    assert postgresql_stack.admin(running.registry).get_call(call_id).client_id == running.credential.client_id

    postgresql_stack.admin(running.registry).deactivate("add", "1.0.0")
    refused = call(url, authorization, "add", {"a": 2, "b": 3}).json()
    assert refused["error"]["data"]["reason"] == "TOOL_NOT_ACTIVE", json.dumps(refused)
    usage = postgresql_stack.admin(second).usage(running.credential.client_id)
    assert set(usage.values()) == {1}


async def test_a_frozen_replica_costs_its_own_calls_only(postgresql_stack: Stack, postgresql: PostgresqlServer):
    """Beside sixteen clients of one gateway. Each call that was on the frozen replica hears that it is not known."""
    stack, dice = postgresql_stack, random.Random(11)
    registries = [stack.run_registry() for _ in range(3)]
    for registry in registries:
        registry.wait_ready()
    clock = asyncio.get_running_loop().time
    async with opened(stack, registries[0], stack.gateway(*registries)) as scene:
        load = Load(scene.client, scene.tool("/echo"), (AGENT_BUILDER, MODERN), workers=16)
        load.start()
        await load.succeeded(200)
        for frozen in registries[1:]:
            await load.succeeded(dice.randrange(30))
            frozen.popen.send_signal(signal.SIGSTOP)
            frozen_at = clock()
            await asyncio.to_thread(scene.tool, "/echo")
            assert clock() - frozen_at < APPLY_SECONDS
            # More than those that come before all clients wait for the frozen one, so that the gap is over.
            await load.succeeded(300)
            assert load.longest_gap(frozen_at) < HELD_UP_SECONDS
            frozen.popen.send_signal(signal.SIGCONT)
            await load.succeeded(100)
        await load.stop()
        assert set(load.reasons()) <= {"", "CALL_OUTCOME_UNKNOWN"}
        await eventually(lambda: all(row.state != "RUNNING" for row in ledger(stack, postgresql).values()))
        rows = ledger(stack, postgresql)
        received = [call_id_of(request) for request in scene.endpoint.received]
        assert len(received) == len(set(received)), "a call was executed twice"
        assert set(received) <= rows.keys()
        assert {rows[reply.call_id].state for reply in load.replies if not reply.reason} == {"SUCCEEDED"}
        assert_usage_is_ledger(scene.admin, rows)
    assert_no_faults(*stack.processes)
