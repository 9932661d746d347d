"""`/openapi.json`, held against a running gateway: each answer is one that the document describes."""

import json
from typing import Any

import grpc
import jsonschema
import pytest

from gateway.failures.table import TABLE, Surface
from tests.support.gateway_alone import AGENT_BUILDER, LEGACY, GatewayProcess, modern, post, rpc, tool_call
from tests.support.scripted_registry import fail, text_result
from tests.support.wire import Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

SSE: dict[str, Any] = {"Accept": "text/event-stream"}
NDJSON: dict[str, Any] = {"Accept": "application/x-ndjson"}


async def described(gateway: GatewayProcess) -> dict[str, Any]:
    answer = await post(gateway, b"", "/openapi.json", "GET")
    assert answer.status == 200
    document: dict[str, Any] = answer.json
    return document


def check(document: dict[str, Any], schema: Any, value: Any) -> None:
    """Raises ValidationError where a value is not what a schema of the document says."""
    whole = {**schema, "components": document["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def check_answer(document: dict[str, Any], path: str, method: str, answer: Reply) -> None:
    """Holds an answer against the response that the document has for its path, method, status and media type."""
    response = document["paths"][path][method.lower()]["responses"][str(answer.status)]
    undocumented = {name for name, _ in answer.headers if name.startswith(("x-", "www-", "retry", "allow"))}
    undocumented -= {name.lower() for name in response.get("headers", {})} | {"x-accel-buffering"}
    assert not undocumented
    if not answer.body:
        assert "content" not in response
        return
    media_type = answer.header("content-type") or ""
    content = response["content"][media_type]
    if media_type == "application/json":
        check(document, content["schema"], answer.json)
        return
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n")]
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    for message in messages:
        check(document, {"anyOf": content["x-messages"]}, message)
    check(document, content["x-messages"][-1], messages[-1])


async def test_its_schemas_are_schemas(gateway: GatewayProcess) -> None:
    document = await described(gateway)
    assert document["openapi"].startswith("3.1")
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path in document["paths"].values():
        for operation in path.values():
            for scheme in (name for requirement in operation["security"] for name in requirement):
                assert scheme in document["components"]["securitySchemes"]


async def test_every_status_and_reason_of_a_refusal_is_in_it(gateway: GatewayProcess) -> None:
    responses = (await described(gateway))["paths"]["/mcp"]["post"]["responses"]
    for reason, entry in TABLE.items():
        for status in {entry.status, entry.modern_status} - {200}:
            if entry.surface is not Surface.RESULT:
                assert reason in responses[str(status)]["description"]


CALL = tool_call(id="c-1")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (rpc("ping"), LEGACY),
        (rpc("ping"), AGENT_BUILDER),
        (rpc("ping"), SSE),
        (rpc("ping"), NDJSON),
        (rpc("tools/list"), LEGACY),
        (rpc("no/such"), LEGACY),
        (rpc("no/such"), SSE),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, LEGACY),
        (b"{", LEGACY),
        (b"{", AGENT_BUILDER),
        (CALL, LEGACY),
        (CALL, AGENT_BUILDER),
        (CALL, SSE),
        (CALL, NDJSON),
        modern(rpc("no/such")),
        modern(rpc("server/discover")),
        (CALL, {**LEGACY, "Host": "evil.example"}),
        (CALL, {**LEGACY, "Origin": "https://evil.example"}),
        (CALL, {**LEGACY, "Authorization": None}),
        (CALL, {**LEGACY, "Authorization": "Basic !"}),
        (CALL, {**LEGACY, "Authorization": "Basic " + "a" * 5000}),
        (CALL, {**LEGACY, "Content_Type": "text/plain"}),
        (CALL, {"Accept": "image/png"}),
        (CALL, {**LEGACY, "Content_Length": str(1 << 30)}),
    ],
)
async def test_an_answer_is_one_that_it_describes(
    gateway: GatewayProcess, script: Any, body: Any, headers: Any
) -> None:
    document = await described(gateway)
    check_answer(document, "/mcp", "POST", await post(gateway, body, **headers))


@pytest.mark.parametrize("headers", [LEGACY, SSE, NDJSON, AGENT_BUILDER])
async def test_streams_and_failures_of_calls_are_in_it(gateway: GatewayProcess, script: Any, headers: Any) -> None:
    document = await described(gateway)

    async def run(request: Any, context: Any) -> Any:
        yield text_result("done")

    async def refuse(request: Any, context: Any) -> Any:
        await fail(context, grpc.StatusCode.UNAVAILABLE, "SERVICE_UNAVAILABLE", cause="starting")
        yield text_result("never")

    for behaviour in (run, refuse):
        script.run = behaviour
        check_answer(document, "/mcp", "POST", await post(gateway, CALL, **headers))


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
async def test_what_it_says_of_other_paths(gateway: GatewayProcess, script: Any, path: str) -> None:
    document = await described(gateway)
    check_answer(document, path, "GET", await post(gateway, b"", path, "GET"))
    assert (await post(gateway, b"", path)).status == 405
    assert (await post(gateway, b"", "/openapi.json", "GET", Host="evil.example")).status == 421
