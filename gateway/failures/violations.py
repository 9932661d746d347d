"""Violations of schemas in the caller's language: the registry sends the keyword and what the schema says.

A keyword that isn't known here comes with the registry's own English sentence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.settings import Locale

_TYPES: Mapping[Locale, Mapping[str, str]] = {
    "ko": {
        "string": "문자열",
        "integer": "정수",
        "number": "숫자",
        "boolean": "참/거짓",
        "array": "배열",
        "object": "객체",
        "null": "null",
    },
    "en": {
        "string": "a string",
        "integer": "an integer",
        "number": "a number",
        "boolean": "a boolean",
        "array": "an array",
        "object": "an object",
        "null": "null",
    },
}
_OR: Mapping[Locale, str] = {"ko": " 또는 ", "en": " or "}

# By keyword: the fullest template first, as in the sentences of reasons.
KO: Mapping[str, Sequence[str]] = {
    "type": ("{types}이어야 합니다",),
    "required": ("필수 항목 {name}이(가) 없습니다", "필수 항목이 없습니다"),
    "additionalProperties": ("허용되지 않는 항목입니다: {names}", "허용되지 않는 항목이 있습니다"),
    "unevaluatedProperties": ("허용되지 않는 항목입니다: {names}", "허용되지 않는 항목이 있습니다"),
    "additionalItems": ("허용되지 않는 원소가 있습니다",),
    "unevaluatedItems": ("허용되지 않는 원소가 있습니다",),
    "noProperties": ("여기에는 항목을 둘 수 없습니다",),
    "falseSchema": ("여기에는 값을 둘 수 없습니다",),
    "minimum": ("{limit} 이상이어야 합니다",),
    "maximum": ("{limit} 이하여야 합니다",),
    "exclusiveMinimum": ("{limit}보다 커야 합니다",),
    "exclusiveMaximum": ("{limit}보다 작아야 합니다",),
    "multipleOf": ("{divisor}의 배수여야 합니다",),
    "minLength": ("{limit}자 이상이어야 합니다",),
    "maxLength": ("{limit}자 이하여야 합니다",),
    "minItems": ("원소가 {limit}개 이상이어야 합니다",),
    "maxItems": ("원소가 {limit}개 이하여야 합니다",),
    "minProperties": ("항목이 {limit}개 이상이어야 합니다",),
    "maxProperties": ("항목이 {limit}개 이하여야 합니다",),
    "uniqueItems": ("원소가 서로 달라야 합니다",),
    "contains": ("contains에 맞는 원소의 수가 맞지 않습니다",),
    "pattern": ("패턴 {pattern}에 맞지 않습니다", "스키마의 패턴에 맞지 않습니다"),
    "format": ("{format} 형식이 아닙니다", "형식이 맞지 않습니다"),
    "enum": ("다음 값 중 하나여야 합니다: {values}", "허용된 값이 아닙니다"),
    "const": ("{value}이어야 합니다", "정해진 값이 아닙니다"),
    "propertyNames": ("항목의 이름이 스키마에 맞지 않습니다",),
    "anyOf": ("anyOf의 어느 스키마에도 맞지 않습니다",),
    "oneOf": ("oneOf의 어느 스키마에도 맞지 않습니다",),
    "oneOfSeveral": ("oneOf의 스키마 둘 이상에 맞습니다",),
    "not": ("not의 스키마에 맞으면 안 됩니다",),
    "contentEncoding": ("contentEncoding에 맞지 않습니다",),
    "contentMediaType": ("contentMediaType에 맞지 않습니다",),
    "json": ("읽을 수 있는 JSON이 아닙니다",),
    "numberRange": ("범위를 벗어난 숫자가 있습니다: 4300자리까지, 1.7976931348623157e308까지 받습니다",),
    "tooSlow": (
        "검사에 {seconds}초보다 오래 걸립니다: 글이나 배열을 짧게 나누어 보내세요",
        "검사에 너무 오래 걸립니다: 글이나 배열을 짧게 나누어 보내세요",
    ),
    "fixed": ("도구의 주소가 이미 정한 값입니다",),
    "pathMissing": ("필수입니다: 도구의 주소에 들어가는 값입니다",),
    "pathType": ("문자열, 숫자, 참/거짓 중 하나여야 합니다: 도구의 주소에 들어가는 값입니다",),
    "pathEmpty": ("비어 있으면 안 됩니다: 도구의 주소에 들어가는 값입니다",),
    "urlLength": (
        "도구의 주소에 들어가는 값이 {limit}바이트를 넘습니다",
        "도구의 주소에 들어가는 값이 너무 깁니다",
    ),
    "pathSegment": ("도구의 주소를 바꾸는 값(`.`, `..`, 제어 문자 등)은 쓸 수 없습니다",),
}

EN: Mapping[str, Sequence[str]] = {
    "type": ("must be {types}",),
    "required": ("{name} is required", "a required property is missing"),
    "additionalProperties": ("is not expected to have {names}", "has properties that are not expected"),
    "unevaluatedProperties": ("is not expected to have {names}", "has properties that are not expected"),
    "additionalItems": ("has elements that are not expected",),
    "unevaluatedItems": ("has elements that are not expected",),
    "noProperties": ("no properties are allowed here",),
    "falseSchema": ("no value is allowed here",),
    "minimum": ("must be {limit} or more",),
    "maximum": ("must be {limit} or less",),
    "exclusiveMinimum": ("must be more than {limit}",),
    "exclusiveMaximum": ("must be less than {limit}",),
    "multipleOf": ("must be a multiple of {divisor}",),
    "minLength": ("must have {limit} or more characters",),
    "maxLength": ("must have {limit} or fewer characters",),
    "minItems": ("must have {limit} or more elements",),
    "maxItems": ("must have {limit} or fewer elements",),
    "minProperties": ("must have {limit} or more properties",),
    "maxProperties": ("must have {limit} or fewer properties",),
    "uniqueItems": ("must have elements that differ from each other",),
    "contains": ("has too few or too many elements that match contains",),
    "pattern": ("does not match the pattern {pattern}", "does not match the schema's pattern"),
    "format": ("is not of the format {format}", "is not of the format that is wanted"),
    "enum": ("must be one of {values}", "is none of the values that are allowed"),
    "const": ("must be {value}", "is not the value that is wanted"),
    "propertyNames": ("has a property whose name does not match the schema",),
    "anyOf": ("matches none of the schemas of anyOf",),
    "oneOf": ("matches none of the schemas of oneOf",),
    "oneOfSeveral": ("matches more than one of the schemas of oneOf",),
    "not": ("matches the schema of not",),
    "contentEncoding": ("is not of the contentEncoding that is wanted",),
    "contentMediaType": ("is not of the contentMediaType that is wanted",),
    "json": ("is not JSON that can be read",),
    "numberRange": ("holds a number that is out of range: at most 4300 digits, and up to 1.7976931348623157e308",),
    "tooSlow": (
        "takes more than {seconds} s to check: send shorter texts or fewer elements",
        "takes too long to check: send shorter texts or fewer elements",
    ),
    "fixed": ("is fixed by the tool's endpoint",),
    "pathMissing": ("is required: it is part of the endpoint's path",),
    "pathType": ("must be a string, a number or a boolean: it is part of the endpoint's path",),
    "pathEmpty": ("must not be empty: it is part of the endpoint's path",),
    "urlLength": (
        "holds more than {limit} bytes that go into the endpoint's URL",
        "holds too much that goes into the endpoint's URL",
    ),
    "pathSegment": ("would change the endpoint's path (`.`, `..`, control characters and the like)",),
}

_TEMPLATES: Mapping[Locale, Mapping[str, Sequence[str]]] = {"ko": KO, "en": EN}


def worded(violations: object, locale: Locale) -> list[dict[str, object]]:
    """Returns the violations that the registry named, each as `{pointer, message, keyword?}` in this language."""
    if not isinstance(violations, list):
        return []
    return [_worded(violation, locale) for violation in violations if isinstance(violation, dict)]


def listed(violations: Sequence[Mapping[str, object]]) -> str:
    """Lists violations, a line each, for the models that read nothing but the text of a result."""
    return "".join(f"\n- arguments{item['pointer']}: {item['message']}" for item in violations)


def _worded(violation: dict[str, Any], locale: Locale) -> dict[str, object]:
    keyword, parameters = violation.get("keyword"), violation.get("parameters")
    pointer, message = violation.get("pointer", ""), violation.get("message", "")
    if not isinstance(keyword, str):
        return {"pointer": pointer, "message": message}
    known = _shown(parameters, locale) if isinstance(parameters, dict) else {}
    for template in _TEMPLATES[locale].get(keyword, ()):
        try:
            message = template.format_map(known)
        except KeyError:
            continue
        break
    return {"pointer": pointer, "message": message, "keyword": keyword}


def _shown(parameters: dict[str, Any], locale: Locale) -> dict[str, str]:
    return {name: _text(name, value, locale) for name, value in parameters.items()}


def _text(name: str, value: Any, locale: Locale) -> str:
    if name == "types" and isinstance(value, list):
        return _OR[locale].join(_TYPES[locale].get(kind, str(kind)) for kind in value)
    if name in {"names", "values"} and isinstance(value, list):
        return ", ".join(msgspec.json.encode(item).decode() for item in value)
    if name == "format":
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return msgspec.json.encode(value).decode()
