import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from registry_service.tools.definition import (
    MAX_DEFINITION_BYTES,
    Access,
    Definition,
    Endpoint,
    name_fault,
    parse_definition,
    read_version,
)
from tests.support.samples import arguments, definition, nested, raw


def parsed(**changes) -> Definition:
    result = parse_definition(raw(definition(**changes)), ["lite", "pro"])
    assert isinstance(result, Definition), result
    return result


def faults(**changes):
    result = parse_definition(raw(definition(**changes)), ["lite", "pro"])
    assert isinstance(result, list), "there is no fault"
    return result


def pointers(**changes):
    return [pointer for pointer, _ in faults(**changes)]


@pytest.mark.parametrize("name", ["a", "graph.list", "A_b-c.9", "...", "x" * 128])
def test_takes_a_name(name):
    assert name_fault(name) is None


@pytest.mark.parametrize(
    "name", ["", "New Tool", "a/b", ".", "..", "x" * 129, "echo\n", "\necho", "도구", "a\x00", None, 5, ["a"]]
)
def test_refuses_a_name(name):
    assert name_fault(name)


@pytest.mark.parametrize("text", ["1.0", "v1.0", "1.00", " 1.0\n", "1.0.0", "1", "0!1.0"])
def test_spellings_of_a_version_are_one(text):
    assert read_version(text) == Version("1.0")


@pytest.mark.parametrize(
    ("text", "normal"), [("v1.00", "1.0"), ("1.0-RC.1", "1.0rc1"), ("1.0-1", "1.0.post1"), ("1.0+A-b", "1.0+a.b")]
)
def test_a_version_has_a_normal_form(text, normal):
    assert str(read_version(text)) == normal


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_versions_compare_by_their_numbers(one, other):
    def stripped(numbers):
        return numbers[: max((n + 1 for n, number in enumerate(numbers) if number), default=0)]

    left, right = (read_version(".".join(f"{number:03}" for number in numbers)) for numbers in (one, other))
    assert (left < right) == (stripped(one) < stripped(other))
    assert (left == right) == (stripped(one) == stripped(other))


@pytest.mark.parametrize("text", ["", "latest", "1.x", "1..0", "1.0 beta x", "１.0", "1.0.poſt1", "9" * 65, "9" * 5000])
def test_refuses_a_version(text):
    with pytest.raises(ValueError, match="PEP 440"):
        read_version(text)


@pytest.mark.parametrize("text", [1.1, 1, None, True, ["1.0"]])
def test_a_version_is_a_string(text):
    with pytest.raises(ValueError, match="quotes"):
        read_version(text)


def test_reads_a_small_definition():
    found = parsed()
    assert json.loads(found.document)["description"] == "Counts characters."
    assert found.endpoints == {"production": Endpoint("http://127.0.0.1:9000/stats", "POST", {}, "json")}
    assert (found.timeout, found.max_concurrency, found.access, found.idempotent) == (None, None, None, False)
    assert found.output_schema is None


