"""JSON Schema: what a schema must be to be registered, and checks of values against it.

Nothing is ever fetched: a schema may refer only to itself, and the validators get a retriever that refuses.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, NoReturn

import jsonschema_rs

from registry_service.tools.json_document import Fault, shown, token, too_deep
from registry_service.tools.schema_cost import MAX_PATTERN_BYTES, MAX_PATTERNS_BYTES, pattern_size, patterns
from registry_service.tools.schema_lint import MAX_WARNINGS, null_faults, schema_warnings
from registry_service.tools.schema_loosen import loosened
from registry_service.tools.schema_walk import REFERENCES, Position, endless_or_too_many, positions, resolve

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_NESTING = 64
MAX_SCHEMA_FAULTS = 20
_MAX_MESSAGE = 256

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The default engine of the validators backtracks for look-around and backreferences: 9 s of the event loop for 50 000
# characters of a caller and `(?=.*[A-Z])…`. This one takes time in proportion to the value.
_LINEAR = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
# Tells a pattern that is too large from one that is none.
_UNBOUNDED = jsonschema_rs.RegexOptions(size_limit=64 * MAX_PATTERN_BYTES)
_BACKTRACKING = jsonschema_rs.FancyRegexOptions()
_UNCHECKED = "uses look-around or a backreference: it is served, and not checked"
_TOO_LARGE = f"compiles to more than {MAX_PATTERN_BYTES} bytes: repeat less"
_HEADER_TYPES = ("string", "integer", "boolean")


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not part of this schema")


class Dialect(NamedTuple):
    number: int
    validator: type[jsonschema_rs.Validator]
    id_keyword: str
    # Checks a schema against its dialect, regular expressions and URI references included.
    meta: jsonschema_rs.Validator


def _dialect(uri: str, number: int, validator: type[jsonschema_rs.Validator], id_keyword: str = "$id") -> Dialect:
    meta = validator({"$schema": uri, "$ref": uri}, validate_formats=True, retriever=_refuse)
    return Dialect(number, validator, id_keyword, meta)


DRAFT_04 = "http://json-schema.org/draft-04/schema"
DRAFT_06 = "http://json-schema.org/draft-06/schema"
DRAFT_07 = "http://json-schema.org/draft-07/schema"
DRAFT_2019_09 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
# By `$schema` without its empty fragment.
DIALECTS: Mapping[str, Dialect] = {
    DRAFT_04: _dialect(DRAFT_04, jsonschema_rs.Draft4, jsonschema_rs.Draft4Validator, "id"),
    DRAFT_06: _dialect(DRAFT_06, jsonschema_rs.Draft6, jsonschema_rs.Draft6Validator),
    DRAFT_07: _dialect(DRAFT_07, jsonschema_rs.Draft7, jsonschema_rs.Draft7Validator),
    DRAFT_2019_09: _dialect(DRAFT_2019_09, jsonschema_rs.Draft201909, jsonschema_rs.Draft201909Validator),
    DRAFT_2020_12: _dialect(DRAFT_2020_12, jsonschema_rs.Draft202012, jsonschema_rs.Draft202012Validator),
}
# Stands in for the base URI of a schema without an identifier.
_NO_BASE = "urn:naru:schema"


def dialect_uri(schema: Mapping[str, object]) -> str | None:
    """Returns the key of DIALECTS for a schema, or None when it names another dialect."""
    uri = schema.get("$schema", DRAFT_2020_12)
    uri = uri.removesuffix("#") if isinstance(uri, str) else None
    return uri if uri in DIALECTS else None


def schema_faults(raw: bytes, schema: object, at: str, *, arguments: bool) -> list[Fault]:
    """Returns what forbids the registration of a schema.

    `raw` is its text and `schema` its value; `at` is the JSON Pointer to it. `arguments` demands the object root that
    MCP wants of an input schema, and checks its `x-mcp-header` annotations.
    """
    if not isinstance(schema, dict):
        return [Fault(at, "must be a JSON Schema that is an object")]
    if len(raw) > MAX_SCHEMA_BYTES:
        return [Fault(at, f"is larger than {MAX_SCHEMA_BYTES} bytes")]
    if (pointer := too_deep(schema, MAX_SCHEMA_NESTING)) is not None:
        return [Fault(at + pointer, f"nests deeper than {MAX_SCHEMA_NESTING} levels")]
    faults = []
    if arguments and schema.get("type") != "object":
        faults.append(Fault(f"{at}/type", 'must be "object": the arguments of a tool are an object'))
    uri = dialect_uri(schema)
    if uri is None:
        return [*faults, Fault(f"{at}/$schema", f"must be one of {', '.join(sorted(DIALECTS))}")]
    dialect = DIALECTS[uri]
    faults += _meta_faults(dialect, schema, at) or _position_faults(dialect, schema, at, arguments)
    return faults or _compile_faults(dialect, raw, schema, at)


def _meta_faults(dialect: Dialect, schema: dict[str, object], at: str) -> list[Fault]:
    if dialect.meta.is_valid(schema):
        return []
    errors = dialect.meta.iter_errors(schema)
    # Several vocabularies report the same fault.
    faults = dict.fromkeys(Fault(at + _pointer(error.instance_path), _cut(error.message)) for error in errors)
    return list(itertools.islice(faults, MAX_SCHEMA_FAULTS))


def _position_faults(dialect: Dialect, schema: dict[str, object], at: str, arguments: bool) -> list[Fault]:
    try:
        found = list(positions(schema, dialect.id_keyword))
        known = {position.base for position in found}
        faults = list(null_faults(found))
        faults += [fault for position in found for fault in _reference_faults(position, known)]
        if costly := endless_or_too_many(schema, found, dialect.id_keyword):
            faults.append(Fault(*costly))
        sizes = (pattern_size(pattern) or 0 for position in found for _, pattern in patterns(position.schema))
        if sum(sizes) > MAX_PATTERNS_BYTES:
            faults.append(Fault("", f"has patterns that compile to more than {MAX_PATTERNS_BYTES} bytes together"))
    except ValueError as error:
        return [Fault(at, f"holds an identifier that is no URI: {error}")]
    if arguments:
        faults += _header_faults(found)
    return [Fault(at + fault.pointer, fault.message) for fault in faults[:MAX_SCHEMA_FAULTS]]


def warnings_of_schema(schema: dict[str, object], at: str, *, of_arguments: bool) -> list[Fault]:
    """Returns the slips in a schema without faults. `at` is the JSON Pointer to it."""
    dialect = DIALECTS[dialect_uri(schema) or DRAFT_2020_12]
    found = list(positions(schema, dialect.id_keyword))
    warnings = [Fault(pointer, _UNCHECKED) for pointer, pattern in _patterns(found) if pattern_size(pattern) is None]
    warnings += itertools.islice(schema_warnings(schema, found, of_arguments=of_arguments), MAX_WARNINGS)
    return [Fault(at + warning.pointer, warning.message) for warning in warnings]


def _reference_faults(position: Position, known: set[str]) -> Iterator[Fault]:
    if position.pointer and dialect_uri(position.schema) is None:
        yield Fault(f"{position.pointer}/$schema", "must be a dialect that may stand at the root")
    for keyword in REFERENCES:
        reference = position.schema.get(keyword)
        if isinstance(reference, str) and resolve(position.base, reference) not in known:
            message = f"{shown(reference)} must name a place in this schema: nothing is fetched"
            yield Fault(f"{position.pointer}/{keyword}", message)


def _header_faults(found: list[Position]) -> Iterator[Fault]:
    """Applies the rules of MCP 2026-07-28: clients drop a tool that breaks one of them."""
    seen: set[str] = set()
    for schema, pointer, chain, _ in found:
        if "x-mcp-header" not in schema:
            continue
        name = schema["x-mcp-header"]
        at = f"{pointer}/x-mcp-header"
        if not chain or not pointer:
            yield Fault(at, "must stand in a property that only `properties` lead to")
        elif not isinstance(name, str) or not _TOKEN.fullmatch(name):
            yield Fault(at, "must be a non-empty HTTP token")
        elif schema.get("type") not in _HEADER_TYPES:
            yield Fault(at, f"needs a property whose type is one of {', '.join(_HEADER_TYPES)}")
        elif name.lower() in seen:
            yield Fault(at, f"{shown(name)} stands twice in this schema, letter case aside")
        else:
            seen.add(name.lower())


def _compile_faults(dialect: Dialect, raw: bytes, schema: dict[str, object], at: str) -> list[Fault]:
    found = list(positions(schema, dialect.id_keyword))
    faults = [
        Fault(at + pointer, _TOO_LARGE)
        for pointer, pattern in _patterns(found)
        if pattern_size(pattern) is None and _takes(pattern, _UNBOUNDED)
    ]
    if faults:
        return faults[:MAX_SCHEMA_FAULTS]
    try:
        checkable(dialect, raw, schema, found)
    except jsonschema_rs.ValidationError as error:
        faults = [Fault(at + pointer, "names nothing in this schema") for pointer in _dangling(dialect, schema)]
        return faults[:MAX_SCHEMA_FAULTS] or [Fault(at + _pointer(error.instance_path), _cut(error.message))]
    except ValueError as error:
        return [Fault(at, _cut(str(error)))]
    return []


def _patterns(found: Iterable[Position]) -> Iterator[tuple[str, str]]:
    """Yields the regular expressions of a schema, each with its JSON Pointer."""
    for position in found:
        for keyword, pattern in patterns(position.schema):
            yield f"{position.pointer}/{keyword}{token(pattern) if keyword == 'patternProperties' else ''}", pattern


def _takes(pattern: str, engine: jsonschema_rs.FancyRegexOptions | jsonschema_rs.RegexOptions) -> bool:
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=engine)
    except jsonschema_rs.ValidationError:
        return False
    return True


def _dangling(dialect: Dialect, schema: dict[str, object]) -> Iterator[str]:
    """Yields the JSON Pointers of the references that do not resolve."""
    found = list(positions(schema, dialect.id_keyword))
    registry = jsonschema_rs.Registry([(_NO_BASE, schema)], draft=dialect.number, retriever=_refuse)
    for position in found:
        for keyword in REFERENCES:
            reference = position.schema.get(keyword)
            if isinstance(reference, str) and not _resolves(registry, position.base, reference):
                yield f"{position.pointer}/{keyword}"


def _resolves(registry: jsonschema_rs.Registry, base: str, reference: str) -> bool:
    try:
        registry.resolver(base or _NO_BASE).lookup(reference)
    except jsonschema_rs.ReferencingError:
        return False
    return True


class Checkable(NamedTuple):
    """Holds a validator, and the schema that it checks with its subschemas: without patterns that can't be checked."""

    validator: jsonschema_rs.Validator
    schema: dict[str, object]
    found: list[Position]


def checkable(dialect: Dialect, raw: bytes, schema: dict[str, object], found: list[Position]) -> Checkable:
    """Compiles a schema: its text, its value, and all its subschemas.

    Raises ValueError and jsonschema_rs.ValidationError.
    """
    text = raw.decode()
    if any(pattern_size(pattern) is None and _takes(pattern, _BACKTRACKING) for _, pattern in _patterns(found)):
        schema = loosened(schema, found, dialect.id_keyword)
        text, found = json.dumps(schema), list(positions(schema, dialect.id_keyword))
    # The mask keeps the caller's values out of messages: they may be long, and secret.
    validator = dialect.validator(text, retriever=_refuse, mask="value", pattern_options=_LINEAR)
    return Checkable(validator, schema, found)


def _pointer(path: Iterable[str | int]) -> str:
    return "".join(token(str(name)) for name in path)


def _cut(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
