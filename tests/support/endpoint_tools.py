"""Tools on endpoints, for tests of the one that calls them."""

import json
from ipaddress import ip_network
from typing import Any

from registry_service.tools.active_tool import ActiveTool, Running
from registry_service.tools.definition import Definition, parse_definition
from registry_service.tools.schema_check import SchemaCheck
from tests.support.samples import definition, raw

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
CALL_ID = "0123456789abcdef0123456789abcdef"
LIMIT = 1_000_000


def make_tool(url, *, names=(), idempotent=False, output=None, **endpoint):
    parsed = parse_definition(
        raw(
            definition(
                inputSchema={"type": "object", "properties": {name: {} for name in names}},
                outputSchema=output,
                annotations={"idempotentHint": True} if idempotent else None,
                endpoint={"production": {"url": url, **endpoint}},
            )
        )
    )
    assert isinstance(parsed, Definition), parsed
    check = SchemaCheck(parsed.input_schema)
    promised = None if parsed.output_schema is None else SchemaCheck(parsed.output_schema)
    return ActiveTool("tool", "1.0.0", parsed, b"", check, promised, Running())


def text(answer):
    (block,) = json.loads(answer.content)
    return block["text"]


def pointers(error: Any):
    return [violation["pointer"] for violation in error.facts["violations"]]
