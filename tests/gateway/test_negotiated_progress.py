"""Whoever negotiated a stream hears of progress: under the token it gave, else under its request's id."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from naru.v1.execution_pb2 import CallToolEvent
from tests.support.gateway_alone import GatewayProcess, post, tool_call
from tests.support.scripted_registry import Script, text_result

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def progressing(_request: Any, _context: Any) -> AsyncIterator[CallToolEvent]:
    yield CallToolEvent(accepted=CallToolEvent.Accepted(call_id="call-1"))
    yield CallToolEvent(progress=CallToolEvent.Progress(progress=1))
    yield text_result("done")


@pytest.mark.parametrize(
    "accept",
    [
        "text/event-stream", "text/event-stream, application/json;q=0.5", "text/event-stream, */*;q=0.1",
        "application/x-ndjson", "application/x-ndjson, application/json;q=0.5", "application/jsonl",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("meta", "token"), [(None, 17), ({"progressToken": "t"}, "t")])
async def test_progress_comes_to_whoever_negotiated_a_stream(
    gateway: GatewayProcess, script: Script, accept: str, meta: Any, token: object
):
    script.run = progressing
    answer = await post(gateway, tool_call(meta=meta, id=17), Accept=accept)
    progress, last = answer.messages
    assert progress["params"] == {"progressToken": token, "progress": 1}
    assert last["id"] == 17


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream", "*/*"])
async def test_no_progress_comes_to_whoever_did_not_ask_for_it(gateway: GatewayProcess, script: Script, accept: str):
    script.run = progressing
    [only] = (await post(gateway, tool_call(id=17), Accept=accept)).messages
    assert only["id"] == 17
