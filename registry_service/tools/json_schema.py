"""JSON Schema: what a schema must be to be registered, and checks of values against it.

Nothing is ever fetched: a schema may refer only to itself, and the validators get a retriever that refuses.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, NoReturn

import jsonschema_rs
import msgspec

from registry_service.tools.json_document import Fault, shown, token, too_deep
from registry_service.tools.schema_cost import MAX_PATTERN_BYTES, MAX_PATTERNS_BYTES, pattern_size, patterns, rates
from registry_service.tools.schema_walk import REFERENCES, Place, endless_or_too_many, resolve
from registry_service.tools.schema_walk import in_place as in_place

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_NESTING = 64
MAX_SCHEMA_FAULTS = 20

MAX_VIOLATIONS = 20
MAX_VIOLATIONS_BYTES = 4096
_MAX_POINTER = 256
_MAX_MESSAGE = 256
# The validator collects every violation before it yields the first: 13 µs each, 13 s for a hostile array of a million.
# Of a value with more nodes than this only the first one is told.
_MAX_NODES_TOLD_WHOLE = 500

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The default engine of the validators backtracks for look-around and backreferences: 9 s of the event loop for 50 000
# characters of a caller and `(?=.*[A-Z])…`. This one takes time in proportion to the value.
_LINEAR = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
# Tells a pattern that is too large from one that is none.
_UNBOUNDED = jsonschema_rs.RegexOptions(size_limit=64 * MAX_PATTERN_BYTES)
_BACKTRACKS = "uses look-around or a backreference, which can take unbounded time"
_TOO_LARGE = f"compiles to more than {MAX_PATTERN_BYTES} bytes: repeat less"
# What a check may take of the event loop's time, in nanoseconds. One that may find violations looks at the value twice.
_INLINE_NS = 10_000_000
_INLINE_BYTES = 64 * 1024
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_HEADER_TYPES = ("string", "integer", "boolean")


class Violation(NamedTuple):
    """One way in which a value breaks a schema: a JSON Pointer into the value and an English message."""

    pointer: str
    message: str


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


class Position(NamedTuple):
    """A subschema. `chain`: only `properties` lead to it. `base`: the URI that its references start from."""

    schema: dict[str, object]
    pointer: str
    chain: bool
    base: str


_SCHEMA = frozenset(
    [
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    ]
)
_LIST_OF_SCHEMAS = frozenset(["allOf", "anyOf", "items", "oneOf", "prefixItems"])
_MAP_OF_SCHEMAS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)


def positions(root: dict[str, object], id_keyword: str = "$id") -> Iterator[Position]:
    """Yields the schema and all its subschemas in the document's order, and nothing that is data (`const`, `enum`…).

    Raises ValueError for an identifier that is no URI.
    """
    stack = [Position(root, "", True, "")]
    while stack:
        above = stack.pop()
        identity = above.schema.get(id_keyword)
        base = resolve(above.base, identity) if isinstance(identity, str) else above.base
        yield above._replace(base=base)
        below = [
            Position(child, above.pointer + pointer, above.chain and keyword == "properties", base)
            for keyword, pointer, child in _children(above.schema)
            if isinstance(child, dict)
        ]
        stack.extend(reversed(below))


def _children(schema: dict[str, object]) -> Iterator[tuple[str, str, object]]:
    for keyword, value in schema.items():
        if isinstance(value, dict) and keyword in _MAP_OF_SCHEMAS:
            for name, child in value.items():
                yield keyword, token(keyword) + token(name), child
        elif isinstance(value, list) and keyword in _LIST_OF_SCHEMAS:
            for index, child in enumerate(value):
                yield keyword, f"{token(keyword)}/{index}", child
        elif keyword in _SCHEMA:
            yield keyword, token(keyword), value


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
        faults = [fault for position in found for fault in _reference_faults(position, known)]
        places = (Place(position.schema, position.pointer, position.base) for position in found)
        if costly := endless_or_too_many(schema, places, dialect.id_keyword):
            faults.append(Fault(*costly))
        sizes = (pattern_size(pattern) or 0 for position in found for _, pattern in patterns(position.schema))
        if sum(sizes) > MAX_PATTERNS_BYTES:
            faults.append(Fault("", f"has patterns that compile to more than {MAX_PATTERNS_BYTES} bytes together"))
    except ValueError as error:
        return [Fault(at, f"holds an identifier that is no URI: {error}")]
    if arguments:
        faults += _header_faults(found)
    return [Fault(at + fault.pointer, fault.message) for fault in faults[:MAX_SCHEMA_FAULTS]]


def _reference_faults(position: Position, known: set[str]) -> Iterator[Fault]:
    if position.pointer and dialect_uri(position.schema) is None:
        yield Fault(f"{position.pointer}/$schema", "must be a dialect that may stand at the root")
    for keyword in REFERENCES:
        reference = position.schema.get(keyword)
        if isinstance(reference, str) and resolve(position.base, reference) not in known:
            message = f"{shown(reference)} must name a place in this schema: nothing is fetched"
            yield Fault(f"{position.pointer}/{keyword}", message)


def _header_faults(found: list[Position]) -> Iterator[Fault]:
    """The rules of MCP 2026-07-28: clients drop a tool that breaks one of them."""
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
    try:
        _compile(dialect, raw)
    except jsonschema_rs.ValidationError as error:
        faults = [Fault(at + pointer, "names nothing in this schema") for pointer in _dangling(dialect, schema)]
        faults += [Fault(at + pointer, message) for pointer, message in _pattern_faults(dialect, schema)]
        return faults[:MAX_SCHEMA_FAULTS] or [Fault(at + _pointer(error.instance_path), _cut(error.message))]
    except ValueError as error:
        return [Fault(at, _cut(str(error)))]
    return []


def _pattern_faults(dialect: Dialect, schema: dict[str, object]) -> Iterator[Fault]:
    for position in positions(schema, dialect.id_keyword):
        for keyword, pattern in patterns(position.schema):
            name = token(pattern) if keyword == "patternProperties" else ""
            if pattern_size(pattern) is None and (message := _why_refused(pattern)):
                yield Fault(f"{position.pointer}/{keyword}{name}", message)


def _why_refused(pattern: str) -> str:
    """Returns why a pattern is none that can be bounded; empty for what isn't a regular expression at all."""
    if _takes(pattern, _UNBOUNDED):
        return _TOO_LARGE
    return _BACKTRACKS if _takes(pattern, jsonschema_rs.FancyRegexOptions()) else ""


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


