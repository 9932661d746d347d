import http.server
import threading
import time
from collections.abc import Callable
from random import choices, random
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import find_invalid_x_mcp_header

from registry_service.tools.json_document import token
from registry_service.tools.json_schema import DIALECTS, MAX_SCHEMA_BYTES, schema_faults, warnings_of_schema
from registry_service.tools.schema_check import MAX_VIOLATIONS, MAX_VIOLATIONS_BYTES, SchemaCheck
from registry_service.tools.schema_walk import positions
from registry_service.tools.violation import Violation
from tests.support.samples import DRAFT_07, arguments, nested, raw


def faults(schema, *, of_arguments=True):
    return [tuple(fault) for fault in schema_faults(raw(schema), schema, "/s", arguments=of_arguments)]


def pointers(schema, **options):
    return [pointer for pointer, _ in faults(schema, **options)]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": False},
        arguments(raw=True, never=False),
        arguments(title={"type": "string"}, type={"type": "string"}, default={}, id={}, enum={}, const={}),
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "$schema": DRAFT_07, "definitions": {"a": {"type": "string"}}, "$ref": "#/definitions/a"},
        {"type": "object", "$schema": "http://json-schema.org/draft-04/schema", "required": ["a"]},
        {"type": "object", "$schema": "http://json-schema.org/draft-06/schema#"},
        {"type": "object", "$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#/$defs/a"}
        | {"$defs": {"a": {}}},
        arguments(a={"$ref": "#/$defs/a"}) | {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
        arguments(a={"$ref": "#/$defs/a%20b"}) | {"$defs": {"a b": {}}},
        arguments(a={"$ref": "item"}) | {"$id": "https://x.test/root", "$defs": {"item": {"$id": "item"}}},
        arguments(a={"$ref": "#name"}) | {"$defs": {"a": {"$anchor": "name"}}},
        arguments(a={"const": {"$ref": "file:///etc/passwd"}, "default": {"$ref": "http://x.test/"}}),
        arguments(**{"$ref": {"type": "string"}, "x-mcp-header": {"type": "string"}}),
        arguments(a={"pattern": r"^\d?[가-힣]+$", "patternProperties": {r"^\w+$": {}}}),
        nested(63),
    ],
)
def test_takes_what_is_a_schema_of_arguments(schema):
    assert faults(schema) == []


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"oneOf": [{}]}, {"type": ["object", "null"]}])
def test_any_schema_may_describe_the_output_but_not_the_arguments(schema):
    assert faults(schema, of_arguments=False) == []
    assert pointers(schema) == ["/s/type"]


@pytest.mark.parametrize("schema", [True, False, None, [], "x", 5])
def test_refuses_what_is_no_object(schema):
    assert pointers(schema) == ["/s"]
    assert pointers(schema, of_arguments=False) == ["/s"]


def test_tells_every_fault_with_its_place():
    schema = arguments(a={"type": "strin"}, b=5, c={"pattern": "("}, d={"required": [1, 1]}) | {"minProperties": -1}
    assert sorted(set(pointers(schema))) == [
        *("/s/minProperties", "/s/properties/a/type", "/s/properties/b", "/s/properties/c/pattern"),
        *("/s/properties/d/required", "/s/properties/d/required/0", "/s/properties/d/required/1"),
    ]


@pytest.mark.parametrize(
    "uri", ["http://json-schema.org/draft-03/schema#", "https://json-schema.org/draft-07/schema", "urn:x", "", 5, None]
)
def test_refuses_a_dialect_it_does_not_know(uri):
    assert pointers(arguments() | {"$schema": uri}) == ["/s/$schema"]
    assert pointers(arguments(a={"$schema": uri})) == ["/s/properties/a/$schema"]


def test_the_dialect_decides_what_is_valid():
    by_flag = arguments(a={"maximum": 5, "exclusiveMaximum": True})
    assert pointers(by_flag) == ["/s/properties/a/exclusiveMaximum"]
    assert faults(by_flag | {"$schema": "http://json-schema.org/draft-04/schema#"}) == []


def test_bounds_depth_and_size():
    assert pointers(nested(65)) == ["/s" + "/properties/a" * 32]
    assert pointers({"type": "object", "description": "x" * MAX_SCHEMA_BYTES}) == ["/s"]


@pytest.fixture
def fetched():
    """A web server, and the paths that were asked of it."""
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


