"""Describes how a value breaks a schema: in facts, from which the edge makes sentences in the caller's language."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from registry_service.tools.json_document import token

NO_PARAMETERS: Mapping[str, Any] = {}
MAX_POINTER = 256
_MAX_MESSAGE = 256
# A part of a schema (an enum, a pattern) that takes more bytes of JSON text than this is not repeated.
_MAX_PARAMETER = 200
_MAX_NAMES = 10


class Violation(NamedTuple):
    """One way in which a value breaks a schema.

    `pointer` is a JSON Pointer into the value, `message` an English sentence for those who don't know the `keyword`: a
    keyword of JSON Schema, or a word of ours for what no schema says. `parameters` are the schema's, never a value.
    """

    pointer: str
    message: str
    keyword: str = ""
    parameters: Mapping[str, Any] = NO_PARAMETERS

    def fact(self) -> dict[str, Any]:
        """Returns what callers are told, without what would be empty."""
        fact: dict[str, Any] = {"pointer": self.pointer, "message": self.message}
        if self.keyword:
            fact["keyword"] = self.keyword
        if self.parameters:
            fact["parameters"] = self.parameters
        return fact


def unreadable(error: Exception) -> Violation:
    """Says why JSON text, which is JSON, cannot be read."""
    if "out of range" in str(error):
        message = "holds a number that is out of range: at most 4300 digits, and up to 1.7976931348623157e308"
        return Violation("", message, "numberRange")
    return Violation("", "is not JSON that can be read", "json")


def violation_of(error: jsonschema_rs.ValidationError) -> Violation:
    """Returns what the validator found, in words that repeat no value."""
    kind: Any = error.kind
    pointer = _short_pointer(error.instance_path)
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.FalseSchema):
        # A tool without arguments answers so to any argument.
        alone = error.schema_path[-1:] == ["additionalProperties"]
        message = "no properties are allowed here" if alone else "no value is allowed here"
        return Violation(pointer, message, "noProperties" if alone else "falseSchema")
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.OneOfMultipleValid):
        return Violation(pointer, _cut(error.message), "oneOfSeveral")
    read = _PARAMETERS.get(kind.name)
    parameters = {} if read is None else read(kind)
    return Violation(pointer, _cut(error.message), kind.name, parameters)


def _limit(kind: Any) -> dict[str, object]:
    return {"limit": kind.limit}


def _unexpected(kind: Any) -> dict[str, object]:
    names = [str(name)[:64] for name in kind.unexpected[:_MAX_NAMES]]
    return {"names": names} if len(msgspec.json.encode(names)) <= _MAX_PARAMETER else {}


def _short(name: str, value: object) -> dict[str, object]:
    return {name: value} if len(msgspec.json.encode(value)) <= _MAX_PARAMETER else {}


_PARAMETERS: Mapping[str, Callable[[Any], dict[str, object]]] = {
    "type": lambda kind: {"types": list(kind.types)},
    "required": lambda kind: _short("name", kind.property),
    "additionalProperties": _unexpected,
    "unevaluatedProperties": _unexpected,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _limit),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _limit),
    "multipleOf": lambda kind: {"divisor": kind.multiple_of},
    "pattern": lambda kind: _short("pattern", kind.pattern),
    "format": lambda kind: _short("format", kind.format),
    "enum": lambda kind: _short("values", kind.options),
    "const": lambda kind: _short("value", kind.expected_value),
}


def _short_pointer(path: Iterable[str | int]) -> str:
    """Returns the pointer, or its nearest ancestor that is short enough: names in the path are the caller's too."""
    pointer = ""
    for name in path:
        longer = pointer + token(str(name))
        if len(longer) > MAX_POINTER:
            break
        pointer = longer
    return pointer


def _cut(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