def _compile(dialect: Dialect, raw: bytes) -> jsonschema_rs.Validator:
    # The mask keeps the caller's values out of messages: they may be long, and secret.
    return dialect.validator(raw.decode(), retriever=_refuse, mask="value", pattern_options=_LINEAR)


class _Root(msgspec.Struct):
    dialect: str = msgspec.field(name="$schema", default=DRAFT_2020_12)


_ROOT = msgspec.json.Decoder(_Root)


class SchemaCheck:
    """A compiled schema. Raises ValueError for a schema that `schema_faults` does not pass."""

    __slots__ = ("_at_once", "_is_valid", "_short", "_validator", "_worst", "schema_json")

    def __init__(self, schema_json: bytes) -> None:
        uri = dialect_uri({"$schema": _ROOT.decode(schema_json).dialect})
        if uri is None:
            raise ValueError("unknown dialect")
        self.schema_json = schema_json
        self._validator = _compile(DIALECTS[uri], schema_json)
        self._is_valid = self._validator.is_valid
        self._short, self._worst = _limits(msgspec.json.decode(schema_json), DIALECTS[uri].id_keyword)
        self._at_once = self._worst[-1]

    def is_light(self, raw: bytes) -> bool:
        """Returns whether the check of this JSON text is so short that the event loop can do it."""
        size = len(raw)
        return size <= self._at_once or self._is_light(raw, size)

    def _is_light(self, raw: bytes, size: int) -> bool:
        depth = raw.count(b"{") + raw.count(b"[") if len(self._short) > 1 else 0
        if size <= self._worst[min(depth, len(self._worst) - 1)]:
            return True
        return size <= self._short[min(depth, len(self._short) - 1)] and _LONG_NUMBER.search(raw) is None

    def violations(self, instance: object) -> list[Violation]:
        """Returns how a JSON value breaks the schema, at most 20 violations and 4 KiB; an empty list if it does not.

        No message repeats a value of the instance. Of a value of more than 500 nodes only one violation is told.
        """
        return [] if self._is_valid(instance) else self._told(instance)

    def _told(self, instance: object) -> list[Violation]:
        told: list[Violation] = []
        left = MAX_VIOLATIONS_BYTES
        for error in self._errors(instance):
            violation = Violation(_short_pointer(error.instance_path), _message(error))
            left -= len(msgspec.json.encode(violation._asdict())) + 1
            if left < 0 or len(told) == MAX_VIOLATIONS:
                break
            told.append(violation)
        return told

    def _errors(self, instance: object) -> Iterator[jsonschema_rs.ValidationError]:
        if not _larger(instance, _MAX_NODES_TOLD_WHOLE):
            yield from self._validator.iter_errors(instance)
            return
        try:
            self._validator.validate(instance)
        except jsonschema_rs.ValidationError as error:
            yield error


def _limits(schema: object, id_keyword: str) -> tuple[list[int], list[int]]:
    """Returns up to how many bytes a check is light, by the depth of the value: usually, and with long numbers."""
    if not isinstance(schema, dict):
        return [_INLINE_BYTES], [_INLINE_BYTES]
    places = (Place(position.schema, position.pointer, position.base) for position in positions(schema, id_keyword))
    usual, worst = rates(schema, places, id_keyword)
    return _bytes(usual), _bytes(worst)


def _bytes(rates: list[float]) -> list[int]:
    return [min(_INLINE_BYTES, int(_INLINE_NS / rate)) for rate in rates]


def _larger(value: object, limit: int) -> bool:
    """Tells whether a JSON value has more than `limit` members and elements in all, without counting them all."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            limit -= len(node)
            if limit < 0:
                return True
            stack.extend(node.values() if isinstance(node, dict) else node)
    return False


def _pointer(path: Iterable[str | int]) -> str:
    return "".join(token(str(name)) for name in path)


def _short_pointer(path: Iterable[str | int]) -> str:
    """The pointer, or that of the nearest ancestor which is short enough: names in the path are the caller's too."""
    pointer = ""
    for name in path:
        longer = pointer + token(str(name))
        if len(longer) > _MAX_POINTER:
            break
        pointer = longer
    return pointer


def _message(error: jsonschema_rs.ValidationError) -> str:
    if not isinstance(error.kind, jsonschema_rs.ValidationErrorKind.FalseSchema):
        return _cut(error.message)
    # What a tool without arguments says of any argument.
    alone = error.schema_path[-1:] == ["additionalProperties"]
    return "no properties are allowed here" if alone else "no value is allowed here"


def _cut(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
