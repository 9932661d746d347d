"""Loosens JSON Schemas around the patterns that can't be checked in bounded time.

The rest is checked, and nothing is refused for what was left out.
"""

import copy
from collections.abc import Iterable, Iterator

from registry_service.tools.schema_cost import pattern_size
from registry_service.tools.schema_walk import Below, Position, children


def loosened(root: dict[str, object], places: Iterable[Position], id_keyword: str) -> dict[str, object]:
    """Returns a copy that takes every value that the schema takes, without its patterns that can't be checked.

    `places` are the schema and all its subschemas.
    """
    below = Below(root, list(places), id_keyword)
    nodes = list(_nodes(root, below))
    affected = _affected(nodes, below)
    twins = {id(node): twin for node, twin in _twins(root, copy.deepcopy(root))}
    for node in nodes:
        twin = twins.get(id(node))
        if twin is not None:
            _loosen(node, twin, affected)
    return twins[id(root)]


def _nodes(root: dict[str, object], below: Below) -> Iterator[dict[str, object]]:
    """Yields every subschema, those as well that only a reference makes one."""
    seen, stack = {id(root)}, [root]
    while stack:
        node = stack.pop()
        yield node
        for child in _reached(node, below):
            if id(child) not in seen:
                seen.add(id(child))
                stack.append(child)


def _reached(node: dict[str, object], below: Below) -> list[dict[str, object]]:
    return below(node) + [child for _, _, child in children(node) if isinstance(child, dict)]


def _affected(nodes: list[dict[str, object]], below: Below) -> set[int]:
    """Returns the identities of the subschemas that take more once the patterns are gone, directly or by others."""
    above: dict[int, list[int]] = {}
    for node in nodes:
        for child in _reached(node, below):
            above.setdefault(id(child), []).append(id(node))
    affected: set[int] = set()
    stack = [id(node) for node in nodes if any(True for _ in _unchecked(node))]
    while stack:
        node_id = stack.pop()
        if node_id not in affected:
            affected.add(node_id)
            stack.extend(above.get(node_id, ()))
    return affected


def _unchecked(node: dict[str, object]) -> Iterator[tuple[str, str]]:
    pattern, by_pattern = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str) and pattern_size(pattern) is None:
        yield "pattern", pattern
    for name in by_pattern if isinstance(by_pattern, dict) else ():
        if pattern_size(name) is None:
            yield "patternProperties", name


def _twins(node: object, twin: object) -> Iterator[tuple[object, dict[str, object]]]:
    """Yields each object of a JSON value with its counterpart in a copy."""
    stack = [(node, twin)]
    while stack:
        node, twin = stack.pop()
        if isinstance(node, dict) and isinstance(twin, dict):
            yield node, twin
            stack.extend(zip(node.values(), twin.values(), strict=True))
        elif isinstance(node, list) and isinstance(twin, list):
            stack.extend(zip(node, twin, strict=True))


def _loosen(node: dict[str, object], twin: dict[str, object], affected: set[int]) -> None:
    for keyword, pattern in list(_unchecked(node)):
        if keyword == "pattern":
            twin.pop("pattern", None)
            continue
        by_pattern = twin["patternProperties"]
        if isinstance(by_pattern, dict):
            by_pattern.pop(pattern, None)
            # Any name may be one that the pattern means: none is additional.
            by_pattern.setdefault("", {})
    _loosen_reversed(node, twin, affected)


def _loosen_reversed(node: dict[str, object], twin: dict[str, object], affected: set[int]) -> None:
    """Replaces the keywords that take less where their subschemas take more.

    What takes their place still says which members were looked at, for `unevaluatedProperties` and its kind.
    """
    instead: list[object] = []
    if id(node.get("not")) in affected:
        twin.pop("not", None)
    if id(node.get("contains")) in affected:
        twin.pop("maxContains", None)
    branches = node.get("oneOf")
    if isinstance(branches, list) and any(id(branch) in affected for branch in branches):
        instead.append({"anyOf": twin.pop("oneOf")})
    if id(node.get("if")) in affected:
        condition, then = twin.pop("if"), twin.pop("then", {})
        instead.append({"anyOf": [{"allOf": [condition, then]}, twin.pop("else", {})]})
    if instead:
        together = twin.get("allOf")
        twin["allOf"] = [*(together if isinstance(together, list) else []), *instead]
