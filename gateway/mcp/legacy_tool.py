"""Shapes an MCP `Tool` for clients of revisions up to 2025-11-25. Pure.

Clients reject the whole of `tools/list` for one tool that they cannot read. Those of the older revisions want an
`outputSchema` with an object root, and the TypeScript SDK 1.x wants `properties` without boolean schemas and compiles
every `outputSchema` with Ajv when it lists.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

# Regular expressions that ECMAScript, with its `u` flag, certainly takes: what else it takes does not matter here.
_CHARACTER = r"\\(?:[tnrfv^$\\.*+?()\[\]{}|/]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
_SET = r"\\(?:[dDwWsS]|[pP]\{[A-Z][a-z]?\})"
_IN_CLASS = rf"(?:[^\]\\\[-]|{_CHARACTER}|\\-)"
_CLASS = rf"\[\^?-?(?:{_SET}|{_IN_CLASS}(?:-{_IN_CLASS})?)*-?\]"
_ATOM = rf"(?:[^\\()\[\]{{}}*+?|^$]|{_CHARACTER}|{_SET}|{_CLASS}|\))"
_QUANTIFIER = r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??"
_UNQUANTIFIED = r"(?:[|^$]|\\[bB]|\((?:\?(?:[:=!]|<[=!]|<[A-Za-z_]\w*>))?)"
_ECMASCRIPT = re.compile(rf"(?:{_ATOM}(?:{_QUANTIFIER})?|{_UNQUANTIFIED})*", re.DOTALL)
# It takes no quantified assertion.
_ASSERTION = re.compile(r"\(\?<?[=!]")
_QUANTIFIED_GROUP = re.compile(r"\)[*+?{]")

# Keywords that Ajv may refuse: those that mean something else to it, and identifiers, which it keeps across schemas.
_AJV_REFUSES = frozenset(
    [
        *("$anchor", "$dynamicAnchor", "$id", "id", "nullable"),
        *("formatExclusiveMaximum", "formatExclusiveMinimum", "formatMaximum", "formatMinimum"),
    ]
)
# Draft 4 isn't among them: Ajv refuses its `id` and its boolean `exclusiveMaximum`.
_DIALECTS = frozenset(
    [
        *("http://json-schema.org/draft-06/schema", "http://json-schema.org/draft-07/schema"),
        *("https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema"),
    ]
)
# What stands beside these keywords is a schema, a list of schemas or a map of schemas; all else is data.
_SCHEMA = frozenset(
    [
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    ]
)
_SCHEMAS = frozenset(["allOf", "anyOf", "items", "oneOf", "prefixItems"])
_NAMED_SCHEMAS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BOOLEANS = {b"true": b"{}", b"false": b'{"not":{}}'}
_KEPT = 4096


class LegacyTools:
    """Shapes tools, and remembers what became of them: the same list is asked for again and again."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, bytes | None] = OrderedDict()

    def shaped(self, tool: bytes) -> bytes:
        """Returns the JSON text of a tool as old clients can take it, which mostly is the same."""
        key = blake2b(tool, digest_size=16).digest()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key] or tool
        legacy = legacy_tool(tool)
        self._known[key] = None if legacy == tool else legacy
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return legacy


def legacy_tool(tool: bytes) -> bytes:
    """Returns the JSON text of a tool as clients of revisions up to 2025-11-25 can take it."""
    parts = _members(tool)
    shaped = dict(parts)
    if "inputSchema" in parts:
        shaped["inputSchema"] = _without_booleans(parts["inputSchema"])
    if "outputSchema" in parts:
        if _legacy_clients_take(parts["outputSchema"]):
            shaped["outputSchema"] = _without_booleans(parts["outputSchema"])
        else:
            del shaped["outputSchema"]
    return tool if shaped == parts else _join(shaped)


def _members(text: bytes) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in _MEMBERS.decode(text).items()}


def _join(parts: dict[str, bytes]) -> bytes:
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + raw for name, raw in parts.items()) + b"}"


def _without_booleans(schema: bytes) -> bytes:
    """Returns the schema with the boolean schemas of its root's `properties` written as objects that mean the same."""
    parts = _members(schema)
    properties = _members(parts.get("properties", b"{}"))
    if _BOOLEANS.keys().isdisjoint(properties.values()):
        return schema
    shaped = {name: _BOOLEANS.get(raw, raw) for name, raw in properties.items()}
    return _join({**parts, "properties": _join(shaped)})


def _legacy_clients_take(output_schema: bytes) -> bool:
    schema = msgspec.json.decode(output_schema)
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    dialect = schema.get("$schema")
    if dialect is not None and str(dialect).removesuffix("#") not in _DIALECTS:
        return False
    return all(map(_ajv_compiles, _subschemas(schema)))


def _subschemas(root: dict[str, object]) -> Iterator[dict[str, object]]:
    stack: list[object] = [root]
    while stack:
        schema = stack.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for keyword, value in schema.items():
            if isinstance(value, dict) and keyword in _NAMED_SCHEMAS:
                stack.extend(value.values())
            elif isinstance(value, list) and keyword in _SCHEMAS:
                stack.extend(value)
            elif keyword in _SCHEMA:
                stack.append(value)


def _ajv_compiles(schema: dict[str, object]) -> bool:
    if _AJV_REFUSES & schema.keys() or schema.get("enum") == []:
        return False
    by_pattern = schema.get("patternProperties")
    patterns = [schema.get("pattern", ""), *(by_pattern if isinstance(by_pattern, dict) else ())]
    return all(isinstance(pattern, str) and _is_ecmascript(pattern) for pattern in patterns)


def _is_ecmascript(pattern: str) -> bool:
    if _ASSERTION.search(pattern) and _QUANTIFIED_GROUP.search(pattern):
        return False
    return _ECMASCRIPT.fullmatch(pattern) is not None
