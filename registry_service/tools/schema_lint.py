"""Finds what a JSON Schema may say and is likely to be a slip: unknown keywords, values that can't be right.

A slip is a warning. A keyword that is null is a fault: YAML makes one of a text with a comma inside braces, and MCP
clients refuse the whole list of tools for it.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping

import jsonschema_rs

from registry_service.tools.json_document import Fault, shown, token
from registry_service.tools.schema_examples import example_slips
from registry_service.tools.schema_walk import Position

MAX_WARNINGS = 100
# A comparison of two names takes about 10 µs, and more than their lengths together where they are long.
_MAX_QUESTIONS = 20
_MAX_KNOWN = 500
_MAX_NAME = 128

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
    return _Near(known)(name)


class _Near:
    """Finds which of some names was meant. Long names, and those among too many, are not compared."""

    def __init__(self, known: Collection[str]) -> None:
        few = known if len(known) <= _MAX_KNOWN else ()
        self._by_folded = {_folded(other): other for other in few if len(other) <= _MAX_NAME}

    def __call__(self, name: str) -> str:
        if len(name) > _MAX_NAME or not self._by_folded:
            return ""
        found = difflib.get_close_matches(_folded(name), self._by_folded, n=1, cutoff=0.75)
        return f"; is {self._by_folded[found[0]]} meant?" if found else ""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_near_keyword = _Near(KEYWORDS)
_near_format = _Near(_FORMATS)


class _Questions:
    """Bounds how many names of a schema are compared with those that are known."""

    def __init__(self) -> None:
        self._left = _MAX_QUESTIONS
        self._asked: dict[tuple[str, _Near], str] = {}

    def ask(self, name: str, known: _Near) -> str:
        question = self._asked.get((name, known))
        if question is None and self._left:
            self._left -= 1
            question = self._asked[name, known] = known(name)
        return question or ""


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
    examples = example_slips(root, schemas, "id" if "id" in known else "$id")
    questions = _Questions()
    for schema, pointer, _, _ in schemas:
        own = [*_unknown(schema, known, questions), *_required(schema, questions), *_ranges(schema), *_values(schema)]
        own += examples.get(pointer, ())
        yield from (Fault(pointer + at, message) for at, message in own)


def _unknown(schema: Mapping[str, object], known: Collection[str], questions: _Questions) -> Iterator[Fault]:
    for keyword in schema:
        if keyword not in known and not keyword.startswith("x-"):
            question = questions.ask(keyword, _near_keyword)
            message = f"{shown(keyword)} is not a keyword of JSON Schema, and changes nothing{question}"
            yield Fault(token(keyword), message)
    named = schema.get("format")
    if isinstance(named, str) and named not in _FORMATS and (question := questions.ask(named, _near_format)):
        yield Fault("/format", f"{shown(named)} is not a format that is known{question}")


def _required(schema: Mapping[str, object], questions: _Questions) -> Iterator[Fault]:
    """Finds what is required and can't be given, or is likely to be misspelt."""
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list):
        return
    declared = properties if isinstance(properties, dict) else {}
    declared_near = _Near(declared)
    open_elsewhere = bool(_COMPOSED & schema.keys())
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    for index, name in enumerate(required):
        if not isinstance(name, str) or name in declared:
            continue
        question = questions.ask(name, declared_near) if closed or not open_elsewhere else ""
        if closed:
            yield Fault(f"/required/{index}", f"requires {shown(name)}, which additionalProperties forbids{question}")
        elif question:
            yield Fault(f"/required/{index}", f"requires {shown(name)}, which properties doesn't hold{question}")
    for name in (name for name, child in declared.items() if child is False):
        if name in required:
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