def test_fetches_nothing(fetched, tmp_path):
    url, paths = fetched
    (tmp_path / "schema.json").write_text("{}")
    for remote in (f"{url}/a", f"{url}/a#/b", f"file://{tmp_path}/schema.json", f"//{url[7:]}/c"):
        assert pointers(arguments(a={"$ref": remote})) == ["/s/properties/a/$ref"]
        assert pointers(arguments(a={"$ref": "#/x"}) | {"x": {"$ref": remote}})
        assert pointers(arguments() | {"$schema": remote}) == ["/s/$schema"]
        assert faults(arguments(a={"$id": remote.partition("#")[0]})) == []
        with pytest.raises(ValueError, match=r"not present|unknown dialect"):
            SchemaCheck(raw(arguments(a={"$ref": remote}))).compile()
    assert pointers(arguments(a={"$ref": "b"}) | {"$id": f"{url}/root"}) == ["/s/properties/a/$ref"]
    assert paths == []


@pytest.mark.parametrize("keyword", ["items", "not", "if", "additionalProperties", "contains", "propertyNames"])
@pytest.mark.parametrize("reference", ["$ref", "$dynamicRef"])
def test_finds_references_wherever_a_schema_can_stand(keyword, reference):
    remote = {reference: "http://169.254.169.254/"}
    assert pointers(arguments(a={keyword: remote})) == [f"/s/properties/a/{keyword}/{reference}"]
    assert pointers(arguments(a={"anyOf": [{}, remote]})) == [f"/s/properties/a/anyOf/1/{reference}"]
    assert pointers(arguments() | {"$defs": {"a/b": remote}}) == [f"/s/$defs/a~1b/{reference}"]


def test_a_reference_that_names_nothing_is_told_with_its_place():
    schema = arguments(a={"$ref": "#/$defs/a"}, b={"items": {"$ref": "#b"}}, c={"$ref": "#/$defs/c"}) | {
        "$defs": {"c": {}}
    }
    assert faults(schema) == [
        ("/s/properties/a/$ref", "names nothing in this schema"),
        ("/s/properties/b/items/$ref", "names nothing in this schema"),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
        {"anyOf": [{"not": {"$ref": "#"}}]},
        {"allOf": [{"$ref": "#here"}], "$anchor": "here"},
        {"$id": "https://x.test/a", "allOf": [{"$ref": "a"}]},
    ],
)
def test_refuses_a_reference_without_end(schema):
    assert [message for _, message in faults({"type": "object", **schema})] == ["refers to itself without end"]


headers = st.sampled_from(["A", "a", "B", "", "A b", "é", "Tenant-Id", 5, None])
types = st.sampled_from(["string", "integer", "boolean", "number", "object", ["string"], None])
leaf = st.builds(
    lambda header, kind: {
        name: value for name, value in (("x-mcp-header", header), ("type", kind)) if value is not None
    },
    headers,
    types,
)
annotated = st.recursive(
    leaf,
    lambda below: st.builds(
        lambda schema, keyword, child: (
            schema | {keyword: {"p": child} if keyword in ("properties", "$defs") else child}
        ),
        leaf,
        st.sampled_from(["properties", "items", "not", "$defs"]),
        below,
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["p", "q", "r"]), annotated, max_size=3))
def test_judges_mirrored_headers_as_the_official_client_does(properties):
    """Clients of 2026-07-28 drop a tool whose annotations they find invalid."""
    schema = arguments(**properties)
    ours = [pointer for pointer in pointers(schema) if pointer.endswith("/x-mcp-header")]
    assert bool(ours) == (find_invalid_x_mcp_header(schema) is not None)


def test_mirrored_headers_are_not_looked_for_in_the_output():
    assert faults({"type": "array", "items": {"x-mcp-header": "A"}}, of_arguments=False) == []


names = st.text("abc", min_size=1, max_size=2)
schemas = st.recursive(
    st.just(True) | st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "null", "array", "object"])}),
    lambda below: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", ["array", "string"]]),
            "properties": st.dictionaries(names, below, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "items": below,
            "anyOf": st.lists(below, min_size=1, max_size=2),
            "additionalProperties": below,
        },
    ),
    max_leaves=6,
)
instances = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(names, below, max_size=3),
    max_leaves=8,
)


