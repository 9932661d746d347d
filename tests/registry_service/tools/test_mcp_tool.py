import json

from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ListToolsResult

from registry_service.tools import mcp_tool as mcp_tools
from registry_service.tools.definition import Definition, parse_definition
from tests.support.samples import arguments, definition, raw

OBJECT = {"type": "object"}


def parsed(**changes) -> Definition:
    result = parse_definition(raw(definition(**changes)))
    assert isinstance(result, Definition), result
    return result


def tool(**changes):
    return json.loads(mcp_tools.tool("stats", parsed(**changes)))


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


def test_text_is_served_as_it_came():
    schema = '{"type":"object","properties":{"z":{"const":1.0},"a":{"const":9007199254740993}},"required":[]}'
    url = '{"production":{"url":"http://a.test"}}'
    text = f'{{"endpoint":{url},"inputSchema":{schema},"description":"\\u00e9 안녕"}}'
    found = parse_definition(text.encode())
    assert isinstance(found, Definition)
    assert mcp_tools.tool("a", found).decode() == f'{{"name":"a","description":"\\u00e9 안녕","inputSchema":{schema}}}'


properties = st.dictionaries(st.text(max_size=4), st.booleans() | st.just({"type": "string"}), max_size=4)
outputs = st.none() | st.sampled_from([{}, {"type": "array"}]) | properties.map(lambda found: arguments(**found))


@given(properties, outputs, st.sampled_from([None, {"readOnlyHint": False}]), st.none() | st.text("ab", min_size=1))
def test_every_tool_fits_the_official_types(inputs, output, annotations, title):
    changes = {"inputSchema": arguments(**inputs), "outputSchema": output, "annotations": annotations, "title": title}
    ListToolsResult.model_validate({"tools": [tool(**changes)], "ttlMs": 0, "cacheScope": "private"})
