"""Finds what a JSON Schema may say and is likely to be a slip: unknown keywords, values that can't be right.

A slip is a warning. A keyword that is null is a fault: YAML makes one of a text with a comma inside braces, and MCP
clients refuse the whole list of tools for it.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping

import jsonschema_rs

from registry_service.tools.json_document import Fault, shown, token
from registry_service.tools.schema_walk import Position

MAX_WARNINGS = 100
_MAX_MESSAGE = 200

NULL = "must not be null; in YAML, a text with a comma inside {…} needs quotes"

KEYWORDS = frozenset(
    [
        *("$anchor", "$comment", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef"),
        *("$ref", "$schema", "$vocabulary", "additionalItems", "additionalProperties", "allOf", "anyOf", "const"),
        *("contains", "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions", "dependencies"),
        *("dependentRequired", "dependentSchemas", "deprecated", "description", "else", "enum", "examples"),
        *("exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength"),
        *("maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum"),
        *("multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames"),
        *("readOnly", "required", "then", "title", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
        "writeOnly",
    ]
)
# Annotations that OpenAPI and editors know; they change nothing here.
_ANNOTATIONS = frozenset(["discriminator", "example", "externalDocs", "markdownDescription", "xml"])
_FORMATS = frozenset(
    [
        *("date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri"),
        *("iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference"),
        *("uri-template", "uuid"),
    ]
)
# Keywords in which null is a value like any other.
_DATA = frozenset(["const", "default", "enum", "example", "examples"])
_RANGES = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minContains", "maxContains"),
)
# Whatever stands beside these in a schema may declare the properties that it requires.
_COMPOSED = frozenset(["$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"])


def near(name: str, known: Collection[str]) -> str:
    """Returns the question whether a known name was meant, after a space; empty where none is near."""
    by_folded = {other.lower().replace("_", "").replace("-", ""): other for other in known}
    found = difflib.get_close_matches(name.lower().replace("_", "").replace("-", ""), by_folded, n=1, cutoff=0.75)
    return f"; is {by_folded[found[0]]} meant?" if found else ""


def null_faults(schemas: Iterable[Position]) -> Iterator[Fault]:
    """Yields the keywords that are null."""
    for schema, pointer, _, _ in schemas:
        for keyword, value in schema.items():
            if value is None and keyword not in _DATA:
                yield Fault(pointer + token(keyword), NULL)


def schema_warnings(root: dict[str, object], schemas: Iterable[Position], *, of_arguments: bool) -> Iterator[Fault]:
    """Yields the slips in a schema that has no faults. `schemas` are it and all its subschemas."""
    schemas = list(schemas)
    # Draft 04 has an `id`; later it is a property that stands in the wrong place.
    known = KEYWORDS | _ANNOTATIONS | ({"id"} if "draft-04" in str(root.get("$schema")) else set())
    if of_arguments and "properties" not in root and not _COMPOSED & root.keys():
        yield Fault("", "has no properties, which some clients refuse; for a tool without arguments: properties: {}")
    checks = _checks(root) if any(_example_keywords(schema) for schema, _, _, _ in schemas) else None
    for schema, pointer, _, _ in schemas:
        own = [*_unknown(schema, known), *_required(schema), *_ranges(schema), *_values(schema)]
        if checks is not None:
            own += _examples(schema, checks, "#" + pointer)
        yield from (Fault(pointer + at, message) for at, message in own)


def _unknown(schema: Mapping[str, object], known: Collection[str]) -> Iterator[Fault]:
    for keyword in schema:
        if keyword not in known and not keyword.startswith("x-"):
            message = f"{shown(keyword)} is not a keyword of JSON Schema, and changes nothing{near(keyword, KEYWORDS)}"
            yield Fault(token(keyword), message)
    named = schema.get("format")
    if isinstance(named, str) and named not in _FORMATS and (question := near(named, _FORMATS)):
        yield Fault("/format", f"{shown(named)} is not a format that is known{question}")


def _required(schema: Mapping[str, object]) -> Iterator[Fault]:
    """Finds what is required and can't be given, or is likely to be misspelt."""
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list):
        return
    declared = properties if isinstance(properties, dict) else {}
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    for index, name in enumerate(required):
        if not isinstance(name, str) or name in declared:
            continue
        question = near(name, declared)
        if closed:
            yield Fault(f"/required/{index}", f"requires {shown(name)}, which additionalProperties forbids{question}")
        elif question and not _COMPOSED & schema.keys():
            yield Fault(f"/required/{index}", f"requires {shown(name)}, which properties doesn't hold{question}")
    for name, child in declared.items():
        if child is False and name in required:
            yield Fault(f"/properties{token(name)}", "is required, and no value is allowed")


def _ranges(schema: Mapping[str, object]) -> Iterator[Fault]:
    for low, high in _RANGES:
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
            yield Fault(f"/{low}", f"is greater than {high}: no value is allowed")


def _values(schema: Mapping[str, object]) -> Iterator[Fault]:
    """Finds the values of `enum` and `const` that `type` forbids: YAML reads a `no` without quotes as false."""
    wanted = schema.get("type")
    if not isinstance(wanted, str | list):
        return
    is_of = jsonschema_rs.Draft202012Validator({"type": wanted}).is_valid
    choices = schema.get("enum")
    places = [(f"/enum/{index}", value) for index, value in enumerate(choices if isinstance(choices, list) else [])]
    places += [("/const", schema["const"])] if "const" in schema else []
    for at, value in places:
        if not is_of(value):
            yield Fault(at, f"{shown(value)} isn't of the type {shown(wanted)}")


def _example_keywords(schema: Mapping[str, object]) -> bool:
    return "default" in schema or isinstance(schema.get("examples"), list)


def _checks(root: dict[str, object]) -> "jsonschema_rs.ValidatorMap | None":
    """Returns a validator for each subschema, or None where one can't be made: its faults are told elsewhere."""
    try:
        return jsonschema_rs.validator_map_for(root, offline=True)
    except (ValueError, jsonschema_rs.ValidationError):
        return None


def _examples(schema: Mapping[str, object], checks: "jsonschema_rs.ValidatorMap", at: str) -> Iterator[Fault]:
    validator = checks.get(at) if _example_keywords(schema) else None
    if validator is None:
        return
    examples = schema.get("examples")
    places = [("/default", schema["default"])] if "default" in schema else []
    places += [
        (f"/examples/{number}", value) for number, value in enumerate(examples if isinstance(examples, list) else [])
    ]
    for place, value in places:
        error = next(validator.iter_errors(value), None)
        if error is not None:
            message = f"doesn't fit its own schema: {error.message}"
            yield Fault(place, message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…")
