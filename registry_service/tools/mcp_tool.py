"""Makes the MCP `Tool` object of a definition, as JSON text. The gateway shapes it for older clients."""

import msgspec

from registry_service.tools.definition import Definition
from registry_service.tools.json_document import join, members

_SERVED = ("title", "description", "inputSchema", "outputSchema", "annotations", "icons", "_meta")


def tool(name: str, definition: Definition) -> bytes:
    """Returns the `Tool` of a definition, its members' text as it came."""
    given = members(definition.document)
    parts = {"name": msgspec.json.encode(name)}
    return join(parts | {member: given[member] for member in _SERVED if member in given})
