"""Estimates how long the check of a value can take at worst, from what a JSON Schema applies to it.

The figures were measured with jsonschema-rs 0.61 on a slow core, with the values that are the worst for it, and are in
nanoseconds for each byte of the value's JSON text. They need not be exact: they decide where a check runs, and not
whether it does.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import jsonschema_rs

from registry_service.tools.schema_walk import Below, Position

# A pattern that compiles to more is refused, and all patterns of a schema together may have four times as much.
MAX_PATTERN_BYTES = 2 * 1024 * 1024
MAX_PATTERNS_BYTES = 4 * MAX_PATTERN_BYTES
_PATTERN_SIZES = (256, 2 * 1024, 16 * 1024, 128 * 1024, 512 * 1024, MAX_PATTERN_BYTES)
# The engine that takes time in proportion to the text visits each state of the automaton for each byte, at worst.
_NS_PER_PATTERN_BYTE = 0.12

# Reading the JSON, and looking at a value once.
_READING = 70.0
_APPLYING = 20.0
_UNIQUE = 60.0
# Numbers of more than 18 digits have one and the same hash, so that each is compared with every other; numbers of
# different kinds are compared exactly, as fractions.
_UNIQUE_SLOW_NUMBERS = 4000.0
_NUMBER_IN_ENUM = 2000.0
_VALUE_IN_ENUM = 40.0
_NAME = 6.0
_FIXED: Mapping[str, float] = {
    "multipleOf": 4000.0,
    "const": 100.0,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), 200.0),
    **dict.fromkeys(("format", "contentMediaType", "contentEncoding"), 40.0),
}
SLOW_NUMBER = re.compile(rb"[0-9](?:[0-9]{18}|[.eE][0-9+-])")
_MAX_DEPTH = 64
# Bounds the work of the estimate itself, in additions; what would take more is taken for the worst.
_MAX_WORK = 300_000
_ENDLESS = 1e18

_ALTERNATIVES = ("properties", "prefixItems")
_EACH = ("additionalItems", "additionalProperties", "contains", "propertyNames")
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")


class Rates(NamedTuple):
    """Holds nanoseconds per byte of a value that nests as deep as the index; the last holds for every deeper one.

    `usual` holds where no number has a fraction, an exponent or more than 18 digits, `worst` always.
    """

    usual: list[float]
    worst: list[float]

    def of(self, raw: bytes, above: int = 0) -> float:
        """Returns the rate of JSON text. `above` says how many levels the value stands below what the rates are of."""
        by_depth = self.worst if SLOW_NUMBER.search(raw) else self.usual
        return by_depth[min(raw.count(b"{") + raw.count(b"[") + above, len(by_depth) - 1)]


def rates(
    schema: dict[str, object], places: Iterable[Position], id_keyword: str, root: dict[str, object] | None = None
) -> Rates:
    """Returns what a check costs at worst. `places` are the root, the schema itself by default, and all below it."""
    nodes = _in_order(schema, Below(root or schema, places, id_keyword))
    usual = _by_depth(nodes, [node.own for node in nodes])
    if not any(node.slow_numbers for node in nodes):
        return Rates(usual, usual)
    return Rates(usual, _by_depth(nodes, [node.own + node.slow_numbers for node in nodes]))


@functools.lru_cache(maxsize=4096)
def pattern_size(pattern: str) -> int | None:
    """Returns a bound on the bytes that a regular expression compiles to, or None if it isn't one or is too large."""
    for size in _PATTERN_SIZES:
        try:
            options = jsonschema_rs.RegexOptions(size_limit=size)
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
        except jsonschema_rs.ValidationError:
            continue
        return size
    return None