@given(schemas.filter(lambda schema: isinstance(schema, dict)), instances)
def test_decides_as_the_reference_implementation_does(schema, instance):
    assert faults(schema, of_arguments=False) == []
    expected = jsonschema.Draft202012Validator(schema).is_valid(instance)
    assert (SchemaCheck(raw(schema)).violations(instance) == []) is expected


@given(schemas)
def test_positions_are_where_their_pointers_say(schema):
    root: dict[str, object] = {"properties": {"a/b~": schema}, "allOf": [schema]}
    for position in positions(root):
        node: Any = root
        for part in position.pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            node = node[int(name)] if isinstance(node, list) else node[name]
        assert node is position.schema


def test_the_dialect_of_a_check_is_that_of_the_schema():
    tuples = {"type": "object", "properties": {"a": {"items": [{"type": "string"}]}}}
    assert SchemaCheck(raw(tuples | {"$schema": DRAFT_07})).violations({"a": [1]})
    for uri, dialect in DIALECTS.items():
        check = SchemaCheck(raw({"$schema": uri + "#", dialect.id_keyword: "http://x.test/", "type": "object"}))
        assert [violation.pointer for violation in check.violations(1)] == [""]


def test_numbers_are_compared_exactly():
    check = SchemaCheck(b'{"const":9007199254740993}')
    assert check.violations(9007199254740993) == []
    assert check.violations(9007199254740992) != []
    assert SchemaCheck(b'{"type":"integer"}').violations(1.0) == []


def test_distinct_falsy_values_are_distinct():
    kinds = {"flag": "boolean", "q": "string", "n": "integer", "x": "null"}
    check = SchemaCheck(raw(arguments(**{name: {"type": kind} for name, kind in kinds.items()})))
    assert check.violations({"flag": False, "q": "", "n": 0, "x": None}) == []
    assert len(check.violations({"flag": 0, "q": None, "n": False, "x": ""})) == 4


def test_violations_name_the_place_and_hold_no_value():
    check = SchemaCheck(raw(arguments(**{"a/b": {"type": "integer"}}, c={"enum": ["x"]}) | {"required": ["d"]}))
    violations = check.violations({"a/b": "a secret", "c": "another secret" * 1000})
    assert sorted(violation.pointer for violation in violations) == ["", "/a~1b", "/c"]
    assert "secret" not in str(violations)
    assert Violation("", '"d" is a required property', "required", {"name": "d"}) in violations


def test_a_tool_without_arguments_says_so():
    check = SchemaCheck(b'{"type":"object","additionalProperties":false}')
    assert check.violations({"a": 1}) == [Violation("", "no properties are allowed here", "noProperties")]


@given(st.dictionaries(st.text(min_size=1, max_size=2000), st.text(max_size=20), max_size=60))
def test_violations_are_bounded(values):
    for schema in ({"additionalProperties": {"type": "integer"}}, {"properties": {}, "additionalProperties": False}):
        violations = SchemaCheck(raw(schema)).violations(values)
        assert bool(violations) == bool(values)
        assert len(violations) <= MAX_VIOLATIONS
        assert len(msgspec.json.encode([violation.fact() for violation in violations])) <= MAX_VIOLATIONS_BYTES + 1


def test_a_hostile_value_costs_little():
    check = SchemaCheck(raw(arguments(a={"items": {"type": "string"}})))
    began = time.monotonic()
    assert [violation.pointer for violation in check.violations({"a": [1] * 1_000_000})] == ["/a/0"]
    assert time.monotonic() - began < 2


LOOKING_AROUND = [r"(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{8,}", r"^(a|a)*\1b$", r"(?<!a)b", r"(?!a)", r"(?<=/)b"]


@pytest.mark.parametrize("pattern", LOOKING_AROUND)
@pytest.mark.parametrize("of_arguments", [True, False])
def test_a_regular_expression_that_looks_around_is_taken_and_not_checked(pattern, of_arguments):
    """A caller's string of 50 000 characters held up everybody for 9 seconds when it was."""
    schema = arguments(a={"pattern": pattern, "maxLength": 3}, b={"patternProperties": {"^ok$": {}, pattern: {}}})
    assert faults(schema, of_arguments=of_arguments) == []
    told = [tuple(warning) for warning in warnings_of_schema(schema, "/s", of_arguments=of_arguments)]
    places = ["/properties/a/pattern", "/properties/b/patternProperties" + token(pattern)]
    message = "uses look-around or a backreference: it is served, and not checked"
    assert told == [(f"/s{place}", message) for place in places]
    check = SchemaCheck(raw(schema))
    assert check.violations({"a": "?", "b": {"?": 1}}) == []
    assert [violation.pointer for violation in check.violations({"a": "????"})] == ["/a"]


