import json
import subprocess
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ListToolsResult

from registry_service.tools import mcp_tool as mcp_tools
from registry_service.tools.definition import Definition, parse_definition
from tests.support.node_setup import NODE
from tests.support.samples import DRAFT_07, arguments, definition, raw

OBJECT = {"type": "object"}


def parsed(**changes) -> Definition:
    result = parse_definition(raw(definition(**changes)))
    assert isinstance(result, Definition), result
    return result


def tool(**changes):
    return json.loads(mcp_tools.tool("stats", parsed(**changes)))


def legacy(**changes):
    return json.loads(mcp_tools.legacy_tool("stats", parsed(**changes)) or mcp_tools.tool("stats", parsed(**changes)))


def test_serves_what_mcp_defines_and_nothing_else():
    whole = definition(
        title="통계",
        outputSchema=OBJECT,
        annotations={"readOnlyHint": False, "idempotentHint": False, "extra": 1},
        icons=[{"src": "https://x.test/i.png"}],
        _meta={"kr.example/a": 1},
        timeout="10s",
        maxConcurrency=5,
        access={"plans": ["pro"]},
        requiredClientCapabilities={"roots": {}},
    )
    served = tool(**whole)
    names = ["name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "_meta"]
    assert list(served) == names
    assert served == {"name": "stats"} | {name: whole[name] for name in names[1:]}


def test_absent_members_stay_absent():
    assert list(tool()) == ["name", "description", "inputSchema"]
    assert mcp_tools.legacy_tool("stats", parsed()) == b""


def test_text_is_served_as_it_came():
    schema = '{"type":"object","properties":{"z":{"const":1.0},"a":{"const":9007199254740993}},"required":[]}'
    url = '{"production":{"url":"http://a.test"}}'
    text = f'{{"endpoint":{url},"inputSchema":{schema},"description":"\\u00e9 안녕"}}'
    found = parse_definition(text.encode())
    assert isinstance(found, Definition)
    assert mcp_tools.tool("a", found).decode() == f'{{"name":"a","description":"\\u00e9 안녕","inputSchema":{schema}}}'


def test_boolean_properties_are_kept_and_written_as_objects_for_old_clients():
    schema = arguments(raw=True, never=False, deep=arguments(x=True)) | {"required": ["raw"]}
    assert tool(inputSchema=schema, outputSchema=schema)["inputSchema"] == schema
    shaped = legacy(inputSchema=schema, outputSchema=schema)
    expected = schema | {"properties": schema["properties"] | {"raw": {}, "never": {"not": {}}}}
    assert shaped["inputSchema"] == shaped["outputSchema"] == expected
    assert list(shaped["inputSchema"]) == list(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array"},
        {"type": ["object"]},
        {"oneOf": [OBJECT]},
        OBJECT | {"$schema": "http://json-schema.org/draft-04/schema#"},
        arguments(a={"pattern": r"^\p{Hangul}+$"}),
        arguments(a={"items": {"patternProperties": {r"^\-x": {}}}}),
        arguments(a={"nullable": True}),
        OBJECT | {"$defs": {"a": {"$id": "a"}}},
        arguments(a={"enum": []}),
    ],
)
def test_an_output_schema_that_old_clients_cannot_take_is_left_out_for_them(schema):
    assert tool(outputSchema=schema)["outputSchema"] == schema
    assert "outputSchema" not in legacy(outputSchema=schema)
    assert legacy(outputSchema=schema) == tool()


@pytest.mark.parametrize(
    "schema",
    [
        OBJECT,
        OBJECT | {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        OBJECT | {"$schema": DRAFT_07, "definitions": {"a": {}}},
        arguments(id={"type": "string"}, nullable={}, a={"$ref": "#/$defs/a"}) | {"$defs": {"a": {}}},
        arguments(date={"pattern": r"^\d{4}-\d{2}-\d{2}$"}, name={"pattern": "^[가-힣A-Z_.-]{1,10}?(?:x|y)*$"}),
    ],
)
def test_an_output_schema_that_every_client_takes_stays(schema):
    assert legacy(outputSchema=schema)["outputSchema"] == schema


properties = st.dictionaries(st.text(max_size=4), st.booleans() | st.just({"type": "string"}), max_size=4)
outputs = st.none() | st.sampled_from([{}, {"type": "array"}]) | properties.map(lambda found: arguments(**found))


@given(properties, outputs, st.sampled_from([None, {"readOnlyHint": False}]), st.none() | st.text("ab", min_size=1))
def test_every_tool_fits_the_official_types(inputs, output, annotations, title):
    changes = {"inputSchema": arguments(**inputs), "outputSchema": output, "annotations": annotations, "title": title}
    for served in (tool(**changes), legacy(**changes)):
        ListToolsResult.model_validate({"tools": [served], "ttlMs": 0, "cacheScope": "private"})
    for schema in (legacy(**changes)["inputSchema"], legacy(**changes).get("outputSchema", OBJECT)):
        assert schema["type"] == "object"
        assert all(isinstance(value, dict) for value in schema.get("properties", {}).values())


PIECES = [*r"ab1-^$.*+?|()[]{},:=!<>\\dwsbBpLAzuxk/&#_ i한", *("(?:", "(?=", "(?<n>", r"\p{L}", "{2}", r"\d", r"\w")]


def reaches_old_clients(pattern):
    found = parse_definition(raw(definition(outputSchema=arguments(a={"pattern": pattern}))))
    return isinstance(found, Definition) and mcp_tools.legacy_tool("stats", found) == b""


def test_patterns_that_old_clients_get_are_regular_expressions_of_javascript():
    """Proven with Node itself, for random patterns that JSON Schema takes and that this module lets pass."""
    random = Random(20261130)
    generated = {"".join(random.choices(PIECES, k=random.randint(1, 7))) for _ in range(20_000)}
    passed = [pattern for pattern in sorted(generated) if reaches_old_clients(pattern)]
    assert len(passed) > 1000
    script = (
        "for (const pattern of JSON.parse(require('fs').readFileSync(0)))"
        " { try { RegExp(pattern, 'u') } catch { console.log(pattern) } }"
    )
    ended = subprocess.run(
        [NODE, "-e", script], input=json.dumps(passed), capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == []
