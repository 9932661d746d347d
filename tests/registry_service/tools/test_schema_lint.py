"""Slips in schemas: what an author meant is asked, and nothing that is right is warned of."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry_service.tools.json_schema import schema_faults, warnings_of_schema
from registry_service.tools.schema_lint import KEYWORDS, near
from tests.support.samples import arguments, raw

DRAFT_04 = "http://json-schema.org/draft-04/schema#"


def warned(schema, *, of_arguments=True):
    assert schema_faults(raw(schema), schema, "", arguments=of_arguments) == []
    return [tuple(warning) for warning in warnings_of_schema(schema, "", of_arguments=of_arguments)]


def pointers(schema, *, of_arguments=True):
    return [pointer for pointer, _ in warned(schema, of_arguments=of_arguments)]


@pytest.mark.parametrize(
    "place", [lambda child: child, lambda child: {"anyOf": [child]}, lambda child: {"items": child}]
)
@pytest.mark.parametrize("keyword", ["description", "or else the whole year", "x-note", "title", "format", "$comment"])
def test_a_keyword_that_is_null_is_a_fault(place, keyword):
    """YAML makes one of a text with a comma inside braces, and clients refuse the whole list for it."""
    schema = arguments(a=place({"type": "string", keyword: None}))
    found = schema_faults(raw(schema), schema, "/s", arguments=True)
    assert found
    assert all(fault.pointer.startswith("/s/properties/a") for fault in found)


def test_a_null_keyword_says_how_it_came_about():
    schema = arguments(month={"type": "integer", "description": "월 · the month", "or else the whole year": None})
    (fault,) = schema_faults(raw(schema), schema, "/s", arguments=True)
    assert fault.pointer == "/s/properties/month/or else the whole year"
    assert "needs quotes" in fault.message


@pytest.mark.parametrize("schema", [{"const": None}, {"default": None}, {"enum": [None]}, {"examples": [None]}])
def test_null_is_a_value_like_any_other(schema):
    assert warned(arguments(a=schema)) == []


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("requried", "required"),
        ("additionalproperties", "additionalProperties"),
        ("additional_properties", "additionalProperties"),
        ("min_length", "minLength"),
        ("desciption", "description"),
        ("proprties", "properties"),
        ("one_of", "oneOf"),
        ("exclusiveMinimun", "exclusiveMinimum"),
    ],
)
def test_a_misspelt_keyword_is_found_and_the_right_one_suggested(keyword, meant):
    (found,) = warned(arguments(a={keyword: 1}))
    assert found[0] == f"/properties/a/{keyword}"
    assert found[1].endswith(f"; is {meant} meant?")


def test_an_unknown_keyword_that_is_near_none_is_warned_of_without_a_suggestion():
    (found,) = warned(arguments(a={"zzzzzz": 1}))
    assert found == ("/properties/a/zzzzzz", '"zzzzzz" is not a keyword of JSON Schema, and changes nothing')


def test_names_of_properties_and_data_are_no_keywords():
    schema = arguments(requried={"default": {"requried": 1}, "enum": [{"requried": 1}], "x-anything": 1, "example": 2})
    assert warned(schema | {"$defs": {"whatever": {"const": {"typo": 1}}}}) == []
    assert warned(arguments(a={"id": "http://a.test/"}) | {"$schema": DRAFT_04}) == []
    assert pointers(arguments(a={"id": "text"})) == ["/properties/a/id"]


@pytest.mark.parametrize(
    ("schema", "at", "part"),
    [
        ({"required": ["txt"], "additionalProperties": False}, "/required/0", "forbids; is text meant?"),
        ({"required": ["zzz"], "additionalProperties": False}, "/required/0", "additionalProperties forbids"),
        ({"required": ["text", "Text"]}, "/required/1", "is text meant?"),
        ({"properties": {"text": False}, "required": ["text"]}, "/properties/text", "no value is allowed"),
    ],
)
def test_what_is_required_and_cannot_be_given_is_found(schema, at, part):
    ((pointer, message),) = warned({**arguments(text={"type": "string"}), **schema})
    assert pointer == at
    assert part in message


@pytest.mark.parametrize(
    "schema",
    [
        {"required": ["other"]},
        {"required": ["x-a"], "additionalProperties": False, "patternProperties": {"^x-": {}}},
        {"required": ["txt"], "allOf": [{"properties": {"txt": {}}}]},
        {"required": ["text"], "additionalProperties": False},
    ],
)
def test_what_is_required_and_can_be_given_is_not(schema):
    assert warned({**arguments(text={"type": "string"}), **schema}) == []


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"enum": ["a", "b"], "default": "c"}, "/default"),
        ({"type": "integer", "default": "1"}, "/default"),
        ({"type": "string", "maxLength": 2, "examples": ["ab", "abc"]}, "/examples/1"),
        ({"$ref": "#/$defs/short", "default": "abc"}, "/default"),
        ({"type": "string", "enum": ["on", False]}, "/enum/1"),
        ({"type": ["string", "null"], "const": 1}, "/const"),
        ({"minimum": 2, "maximum": 1}, "/minimum"),
        ({"minLength": 2, "maxLength": 1}, "/minLength"),
        ({"minItems": 2, "maxItems": 1}, "/minItems"),
        ({"minProperties": 2, "maxProperties": 1}, "/minProperties"),
        ({"type": "string", "format": "date_time"}, "/format"),
        ({"type": "string", "format": "e-mail"}, "/format"),
    ],
)
def test_values_that_cannot_be_right_are_found(schema, at):
    assert pointers(arguments(a=schema) | {"$defs": {"short": {"maxLength": 2}}}) == [f"/properties/a{at}"]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["a", "b"], "default": "a"},
        {"type": "number", "default": 1, "examples": [1.5, 2]},
        {"type": "integer", "enum": [1, 2.0]},
        {"minimum": 1, "maximum": 1},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "phone"},
    ],
)
def test_values_that_can_be_right_are_not(schema):
    assert warned(arguments(a=schema)) == []


def test_an_object_without_properties_is_warned_of_for_arguments_alone():
    assert pointers({"type": "object"}) == [""]
    assert pointers({"type": "object", "properties": {}}) == []
    assert pointers({"type": "object", "allOf": [{"properties": {"a": {}}}]}) == []
    assert pointers({"type": "object"}, of_arguments=False) == []


@given(st.sampled_from(sorted(KEYWORDS)), st.text(max_size=12))
def test_suggestions_are_names_that_are_known(keyword, text):
    for name in (keyword.upper(), keyword + "x", text):
        suggestion = near(name, KEYWORDS)
        assert suggestion == "" or suggestion.removeprefix("; is ").removesuffix(" meant?") in KEYWORDS


def wide(number):
    return {"type": "object", "properties": {f"p{name}": {"type": "string"} for name in range(number)}}


@pytest.mark.parametrize(
    "schema",
    [
        arguments(a={"uniqueItems": True, "default": [1 + number / 3 for number in range(10_000)]}),
        arguments(a={"pattern": "^(a|b){1,2000}$", "default": "ab" * 50_000}),
        arguments(a={"items": {"pattern": "^(a|b){1,2000}$"}, "examples": [["ab" * 1000]] * 100}),
        {**wide(400), "required": [f"q{name}" for name in range(8_000)]},
        {**wide(5_000), "required": [f"q{name}" for name in range(8_000)]},
        {**wide(400), "required": [f"q{name}" for name in range(8_000)], "additionalProperties": False},
        {**arguments(**{"a" * 50_000: {}}), "required": ["a" * 49_000 + "b"]},
        arguments(a={f"unknown{number}": 1 for number in range(8_000)}),
        arguments(**{f"p{number}": {"format": f"none{number}"} for number in range(4_000)}),
        {
            "$defs": {"big": wide(500)},
            **arguments(**{f"p{n}": {"$ref": "#/$defs/big", "default": {}} for n in range(500)}),
        },
        {
            "$defs": {"big": {"enum": list(range(20_000))}},
            **arguments(**{f"p{number}": {"$ref": "#/$defs/big", "default": 1} for number in range(2_000)}),
        },
    ],
    ids=lambda _: "schema",
)
def test_no_schema_takes_long_to_be_looked_at(schema):
    began = time.process_time()
    warnings_of_schema(schema, "", of_arguments=True)
    assert time.process_time() - began < 0.9


def test_a_value_that_is_cheap_to_check_is_checked_beside_one_that_is_not():
    costly = {"uniqueItems": True, "default": [1 + number / 3 for number in range(5_000)] * 2}
    assert pointers(arguments(a=costly, b={"type": "string", "pattern": "^a", "default": "b"})) == [
        "/properties/b/default"
    ]


def test_a_name_is_suggested_twenty_times_and_no_more():
    schema = {**wide(30), "required": [f"P_{number}" for number in range(30)], "additionalProperties": False}
    messages = [message for _, message in warned(schema)]
    assert [message.endswith("meant?") for message in messages] == [True] * 20 + [False] * 10