LOOKS = {"pattern": "(?=x)"}
CLOSED = {"unevaluatedProperties": False}


@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"not": LOOKS}, "a"),
        ({"not": {"not": LOOKS}}, "a"),
        ({"not": {"$ref": "#/$defs/looks"}, "$defs": {"looks": LOOKS}}, "a"),
        ({"not": {"anyOf": [{"type": "integer"}, {"items": LOOKS}]}}, ["a"]),
        ({"oneOf": [LOOKS, {"pattern": "a"}]}, "a"),
        ({"oneOf": [{**LOOKS, "minLength": 2}, {"type": "string"}]}, "aa"),
        ({"if": LOOKS, "then": {"minLength": 2}}, "a"),
        ({"if": LOOKS, "then": {"minLength": 2}, "else": {"maxLength": 1}}, "a"),
        ({"contains": LOOKS, "maxContains": 1}, ["a", "b"]),
        ({"contains": LOOKS, "unevaluatedItems": False}, ["a", "b"]),
        ({"patternProperties": {"(?=x)": {"type": "integer"}}, "additionalProperties": False}, {"x": "a"}),
        ({"propertyNames": LOOKS}, {"a": 1}),
        ({"if": {"properties": {"a": LOOKS}}, "then": {"properties": {"b": True}}, **CLOSED}, {"a": "a", "b": 1}),
        ({"oneOf": [{"properties": {"a": LOOKS}}, {"required": ["b"]}], **CLOSED}, {"a": "a"}),
        ({"dependentSchemas": {"a": {"properties": {"a": LOOKS}}}}, {"a": "a"}),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "patternProperties": {"(?=x)": {}},
                "additionalProperties": False,
            },
            {"x": 1},
        ),
        ({"$schema": DRAFT_07, "if": LOOKS, "else": {"minLength": 2}}, "a"),
    ],
)
def test_nothing_is_refused_for_a_pattern_that_is_not_checked(schema, taken):
    """Wherever the pattern stands: its complement would hold for everything, once the pattern does."""
    assert faults(schema, of_arguments=False) == []
    assert SchemaCheck(raw(schema)).violations(taken) == []


@pytest.mark.parametrize(
    "schema", [{"oneOf": [LOOKS, {"type": "null"}]}, {"if": {"not": LOOKS}, "else": {"type": "string"}}]
)
def test_the_rest_of_a_schema_is_checked_beside_a_pattern_that_is_not(schema):
    schema = {"allOf": [schema], "maxLength": 2, "type": ["string", "null"]}
    assert SchemaCheck(raw(schema)).violations("abc")


def test_a_bad_regular_expression_is_told_as_such():
    assert faults(arguments(a={"pattern": "("})) == [("/s/properties/a/pattern", '"(" is not a "regex"')]


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|a)*b$", r"^[A-Za-z\d]{8,}!$", r"(.*)(.*)(.*)!"])
def test_a_regular_expression_takes_time_in_proportion_to_the_value(pattern):
    began = time.monotonic()
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: False}, "type": "string"}):
        SchemaCheck(raw(schema)).violations({"a" * 50_000 + "?": 1} if "type" in schema else "a" * 50_000 + "?")
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("pattern", [r"a.{0,4000}b", r"(?:a.{0,100}b){60}"])
def test_a_regular_expression_that_compiles_to_too_much_is_refused(pattern):
    schema = arguments(a={"pattern": pattern}, b={"patternProperties": {pattern: {}}})
    message = "compiles to more than 2097152 bytes: repeat less"
    places = ["/properties/a/pattern", "/properties/b/patternProperties" + token(pattern)]
    assert faults(schema) == [(f"/s{place}", message) for place in places]


def test_regular_expressions_together_are_bounded():
    schema = arguments(**{f"p{number}": {"pattern": f"{number}.{{0,1000}}x"} for number in range(10)})
    assert faults(schema) == [("/s", "has patterns that compile to more than 8388608 bytes together")]


COMMON_PATTERNS = [
    r"^[\w-]{1,64}$",
    r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^[가-힣 ]{2,50}$",
]


