"""Two registry services on one PostgreSQL, seen from outside: what one was told, the other knows."""

import json

import httpx2

from tests.conformance.pack import start_pack
from tests.support.processes import Stack


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
