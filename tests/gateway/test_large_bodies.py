"""Large bodies on the wire: the credential first, then the scan."""

import json

import grpc
import pytest

from tests.support.gateway_alone import AGENT_BUILDER, GatewayProcess, post, tool_call
from tests.support.scripted_registry import Script

pytestmark = pytest.mark.asyncio(loop_scope="module")

PADDING = "x" * 300_000


@pytest.mark.parametrize("body", [json.dumps(tool_call(arguments={"a": PADDING})).encode(), b"{" + PADDING.encode()])
async def test_a_large_body_is_not_looked_at_without_an_account(gateway: GatewayProcess, script: Script, body: bytes):
    script.refuse = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    answer = await post(gateway, body, **AGENT_BUILDER)
    assert (answer.status, answer.json["error"]["data"]["reason"]) == (401, "UNAUTHENTICATED")
    assert script.calls == []


async def test_a_large_body_arrives_as_it_was_sent(gateway: GatewayProcess, script: Script):
    arguments = {"a": PADDING, "n": [1.0, 2]}
    answer = await post(gateway, tool_call(arguments=arguments), **AGENT_BUILDER)
    assert answer.status == 200
    assert json.loads(script.calls[0].arguments) == arguments
    assert b"[1.0, 2]" in script.calls[0].arguments


async def test_a_large_body_that_is_broken_is_refused(gateway: GatewayProcess, script: Script):
    answer = await post(gateway, b'{"a":' + b"[" * 300_000, Accept="application/json, text/event-stream")
    assert (answer.status, answer.json["error"]["data"]["reason"]) == (400, "PARSE_ERROR")