@pytest.mark.parametrize("schema", [{}, {"pattern": COMMON_PATTERNS[0]}, {"enum": [f"value {n}" for n in range(1000)]}])
def test_usual_arguments_are_checked_at_once(schema):
    check = SchemaCheck(raw(arguments(a=schema, tags={"type": "array", "uniqueItems": True})))
    check.compile()
    assert check.is_light(raw({"a": "x" * 2000, "tags": ["a", 15, 2**53]}))


@pytest.mark.parametrize("pattern", COMMON_PATTERNS)
def test_usual_patterns_are_checked_at_once(pattern):
    check = SchemaCheck(raw(arguments(a={"pattern": pattern})))
    check.compile()
    assert check.is_light(raw({"a": "x" * 2000}))


TREE = {"$defs": {"node": {"properties": {"below": {"anyOf": [{"$ref": "#/$defs/node"}] * 2}}, "required": ["x"]}}}


def deep(levels: int) -> Any:
    """Returns a value that the tree above refuses at its deepest place, after it has looked there by every way."""
    value: Any = {}
    for _ in range(levels):
        value = {"below": value, "x": 1}
    return value


# Of each kind of schema that makes a check slow: a schema, and the worst value for it of about so many bytes.
SLOW: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "states of a pattern": ({"pattern": "[ab]*a[ab]{500}c"}, lambda size: "".join(choices("ab", k=size)) + "c"),
    "repeated class": ({"pattern": "foo.{0,1000}bar"}, lambda size: "foo" * (size // 3) + "\nbar"),
    "many patterns": (
        {"patternProperties": {f"^k{n}_": {} for n in range(200)}},
        lambda size: {f"k{n}": n for n in range(size // 10)},
    ),
    "names of properties": (
        {"propertyNames": {"pattern": "^[ab]*a[ab]{300}$"}},
        lambda size: {f"{'ab' * 100}{n}": n for n in range(size // 200)},
    ),
    "unique long integers": ({"uniqueItems": True}, lambda size: [10**19 + n for n in range(size // 20)]),
    "unique integers beyond 63 bits": ({"uniqueItems": True}, lambda size: [2**63 + n for n in range(size // 20)]),
    "unique long integers in arrays": ({"uniqueItems": True}, lambda size: [[10**30 + n] for n in range(size // 33)]),
    "unique huge integers": ({"uniqueItems": True}, lambda size: [10**4000 + n for n in range(size // 4000)]),
    "unique floats": ({"uniqueItems": True}, lambda size: [random() for _ in range(size // 20)]),
    "unique texts": ({"uniqueItems": True}, lambda size: [str(n) for n in range(size // 8)]),
    "enum of numbers": ({"items": {"enum": [n / 7 for n in range(5000)]}}, lambda size: [4999 / 7] * (size // 18)),
    "enum of arrays": ({"items": {"enum": [[n] for n in range(5000)]}}, lambda size: [[4999]] * (size // 8)),
    "enum of objects": (
        {"items": {"enum": [{"a": n} for n in range(5000)]}},
        lambda size: [{"a": 4999}] * (size // 13),
    ),
    "enum of many kinds": ({"items": {"enum": [*map(str, range(5000)), 1]}}, lambda size: ["4999"] * (size // 8)),
    "const": ({"items": {"const": list(range(1000))}}, lambda size: [list(range(1000))] * (size // 5000)),
    "contains": ({"contains": {"enum": [[n] for n in range(1000)]}}, lambda size: [[-1]] * (size // 6)),
    "dependent names": (
        {"items": {"dependentRequired": {f"p{n}": ["x"] for n in range(5000)}}},
        lambda size: [{}] * (size // 4),
    ),
    "multiples": ({"items": {"multipleOf": 1e-300}}, lambda size: [1e300] * (size // 8)),
    "huge numbers": ({"items": {"minimum": 1}}, lambda size: [10**4000] * (size // 4000)),
    "unevaluated elements": (
        {"unevaluatedItems": {"type": "integer"}, "allOf": [{"contains": {"const": 1}}] * 30},
        lambda size: [*[0] * (size // 3), 1],
    ),
    "all of many": ({"items": {"allOf": [{"type": "integer"}] * 3000}}, lambda size: [1] * (size // 3)),
    "references that fan out": ({**TREE, "$ref": "#/$defs/node"}, lambda size: deep(min(size // 20, 60))),
    "nothing but size": ({"items": {}}, lambda size: [[]] * (size // 4)),
}


@pytest.mark.parametrize(("schema", "value"), SLOW.values(), ids=SLOW)
def test_what_is_checked_at_once_takes_little_time(schema, value):
    """The largest value that counts as light: whatever a caller sends, nobody waits for it longer than that."""
    check = SchemaCheck(raw(schema))
    check.compile()
    size, light = 4, value(4)
    while size < 200_000 and check.is_light(raw(larger := value(size * 5 // 4 + 1))):
        size, light = size * 5 // 4 + 1, larger
    assert min(seconds(check, light) for _ in range(3)) < 0.02
    assert not check.is_light(raw(value(200_000)))


def seconds(check: SchemaCheck, value: Any) -> float:
    began = time.thread_time()
    check.violations(value)
    return time.thread_time() - began


def chain(length: int, link) -> dict[str, Any]:
    """Each subschema applies the one before it as `link` says; the root applies the last."""
    defs: dict[str, Any] = {"n0": {"$anchor": "n0", "type": "integer"}}
    for number in range(1, length):
        defs[f"n{number}"] = {"$anchor": f"n{number}", **link(f"n{number - 1}")}
    return {"$defs": defs, "properties": {"a": link(f"n{length - 1}")}, "type": "object"}


@pytest.mark.parametrize(
    "link",
    [
        lambda name: {"anyOf": [{"$ref": f"#/$defs/{name}"}] * 2},
        lambda name: {"oneOf": [{"$ref": f"#{name}"}, {"not": {"$ref": f"#/$defs/{name}"}}]},
        lambda name: {"$ref": f"#{name}", "if": {"$dynamicRef": f"#/$defs/{name}"}},
        lambda name: {"dependentSchemas": {"x": {"$ref": f"#{name}"}, "y": {"allOf": [{"$ref": f"#{name}"}]}}},
    ],
)
@pytest.mark.parametrize("length", [16, 1000])
def test_refuses_more_applications_to_one_value_than_can_be_waited_for(link, length):
    """Each link doubles what a validator does for one value: 17 of them took 2.7 seconds."""
    found = faults(chain(length, link))
    assert [message for _, message in found] == ["applies more than 10000 subschemas to one value"]
    assert faults(chain(8, link)) == []


def test_chains_and_wide_choices_are_taken():
    wide = {"oneOf": [{"properties": {"kind": {"const": n}}, "allOf": [{"$ref": "#/$defs/base"}]} for n in range(500)]}
    assert faults({"type": "object", "$defs": {"base": {"required": ["kind"]}}, **wide}) == []
    assert faults(chain(1000, lambda name: {"allOf": [{"$ref": f"#{name}"}]})) == []


def test_references_into_a_long_list_are_followed_soon():
    """Each was looked for among all the numbers up to the length of the list."""
    last: dict[str, Any] = {"allOf": [{}] * 6000 + [{"$ref": "#/allOf/5999"}] * 1900}
    began = time.monotonic()
    assert faults({"type": "object", **last}) == []
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("index", ["1", "01", "+1", "0" * 5000 + "1", "%31"])
def test_an_index_is_read_as_the_validator_reads_it(index):
    """Else a chain could hide in the spelling of its references."""
    schema = {"type": "object", "allOf": [{}, {"$ref": f"#/allOf/{index}"}]}
    assert [message for _, message in faults(schema)] == ["refers to itself without end"]


@pytest.mark.parametrize("index", ["2", "-1", "x", "", " 1", "1_0", "9" * 5000, "٣"])
def test_an_index_that_leads_nowhere_is_told(index):
    assert pointers({"type": "object", "allOf": [{}, {"$ref": f"#/allOf/{index}"}]}) == ["/s/allOf/1/$ref"]


def test_an_identifier_leads_to_its_schema():
    doubling = {
        f"n{n}": {"$id": f"n{n}", "anyOf": [{"$ref": f"n{n - 1}"}, {"$ref": f"n{n - 1}#"}]} for n in range(1, 20)
    }
    schema = arguments(a={"$ref": "n19"}) | {"$id": "https://x.test/root", "$defs": {"n0": {"$id": "n0"}, **doubling}}
    assert [message for _, message in faults(schema)] == ["applies more than 10000 subschemas to one value"]
