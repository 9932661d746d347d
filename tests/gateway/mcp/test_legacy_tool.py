"""The form of a tool for clients of older revisions, held to their official types and to Node itself."""

import json
import subprocess
from random import Random

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ListToolsResult

from gateway.mcp.legacy_tool import LegacyTools, legacy_tool
from tests.support.node_setup import NODE
from tests.support.samples import DRAFT_07, arguments

OBJECT = {"type": "object"}


def tool(**changes):
    whole = {"name": "stats", "description": "d", "inputSchema": arguments(text={"type": "string"}), **changes}
    return {name: value for name, value in whole.items() if value is not None}


def text(**changes):
    return json.dumps(tool(**changes), ensure_ascii=False, separators=(",", ":")).encode()


def legacy(**changes):
    return json.loads(legacy_tool(text(**changes)))


def test_a_tool_that_every_client_takes_is_the_same_text():
    schema = b'{"type":"object","properties":{"z":{"const":1.0},"a":{"const":9007199254740993}},"required":[]}'
    whole = b'{"name":"a","description":"\\u00e9","inputSchema":' + schema + b',"outputSchema":' + schema + b"}"
    assert legacy_tool(whole) == whole


def test_what_need_not_change_keeps_its_text():
    odd = b'{"name":"a","inputSchema":{"type":"object","properties":{"b":true,"n":{"const":1.0}}},"_meta":{"k/n":1e2}}'
    shaped = b'{"name":"a","inputSchema":{"type":"object","properties":{"b":{},"n":{"const":1.0}}},"_meta":{"k/n":1e2}}'
    assert legacy_tool(odd) == shaped


def test_tools_are_shaped_once_and_known_again():
    tools = LegacyTools()
    for _ in range(2):
        for changes in ({}, {"outputSchema": {"type": "array"}}):
            assert tools.shaped(text(**changes)) == legacy_tool(text(**changes))
    for number in range(5000):
        tools.shaped(text(title=str(number)))
    assert len(tools._known) == 4096


def test_boolean_properties_are_kept_and_written_as_objects_for_old_clients():
    schema = arguments(raw=True, never=False, deep=arguments(x=True)) | {"required": ["raw"]}
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
    ListToolsResult.model_validate({"tools": [legacy(**changes)], "ttlMs": 0, "cacheScope": "private"})
    for schema in (legacy(**changes)["inputSchema"], legacy(**changes).get("outputSchema", OBJECT)):
        assert schema["type"] == "object"
        assert all(isinstance(value, dict) for value in schema.get("properties", {}).values())


PIECES = [*r"ab1-^$.*+?|()[]{},:=!<>\\dwsbBpLAzuxk/&#_ i한", *("(?:", "(?=", "(?<n>", r"\p{L}", "{2}", r"\d", r"\w")]


def reaches_old_clients(pattern):
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions())
    except jsonschema_rs.ValidationError:
        return False
    return "outputSchema" in legacy(outputSchema=arguments(a={"pattern": pattern}))


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