def patterns(schema: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields the regular expressions of a subschema itself, each with the keyword that it stands in."""
    pattern, by_pattern = schema.get("pattern"), schema.get("patternProperties")
    if isinstance(pattern, str):
        yield "pattern", pattern
    for name in by_pattern if isinstance(by_pattern, dict) else ():
        yield "patternProperties", name


class _Node(NamedTuple):
    """Holds a subschema's own cost, how often the rest of it is looked at, and the places of others in the list.

    `slow_numbers` is what numbers with a fraction or many digits add. `here` apply to the same value; of `one_of`
    groups one member applies to a value below, of `each` all may.
    """

    own: float
    slow_numbers: float
    times: int
    here: list[int]
    one_of: list[list[int]]
    each: list[int]


def _in_order(root: dict[str, object], below: Callable[[dict[str, object]], list[dict[str, object]]]) -> list[_Node]:
    """Returns every subschema after those that apply to the same value as it; the root stands last once more."""
    found: list[tuple[dict[str, object], list[dict[str, object]], list[list[dict[str, object]]]]] = []
    seen: set[int] = set()
    starts = [root]
    while starts:
        start = starts.pop()
        stack = [] if id(start) in seen else [(start, here := below(start), iter(here))]
        seen.add(id(start))
        while stack:
            node, here, rest = stack[-1]
            child = next((child for child in rest if id(child) not in seen), None)
            if child is None:
                stack.pop()
                groups = _groups_below(node)
                found.append((node, here, groups))
                starts.extend(child for group in groups for child in group)
            else:
                seen.add(id(child))
                stack.append((child, here := below(child), iter(here)))
    at = {id(schema): index for index, (schema, _, _) in enumerate(found)}
    nodes = [_node(schema, here, groups, at) for schema, here, groups in found]
    return [*nodes, nodes[at[id(root)]]]


def _node(
    schema: dict[str, object],
    here: list[dict[str, object]],
    groups: list[list[dict[str, object]]],
    at: Mapping[int, int],
) -> _Node:
    *one_of, each = ([at[id(child)] for child in group] for group in groups)
    times = 1 + sum(keyword in schema for keyword in _UNEVALUATED)
    own, slow_numbers = _own(schema)
    return _Node(own, slow_numbers, times, [at[id(child)] for child in here], list(filter(None, one_of)), each)


def _groups_below(schema: dict[str, object]) -> list[list[dict[str, object]]]:
    """Returns the subschemas that apply to a member or element: groups of which one applies, then all the others."""
    items, by_pattern = schema.get("items"), schema.get("patternProperties")
    alternatives = [schema.get(keyword) for keyword in _ALTERNATIVES] + [items if isinstance(items, list) else None]
    each = [schema.get(keyword) for keyword in (*_EACH, *_UNEVALUATED)]
    each += [items, *(by_pattern.values() if isinstance(by_pattern, dict) else ())]
    return [_schemas(group.values() if isinstance(group, dict) else group) for group in alternatives] + [_schemas(each)]


def _schemas(values: object) -> list[dict[str, object]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, Iterable) else []


def _own(schema: Mapping[str, object]) -> tuple[float, float]:
    """Returns the cost of a subschema's own keywords, and what slow numbers add to it."""
    cost, slow = _APPLYING + sum(_FIXED.get(keyword, 0.0) for keyword in schema), 0.0
    for _, pattern in patterns(schema):
        cost += _NS_PER_PATTERN_BYTE * (pattern_size(pattern) or MAX_PATTERN_BYTES)
    if schema.get("uniqueItems"):
        cost += _UNIQUE
        slow += _UNIQUE_SLOW_NUMBERS
    listed = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    if not all(isinstance(value, str) for value in listed):
        integers = sum(isinstance(value, int) for value in listed)
        slow += _NUMBER_IN_ENUM * integers
        if integers < len(listed):
            cost += _NUMBER_IN_ENUM * sum(isinstance(value, float) for value in listed) + _VALUE_IN_ENUM * len(listed)
    dependent = [schema.get(keyword) for keyword in ("dependentRequired", "dependencies")]
    names = len(_list(schema.get("required"))) + sum(len(names) for names in dependent if isinstance(names, dict))
    return cost + _NAME * names, slow


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _by_depth(nodes: list[_Node], own: list[float]) -> list[float]:
    """Returns the highest cost of a byte by the depth of the value, from the costs one level above it."""
    inner = [(index, node) for index, node in enumerate(nodes) if node.here or node.each or node.one_of]
    work = sum(len(node.here) + len(node.each) + sum(map(len, node.one_of)) for _, node in inner)
    above, found = [0.0] * len(nodes), [_READING]
    for depth in range(_MAX_DEPTH):
        if work * depth > _MAX_WORK:
            return [_ENDLESS]
        costs = [0.0] * len(nodes) if depth else own.copy()
        for index, node in inner:
            cost = sum([costs[at] for at in node.here]) + sum([above[at] for at in node.each])
            cost = costs[index] + cost * node.times
            for group in node.one_of:
                cost += max([above[at] for at in group])
            costs[index] = min(cost, _ENDLESS)
        found.append(max(_READING + costs[-1], found[-1]))
        if depth and (costs == above or not any(costs)):
            break
        above = costs
    return found[1:]
