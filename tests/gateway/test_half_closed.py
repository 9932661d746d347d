"""Clients that send no more after their request, some of which have gone."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from naru.v1.execution_pb2 import CallToolEvent
from tests.support.gateway_alone import AGENT_BUILDER, LEGACY, GatewayProcess, head_of, modern, tool_call
from tests.support.scripted_registry import Script, text_result

pytestmark = pytest.mark.asyncio(loop_scope="module")

SSE = {"Accept": "text/event-stream"}
CLIENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "agent builder": (tool_call(), AGENT_BUILDER),
    "xdata": (tool_call(), SSE),
    "legacy": (tool_call(), LEGACY),
    "modern": modern(tool_call()),
    "modern, sse": modern(tool_call(), **SSE),
    "modern, ndjson": modern(tool_call(), Accept="application/x-ndjson"),
}
MODERN = [name for name in CLIENTS if name.startswith("modern")]


async def asked(gateway: GatewayProcess, client: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    message, headers = CLIENTS[client]
    body = json.dumps(message).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reader, writer = await asyncio.open_connection(gateway.host, gateway.port)
    writer.write(head_of("POST", "/mcp", named | {"Connection": "keep-alive"}, len(body)) + body)
    return reader, writer


def slow(started: asyncio.Event, seconds: float):
    async def run(request: Any, _context: Any) -> AsyncIterator[CallToolEvent]:
        started.set()
        if request.stream:
            yield CallToolEvent(accepted=CallToolEvent.Accepted(call_id="call-1"))
        await asyncio.sleep(seconds)
        yield text_result("late but there")

    return run


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_that_sends_no_more_is_answered(gateway: GatewayProcess, script: Script, client: str):
    started = asyncio.Event()
    script.run = slow(started, 1)
    reader, writer = await asked(gateway, client)
    writer.write_eof()
    async with asyncio.timeout(10):
        whole = await reader.read()
    writer.close()
    assert b"late but there" in whole
    assert not script.cancelled.is_set()


@pytest.mark.parametrize("client", MODERN)
async def test_a_call_whose_client_has_gone_is_cancelled(gateway: GatewayProcess, script: Script, client: str):
    """It closed its socket in order, which looks like one that sends no more."""
    started = asyncio.Event()
    script.run = slow(started, 60)
    _, writer = await asked(gateway, client)
    async with asyncio.timeout(10):
        await started.wait()
        writer.close()
        await script.cancelled.wait()
