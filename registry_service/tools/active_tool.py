"""Holds a version of a tool ready to run: what its definition promises, what clients see of it, and its checks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import structlog

from registry_service.tools import mcp_tool
from registry_service.tools.definition import Definition, stored_definition
from registry_service.tools.json_document import Fault
from registry_service.tools.schema_check import CompiledSchemas, SchemaCheck

Key = tuple[str, str]

_log = structlog.get_logger()


class Running:
    """Counts the calls of a version that run in this process. It outlives reloads; the execution changes it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True, slots=True, eq=False)
class ActiveTool:
    """Holds a version that runs. `mcp_tool` is the JSON text of the MCP `Tool`, as clients of 2026-07-28 see it."""

    name: str
    version: str
    definition: Definition
    mcp_tool: bytes
    arguments: SchemaCheck
    output: SchemaCheck | None
    running: Running


def read_all(
    rows: Iterable[tuple[str, str, bytes]], counters: Mapping[Key, Running], held: CompiledSchemas
) -> dict[Key, ActiveTool | None]:
    """Reads versions, each with the document that is stored of it; None stands for one that can't be read."""
    return {(tool, version): _read(tool, version, text, counters[tool, version], held) for tool, version, text in rows}


def _read(tool: str, version: str, document: bytes, running: Running, held: CompiledSchemas) -> ActiveTool | None:
    definition = stored_definition(document)
    if isinstance(definition, list):
        _log_unreadable(tool, version, definition)
        return None
    output = definition.output_schema
    try:
        return ActiveTool(
            name=tool,
            version=version,
            # The text of the whole is needed no more, and there may be thousands.
            definition=msgspec.structs.replace(definition, document=b""),
            mcp_tool=mcp_tool.tool(tool, definition),
            arguments=SchemaCheck(definition.input_schema, held),
            output=None if output is None else SchemaCheck(output, held),
            running=running,
        )
    except ValueError as error:
        _log_unreadable(tool, version, [Fault("", str(error))])
        return None


def _log_unreadable(tool: str, version: str, faults: list[Fault]) -> None:
    # It was checked when it was registered: another release of Naru, or somebody's hand, wrote it.
    told = [f"{pointer} {message}".strip() for pointer, message in faults[:5]]
    _log.error("catalog.version_unreadable", tool=tool, version=version, faults=told)
