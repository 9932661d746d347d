"""gateway/failures/violations.py, held against what the registry sends: whole sentences in both languages."""

import json
from string import Formatter

import pytest

from gateway.failures.violations import EN, KO, listed, worded
from registry_service.tools.schema_check import SchemaCheck
from tests.gateway.failures.test_details_ko import has_hangul

BROKEN = [
    ({"type": "string"}, 1, "문자열이어야 합니다", "must be a string"),
    ({"type": ["string", "null"]}, 1, "null 또는 문자열이어야 합니다", "must be null or a string"),
    ({"required": ["a"]}, {}, '필수 항목 "a"이(가) 없습니다', '"a" is required'),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, '필수 항목 "b"이(가) 없습니다', '"b" is required'),
    (
        {"properties": {"a": {}}, "additionalProperties": False},
        {"x": 1, "y": 2},
        '허용되지 않는 항목입니다: "x", "y"',
        'is not expected to have "x", "y"',
    ),
    ({"additionalProperties": False}, {"x": 1}, "여기에는 항목을 둘 수 없습니다", "no properties are allowed here"),
    ({"unevaluatedProperties": False}, {"x": 1}, '허용되지 않는 항목입니다: "x"', 'is not expected to have "x"'),
    ({"unevaluatedItems": False}, [1], "허용되지 않는 원소가 있습니다", "has elements that are not expected"),
    ({"minimum": 3}, 1, "3 이상이어야 합니다", "must be 3 or more"),
    ({"maximum": 9007199254740993}, 1e300, "9007199254740993 이하여야 합니다", "must be 9007199254740993 or less"),
    ({"exclusiveMinimum": 0.5}, 0.5, "0.5보다 커야 합니다", "must be more than 0.5"),
    ({"exclusiveMaximum": 3.0}, 3, "3보다 작아야 합니다", "must be less than 3"),
    ({"multipleOf": 2}, 3, "2의 배수여야 합니다", "must be a multiple of 2"),
    ({"minLength": 3}, "a", "3자 이상이어야 합니다", "must have 3 or more characters"),
    ({"maxLength": 1}, "abc", "1자 이하여야 합니다", "must have 1 or fewer characters"),
    ({"minItems": 1}, [], "원소가 1개 이상이어야 합니다", "must have 1 or more elements"),
    ({"maxItems": 1}, [1, 2], "원소가 1개 이하여야 합니다", "must have 1 or fewer elements"),
    ({"minProperties": 1}, {}, "항목이 1개 이상이어야 합니다", "must have 1 or more properties"),
    ({"maxProperties": 1}, {"a": 1, "b": 2}, "항목이 1개 이하여야 합니다", "must have 1 or fewer properties"),
    ({"uniqueItems": True}, [1, 1], "원소가 서로 달라야 합니다", "must have elements that differ from each other"),
    ({"contains": {"type": "string"}}, [1], "contains", "contains"),
    ({"pattern": "^[a-z]+$"}, "1", '패턴 "^[a-z]+$"에 맞지 않습니다', 'does not match the pattern "^[a-z]+$"'),
    ({"pattern": "^a{1," + "9" * 3 + "}$|" + "b" * 300}, "1", "스키마의 패턴에", "does not match the schema's pattern"),
    ({"enum": ["a", 1, None]}, "c", '다음 값 중 하나여야 합니다: "a", 1, null', 'must be one of "a", 1, null'),
    ({"enum": ["x" * 300]}, "c", "허용된 값이 아닙니다", "is none of the values that are allowed"),
    ({"const": {"a": 1}}, 6, '{"a":1}이어야 합니다', 'must be {"a":1}'),
    ({"propertyNames": {"maxLength": 1}}, {"abc": 1}, "항목의 이름이", "has a property whose name"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "anyOf의 어느", "matches none of the schemas of anyOf"),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, 1, "oneOf의 어느", "matches none of the schemas of oneOf"),
    ({"oneOf": [{}, {}]}, 1, "둘 이상에", "matches more than one of the schemas of oneOf"),
    ({"not": {}}, 1, "not의 스키마에", "matches the schema of not"),
    ({"properties": {"a": False}}, {"a": 1}, "여기에는 값을 둘 수 없습니다", "no value is allowed here"),
]


@pytest.mark.parametrize(("schema", "value", "korean", "english"), BROKEN, ids=lambda case: str(case)[:40])
def test_what_the_registry_finds_is_said_in_both_languages(schema, value, korean, english):
    found = SchemaCheck(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}).encode())
    facts = json.loads(json.dumps([violation.fact() for violation in found.violations(value)]))
    (in_korean,) = worded(facts, "ko")
    (in_english,) = worded(facts, "en")
    assert korean in str(in_korean["message"])
    assert english in str(in_english["message"])
    assert in_korean["keyword"] == in_english["keyword"]
    assert has_hangul(str(in_korean["message"]))


def test_both_languages_know_the_same_keywords_and_the_same_facts():
    def fields(templates: object) -> list[set[str]]:
        assert isinstance(templates, tuple)
        return [{field for _, field, _, _ in Formatter().parse(template) if field} for template in templates]

    assert KO.keys() == EN.keys()
    for keyword in KO:
        assert fields(KO[keyword]) == fields(EN[keyword])
        assert fields(KO[keyword])[-1] <= {"limit", "divisor", "types"}


def test_an_unknown_keyword_comes_in_the_words_of_the_registry():
    violation = {"pointer": "/a", "message": "is odd", "keyword": "newKeyword", "parameters": {"x": 1}}
    assert worded([violation], "ko") == [{"pointer": "/a", "message": "is odd", "keyword": "newKeyword"}]
    assert worded([{"pointer": "/a", "message": "is odd"}], "ko") == [{"pointer": "/a", "message": "is odd"}]


@pytest.mark.parametrize("facts", [None, "x", 5, {}, [], ["x", 1, None]])
def test_what_is_no_list_of_violations_is_passed_over(facts):
    assert worded(facts, "ko") == []


def test_what_a_schema_says_is_no_template():
    violation = {"pointer": "", "message": "m", "keyword": "pattern", "parameters": {"pattern": "{name}{0}"}}
    assert worded([violation], "en")[0]["message"] == 'does not match the pattern "{name}{0}"'


def test_violations_are_listed_for_models():
    violations = worded([{"pointer": "/text", "message": "is missing"}, {"pointer": "", "message": "bad"}], "en")
    assert listed(violations) == "\n- arguments/text: is missing\n- arguments: bad"
    assert listed([]) == ""