def test_reads_a_whole_definition():
    whole = {
        "title": "통계",
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": False, "idempotentHint": False, "title": "t", "x": 1},
        "icons": [{"src": "https://x.test/i.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}],
        "_meta": {"kr.example/team": {"name": "나루"}},
        "timeout": "10s",
        "maxConcurrency": 50,
        "access": {"plans": ["pro"], "accounts": ["nrci_" + "a" * 21]},
        "requiredClientCapabilities": {"elicitation": {}},
        "endpoint": {
            "production": {
                "url": "http://t.internal/u/{text}",
                "method": "PUT",
                "headers": {"X-A": "1"},
                "result": "mcp",
            },
            "real_test": {"url": "http://t.test"},
        },
    }
    found = parsed(**whole)
    document = json.loads(found.document)
    assert {name: document[name] for name in whole} == whole
    assert (found.timeout, found.max_concurrency) == (10.0, 50)
    assert found.access == Access(frozenset({"pro"}), frozenset({"nrci_" + "a" * 21}))
    assert found.endpoints["production"] == Endpoint("http://t.internal/u/{text}", "PUT", {"X-A": "1"}, "mcp")
    assert found.endpoints["real_test"].method == "POST"
    for part, name in (
        (found.output_schema, "outputSchema"),
        (found.required_client_capabilities, "requiredClientCapabilities"),
    ):
        assert part is not None
        assert json.loads(part) == whole[name]


def test_text_stays_as_it_came():
    schema = '{"type":"object","properties":{"z":{"const":1.0},"a":{"const":9007199254740993,"title":"\\u00e9"}}}'
    url = '{"production":{"url":"http://a.test"}}'
    text = f'{{"inputSchema": {schema}, "endpoint": {url},\n"description": "한 줄" }}'
    found = parse_definition(text.encode())
    assert isinstance(found, Definition)
    assert found.input_schema == schema.encode()
    compact = f'{{"inputSchema":{schema},"endpoint":{url},"description":"한 줄"}}'
    assert found.document == compact.encode()


@pytest.mark.parametrize(
    ("hints", "idempotent"),
    [
        ({}, False),
        ({"readOnlyHint": True}, True),
        ({"idempotentHint": True}, True),
        ({"readOnlyHint": False, "idempotentHint": False, "destructiveHint": True}, False),
    ],
)
def test_hints_say_whether_a_call_may_be_repeated(hints, idempotent):
    assert parsed(annotations=hints).idempotent is idempotent


def test_every_fault_is_told_at_once():
    found = pointers(
        description=" ",
        title="",
        inputSchema={"type": "array", "properties": {"a": {"type": "x"}}},
        outputSchema={"$ref": "http://x.test/"},
        annotations={"readOnlyHint": "yes"},
        timeout="soon",
        maxConcurrency=0,
        access={"plans": ["gold"]},
        endpoint={"production": {"url": "http://a.test/{b}"}, "staging": {}},
        retries=3,
    )
    assert sorted(found) == [
        *("/access/plans/0", "/annotations/readOnlyHint", "/description", "/endpoint/production/url"),
        *("/endpoint/staging", "/inputSchema/properties/a/type", "/inputSchema/type", "/maxConcurrency"),
        *("/outputSchema/$ref", "/retries", "/timeout", "/title"),
    ]


@pytest.mark.parametrize("name", ["retries", "name", "version", "active", "input_schema", "execution", "a/b"])
def test_an_unknown_member_is_named(name):
    assert [(fault.pointer, f'"{name}"' in fault.message) for fault in faults(**{name: "x"})] == [
        ("/" + name.replace("/", "~1"), True)
    ]


@pytest.mark.parametrize("name", ["description", "inputSchema", "endpoint"])
def test_a_member_that_is_missing_is_named(name):
    assert [fault for fault in faults(**{name: None}) if fault.message == f"needs the member {name}"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"a":1,"a":2}', b"[" * 5000, b"\xff"])
def test_refuses_a_document(text):
    result = parse_definition(text)
    assert isinstance(result, list)
    assert [fault.pointer for fault in result] == [""]


def test_bounds_depth_and_size():
    assert pointers(inputSchema=nested(65)) == ["/inputSchema" + "/properties/a" * 32]
    assert "deeper" in faults(inputSchema=nested(500))[0].message
    assert pointers(description="x" * MAX_DEFINITION_BYTES) == [""]
    assert pointers(description="x" * 20_000) == ["/description"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1.5s", 1.5), (30, 30), (0.25, 0.25), ("10ms", 0.01)],
)
def test_reads_a_timeout(text, seconds):
    assert parsed(timeout=text).timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["", "10", "s", "10 s", "10S", "-1s", "1d", "10s\n", "１s", 0, -1, 1e9, "0s", "1ms", "25h", True, [], {}]
)
def test_refuses_a_timeout(value):
    assert pointers(timeout=value) == ["/timeout"]


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, "5", True, 10**30])
def test_refuses_a_limit_of_concurrency(value):
    assert pointers(maxConcurrency=value) == ["/maxConcurrency"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([], ["/access"]),
        ({}, ["/access"]),
        ({"plans": []}, ["/access"]),
        ({"plans": "pro"}, ["/access/plans"]),
        ({"plans": ["pro", "gold", 5]}, ["/access/plans/1", "/access/plans/2"]),
        ({"accounts": ["nrci_" + "a" * 21, "nrci_short", ""]}, ["/access/accounts/1", "/access/accounts/2"]),
        ({"plans": ["pro"], "users": ["x"]}, ["/access/users"]),
    ],
)
def test_refuses_an_access(value, found):
    assert pointers(access=value) == found


def test_plans_are_checked_only_where_they_are_known():
    text = raw(definition(access={"plans": ["gold"]}))
    assert isinstance(parse_definition(text), Definition)
    assert isinstance(parse_definition(text, ["pro"]), list)


def test_access_admits_by_plan_or_by_account():
    access = Access(frozenset({"pro"}), frozenset({"nrci_x"}))
    assert access.admits("nrci_y", "pro")
    assert access.admits("nrci_x", "lite")
    assert not access.admits("nrci_y", "lite")


@pytest.mark.parametrize("name", ["title", "annotations", "icons", "_meta", "outputSchema", "timeout", "access"])
def test_no_member_is_null(name):
    text = raw(definition() | {name: None})
    result = parse_definition(text)
    assert isinstance(result, list)
    assert [fault.pointer for fault in result] == [f"/{name}"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"annotations": {"title": None, "x": {"y": None}}},
            ["/annotations/title", "/annotations/x/y", "/annotations/title"],
        ),
        ({"annotations": []}, ["/annotations"]),
        ({"icons": {}}, ["/icons"]),
        ({"icons": ["x", {}, {"src": "file:///x"}]}, ["/icons/0", "/icons/1/src", "/icons/2/src"]),
        ({"icons": [{"src": "data:x", "theme": "red", "sizes": "1x1"}]}, ["/icons/0/sizes", "/icons/0/theme"]),
        ({"_meta": {"a": None}}, ["/_meta/a"]),
        ({"_meta": "x"}, ["/_meta"]),
        ({"requiredClientCapabilities": []}, ["/requiredClientCapabilities"]),
        ({"requiredClientCapabilities": {"roots": True}}, ["/requiredClientCapabilities/roots"]),
    ],
)
def test_refuses_what_clients_would_stumble_over(changes, found):
    assert pointers(**changes) == found


def test_a_broken_template_is_a_fault():
    assert pointers(endpoint={"production": {"url": "http://a.test/{user"}}) == ["/endpoint/production/url"]
    assert pointers(inputSchema=arguments(), endpoint={"production": {"url": "http://a.test/{text}"}}) == [
        "/endpoint/production/url"
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=6,
)
MEMBERS = ["description", "title", "inputSchema", "outputSchema", "annotations", "icons", "_meta", "timeout"]
MEMBERS += ["maxConcurrency", "access", "requiredClientCapabilities", "endpoint"]
keywords = [
    "type",
    "$schema",
    "$ref",
    "$id",
    "properties",
    "allOf",
    "pattern",
    "required",
    "production",
    "url",
    "headers",
]


@given(st.dictionaries(st.sampled_from(MEMBERS), json_values | st.dictionaries(st.sampled_from(keywords), json_values)))
def test_any_document_is_read_or_refused_with_faults(changes):
    result = parse_definition(raw(definition() | changes))
    assert result
    if isinstance(result, list):
        assert all(fault.pointer == "" or fault.pointer.startswith("/") for fault in result)
        assert all(fault.message for fault in result)
