"""The MCP `Tool` object of a definition, as JSON text, and the form of it that older clients can take.

Clients reject the whole of `tools/list` for one tool that they cannot read. Those of revisions up to 2025-11-25 want an
`outputSchema` with an object root, and the TypeScript SDK 1.x wants `properties` without boolean schemas and compiles
every `outputSchema` with Ajv when it lists.
"""

import re

import msgspec

from registry_service.tools.definition import Definition
from registry_service.tools.json_document import join, members, read
from registry_service.tools.json_schema import DIALECTS, DRAFT_04, dialect_uri
from registry_service.tools.schema_walk import positions

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


def tool(name: str, definition: Definition) -> bytes:
    """The `Tool` of revision 2026-07-28."""
    return join(_parts(name, definition))


def legacy_tool(name: str, definition: Definition) -> bytes:
    """The `Tool` for revisions up to 2025-11-25; empty where it is the same."""
    parts = _parts(name, definition)
    shaped = {**parts, "inputSchema": _without_booleans(definition.input_schema)}
    if definition.output_schema is not None:
        if _legacy_clients_take(definition.output_schema):
            shaped["outputSchema"] = _without_booleans(definition.output_schema)
        else:
            del shaped["outputSchema"]
    return b"" if shaped == parts else join(shaped)


def _parts(name: str, definition: Definition) -> dict[str, bytes]:
    given = members(definition.document)
    served = ("title", "description", "inputSchema", "outputSchema", "annotations", "icons", "_meta")
    return {"name": msgspec.json.encode(name)} | {member: given[member] for member in served if member in given}


def _without_booleans(schema: bytes) -> bytes:
    """The schema with the boolean schemas of its root's `properties` written as objects that mean the same."""
    parts = members(schema)
    properties = members(parts.get("properties", b"{}"))
    if not {b"true", b"false"} & set(properties.values()):
        return schema
    meaning = {b"true": b"{}", b"false": b'{"not":{}}'}
    shaped = {name: meaning.get(text, text) for name, text in properties.items()}
    return join({**parts, "properties": join(shaped)})


def _legacy_clients_take(output_schema: bytes) -> bool:
    schema = read(output_schema)
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    uri = dialect_uri(schema)
    if uri is None or uri == DRAFT_04:  # whose `id` and boolean `exclusiveMaximum` Ajv refuses
        return False
    return all(_ajv_compiles(place.schema) for place in positions(schema, DIALECTS[uri].id_keyword))


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
