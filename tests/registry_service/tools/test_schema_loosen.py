"""Loosened schemas take whatever the schema takes, held to the engine that knows look-around."""

import json

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from registry_service.tools.json_schema import schema_faults
from registry_service.tools.schema_check import SchemaCheck
from tests.support.samples import raw

LEAVES = st.sampled_from(
    [
        *({}, True, False, {"type": "string"}, {"minLength": 2}, {"const": "ab"}, {"required": ["a"]}, {"minItems": 1}),
        *({"pattern": "(?=b)"}, {"pattern": "(?!a)."}, {"pattern": "^a"}, {"$ref": "#/$defs/looks"}),
    ]
)


def grown(below):
    pair, few = st.tuples(below, below).map(list), st.lists(below, min_size=1, max_size=3)
    names = st.sampled_from(["a", "b"])
    return st.one_of(
        st.builds(lambda schema: {"not": schema}, below),
        st.builds(lambda keyword, schemas: {keyword: schemas}, st.sampled_from(["allOf", "anyOf", "oneOf"]), few),
        st.builds(lambda condition, schemas: {"if": condition, "then": schemas[0], "else": schemas[1]}, below, pair),
        st.builds(lambda schema, most: {"contains": schema, "maxContains": most}, below, st.integers(0, 2)),
        st.builds(lambda keyword, schema: {keyword: schema}, st.sampled_from(["items", "propertyNames"]), below),
        st.builds(lambda name, schema: {"properties": {name: schema}}, names, below),
        st.builds(lambda schema: {"patternProperties": {"(?=a)": schema}, "additionalProperties": False}, below),
        st.builds(lambda schema, rest: {**schema, "unevaluatedProperties": rest}, below.filter(is_object), below),
        st.builds(lambda name, schema: {"dependentSchemas": {name: schema}}, names, below),
    )


def is_object(schema):
    return isinstance(schema, dict)


SCHEMAS = st.recursive(LEAVES, grown, max_leaves=6).filter(is_object)
TEXTS = st.text("ab", max_size=3)
VALUES = TEXTS | st.lists(TEXTS, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ab"]), TEXTS, max_size=3)


@settings(max_examples=300, deadline=None)
@given(SCHEMAS, VALUES)
def test_what_the_schema_takes_is_taken_without_its_patterns_too(schema, value):
    whole = {**schema, "$defs": {"looks": {"pattern": "(?=b)"}}}
    assert schema_faults(raw(whole), whole, "", arguments=False) == []
    if jsonschema_rs.Draft202012Validator(whole, pattern_options=jsonschema_rs.FancyRegexOptions()).is_valid(value):
        assert SchemaCheck(raw(whole)).violations(value) == [], json.dumps(whole)
