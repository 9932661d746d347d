"""Checks the defaults and examples in a JSON Schema against the subschemas that they stand in, where that is cheap.

The library holds the interpreter's lock while it compiles and checks: what could take long is left unchecked.
"""

import json
from collections.abc import Iterator, Mapping

import jsonschema_rs

from registry_service.tools.json_document import Fault
from registry_service.tools.schema_cost import MAX_PATTERN_BYTES, Rates, pattern_size, patterns, rates
from registry_service.tools.schema_walk import Below, Position, children

_MAX_MESSAGE = 200
# What the check of one value, and of all of a schema, may take at worst, in nanoseconds.
_VALUE_NS = 5_000_000
_SCHEMA_NS = 50_000_000
# Each subschema gets a validator of its own, with all that it leads to. Measured: 9 µs for each of those.
_MAX_COMPILED = 20_000
_DATA = ("enum", "const", "required", "dependentRequired", "dependencies")
_DATA_BYTES = 64
_PATTERN_BYTES = 16 * 1024
# The engine that values are checked with: json_schema.py says why.
_LINEAR = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)


def example_slips(root: dict[str, object], places: list[Position], id_keyword: str) -> dict[str, list[Fault]]:
    """Returns the defaults and examples that don't fit, by the pointer of the subschema that they stand in."""
    asking = [place for place in places if _has_values(place.schema)]
    if not asking or not _compiles_fast(places, Below(root, places, id_keyword)):
        return {}
    try:
        checks = jsonschema_rs.validator_map_for(root, offline=True, pattern_options=_LINEAR)
    except (ValueError, jsonschema_rs.ValidationError):
        return {}  # its faults are told elsewhere, and so is a pattern that isn't checked
    # One that holds them all costs as much as the costliest of them.
    holder: dict[str, object] = {"properties": {place.pointer: place.schema for place in asking}}
    cost = rates(holder, places, id_keyword, root)
    left = _SCHEMA_NS
    found: dict[str, list[Fault]] = {}
    for place in asking:
        validator = checks.get("#" + place.pointer)
        if validator is None:
            continue
        for at, value in _values(place.schema):
            takes = _nanoseconds(cost, value)
            if takes > min(_VALUE_NS, left):
                continue
            left -= takes
            if (message := _complaint(validator, value)) is not None:
                found.setdefault(place.pointer, []).append(Fault(at, message))
    return found


def _has_values(schema: Mapping[str, object]) -> bool:
    return "default" in schema or isinstance(schema.get("examples"), list)


def _values(schema: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    if "default" in schema:
        yield "/default", schema["default"]
    examples = schema.get("examples")
    for number, value in enumerate(examples if isinstance(examples, list) else ()):
        yield f"/examples/{number}", value


def _nanoseconds(cost: Rates, value: object) -> int:
    raw = json.dumps(value).encode()
    # The holder is one level above the value.
    return int(len(raw) * cost.of(raw, above=1))


def _complaint(validator: jsonschema_rs.Validator, value: object) -> str | None:
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        message = f"doesn't fit its own schema: {error.message}"
        return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
    return None


def _compiles_fast(places: list[Position], below: Below) -> bool:
    """Says whether all subschemas together lead to few others: to all of them each, where they refer to one another."""
    weights: dict[int, int] = {}
    left = _MAX_COMPILED
    for place in places:
        seen, stack = {id(place.schema)}, [place.schema]
        while stack:
            node = stack.pop()
            if id(node) not in weights:
                weights[id(node)] = _weight(node)
            left -= weights[id(node)]
            if left < 0:
                return False
            written = [child for _, _, child in children(node) if isinstance(child, dict)]
            for child in (*written, *below(node)):
                if id(child) not in seen:
                    seen.add(id(child))
                    stack.append(child)
    return True


def _weight(schema: dict[str, object]) -> int:
    data = len(json.dumps([schema[keyword] for keyword in _DATA if keyword in schema]))
    automata = sum(pattern_size(pattern) or 0 for _, pattern in patterns(schema))
    booleans = sum(isinstance(child, bool) for _, _, child in children(schema))
    return 1 + data // _DATA_BYTES + automata // _PATTERN_BYTES + booleans
