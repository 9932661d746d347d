"""Serves `naru tool …`: manifests, tools and which of their versions are active."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from naru.v1 import registry_pb2
from naru_cli import manifest_file
from naru_cli import output as out
from naru_cli.arguments import type_names
from naru_cli.channel import MAX_MESSAGE
from naru_cli.command import AsJson, command, new_app, pages, registry
from naru_cli.failures import CliError, Exit

app = new_app(help="Registers, activates and shows tools.")

ToolName = Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="The version, such as 1.0.0.")]


@command(app, "apply")
def tool_apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="The manifest, YAML or JSON; - for standard input.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fill in ${NAME} below `endpoint`.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Take each warning for a fault.")] = False,
    as_json: AsJson = False,
) -> None:
    """Registers and activates what a manifest says: all of it, or nothing if there is one fault."""
    manifest = read_manifest(file, dict(variable(text) for text in sets or ()))
    for name in manifest.unused:
        out.note(f"--set {name} fills in nothing: there is no ${{{name}}} below an `endpoint` of {file}")
    request = registry_pb2.ApplyManifestRequest(manifest=manifest.text, validate_only=dry_run, strict=strict)
    check_size(file, request)
    answer: registry_pb2.ApplyManifestResponse = registry("ApplyManifest", request)
    if answer.faults:
        raise manifest_error(str(file), answer, manifest)
    warnings = [Remark(fault, manifest) for fault in answer.warnings]
    changes = [
        (change.tool, change.version, registry_pb2.ApplyManifestResponse.Change.Action.Name(change.action))
        for change in answer.changes
    ]
    if as_json:
        names = ("tool", "version", "action")
        shown = [dict(zip(names, change, strict=True)) for change in changes]
        out.show_json({"dry_run": dry_run, "changes": shown, "warnings": [warning.as_dict() for warning in warnings]})
        return
    for warning in warnings:
        out.note(f"warning: {warning.line(str(file))}")
    out.table(
        ["tool", "version", "would be" if dry_run else "done"], map(readable, changes), "the manifest has no tools"
    )


def check_size(file: Path, request: registry_pb2.ApplyManifestRequest) -> None:
    """Raises CliError (INVALID) for a manifest that the registry would not take."""
    if (size := request.ByteSize()) > MAX_MESSAGE:
        message = f"{file} is {size:,} bytes as JSON, and the registry takes {MAX_MESSAGE:,} at once: nothing was sent"
        facts = {"size_bytes": size, "limit_bytes": MAX_MESSAGE}
        remedy = "split it into several files; each is applied whole or not at all"
        raise CliError(f"{message}; {remedy}", Exit.INVALID, "MANIFEST_TOO_LARGE", facts)


def readable(change: tuple[str, str, str]) -> tuple[str, str, str]:
    tool, version, action = change
    return tool, version, action.lower().replace("_", " ")


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CliError(f"--set {text!r}: want NAME=VALUE", Exit.USAGE)
    return name, value


def read_manifest(file: Path, variables: dict[str, str]) -> manifest_file.Manifest:
    try:
        if str(file) == "-":
            return manifest_file.parse(sys.stdin.buffer.read(), variables)
        return manifest_file.read(file, variables)
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}", Exit.USAGE) from error
    except manifest_file.ManifestError as error:
        shown = [{"message": fault.message, **place_dict(fault.place)} for fault in error.faults]
        lines = [f"{located(str(file), fault.place)}: {fault.message}" for fault in error.faults]
        message = "\n".join(["this is no manifest:", *lines])
        raise CliError(message, Exit.INVALID, "MANIFEST_INVALID", {"faults": shown}) from error


class Remark:
    """Holds a fault or a warning of the registry, with the place in the file that it is about."""

    def __init__(self, fault: registry_pb2.ApplyManifestResponse.Fault, manifest: manifest_file.Manifest) -> None:
        self.fault = fault
        self.place = nearest(fault.pointer, manifest)

    def line(self, file: str) -> str:
        fault = self.fault
        tool = f" ({fault.tool})" if fault.tool else ""
        return f"{located(file, self.place)}: {fault.pointer or '/'}{tool}: {fault.message}"

    def as_dict(self) -> dict[str, Any]:
        fault = self.fault
        return {"pointer": fault.pointer, "tool": fault.tool, "message": fault.message, **place_dict(self.place)}


def manifest_error(file: str, answer: registry_pb2.ApplyManifestResponse, manifest: manifest_file.Manifest) -> CliError:
    """Returns the registry's faults and warnings, with the lines that they are in."""
    faults = [Remark(fault, manifest) for fault in answer.faults]
    warnings = [Remark(fault, manifest) for fault in answer.warnings]
    lines = [fault.line(file) for fault in faults] + [f"warning: {warning.line(file)}" for warning in warnings]
    message = "\n".join(["the registry refused the manifest, and nothing was changed:", *lines])
    facts = {"faults": [fault.as_dict() for fault in faults], "warnings": [warning.as_dict() for warning in warnings]}
    return CliError(message, Exit.INVALID, "MANIFEST_INVALID", facts)


def nearest(pointer: str, manifest: manifest_file.Manifest) -> manifest_file.Place | None:
    """Returns where a pointer leads, or as near as the manifest goes: it may name what is missing."""
    while pointer and pointer not in manifest.places:
        pointer = pointer.rpartition("/")[0]
    return manifest.places.get(pointer)


def located(file: str, place: manifest_file.Place | None) -> str:
    return file if place is None else f"{file}:{place.line}:{place.column}"


def place_dict(place: manifest_file.Place | None) -> dict[str, int]:
    return {} if place is None else place._asdict()


@command(app, "list")
def tool_list(as_json: AsJson = False) -> None:
    """Lists the tools and their active versions."""
    tools = list(pages(registry, "ListTools", registry_pb2.ListToolsRequest(), "tools"))
    if as_json:
        out.show_json([out.tool_dict(tool) for tool in tools])
        return
    rows = [
        (tool.name, ", ".join(tool.active_versions) or "-", str(tool.version_count), out.time_of(tool.update_time))
        for tool in tools
    ]
    out.table(["tool", "active", "versions", "last change"], rows, "no tools: naru tool apply -f FILE registers some")


@command(app, "show")
def tool_show(
    name: ToolName,
    number: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="Only this version, with its definition.")
    ] = None,
    option: Annotated[str | None, typer.Option("--version", help="The same.")] = None,
    as_json: AsJson = False,
) -> None:
    """Shows a tool's versions and arguments, or the definition of one version."""
    if number is not None and option is not None and number != option:
        raise CliError(f"VERSION {number} and --version {option} name two versions: use one", Exit.USAGE)
    version = number if option is None else option
    if version is not None:
        found = registry("GetToolVersion", registry_pb2.GetToolVersionRequest(tool=name, version=version))
        out.show_json(out.version_dict(found))
        return
    tool = registry("GetTool", registry_pb2.GetToolRequest(name=name))
    request = registry_pb2.ListToolVersionsRequest(tool=name)
    versions = list(pages(registry, "ListToolVersions", request, "tool_versions"))
    if as_json:
        out.show_json({**out.tool_dict(tool), "versions": [out.version_dict(item) for item in versions]})
        return
    rows = [(item.version, "active" if item.active else "", out.time_of(item.create_time)) for item in versions]
    out.table([name, "state", "registered"], rows, "no versions")
    shown = [item for item in versions if item.active] or versions[:1]
    for item in shown:
        show_arguments(item, "argument" if len(shown) == 1 else f"argument of {item.version}")


def show_arguments(version: registry_pb2.ToolVersion, title: str) -> None:
    """Shows what `naru call` takes: the properties of the input schema."""
    schema = msgspec.json.decode(version.definition, type=InputSchemaOnly).input_schema
    rows = [
        (name, type_text(property_), "required" if name in schema.required else "", description(property_))
        for name, property_ in schema.properties.items()
    ]
    out.table([title, "type", "", "meaning"], rows, f"{version.version} names no arguments")


class InputSchema(msgspec.Struct):
    """Holds what is read of a schema whose properties and `required` are where they usually are."""

    properties: dict[str, Any] = {}
    required: list[Any] = []


class InputSchemaOnly(msgspec.Struct):
    input_schema: InputSchema = msgspec.field(name="inputSchema", default_factory=InputSchema)


def type_text(schema: object) -> str:
    """Returns `integer`, `string | null`, `"a" | "b"`; empty where the schema says it in another way."""
    if not isinstance(schema, dict):
        return ""
    if isinstance(values := schema.get("enum"), list):
        return " | ".join(msgspec.json.encode(value).decode() for value in values)
    return " | ".join(sorted(type_names(schema)))


def description(schema: object) -> str:
    return str(schema.get("description", "")) if isinstance(schema, dict) else ""


def show_tool(tool: registry_pb2.Tool, as_json: bool) -> None:
    if as_json:
        out.show_json(out.tool_dict(tool))
    else:
        out.show(f"{tool.name}: active: {', '.join(tool.active_versions) or 'none'}")


@command(app, "activate")
def tool_activate(
    name: ToolName,
    version: Version,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep-others-active",
            "--keep-others",
            help="Leave the others active: calls are ambiguous until one is left.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Makes a version the active one, in one step."""
    request = registry_pb2.ActivateToolVersionRequest(tool=name, version=version, keep_others_active=keep)
    show_tool(registry("ActivateToolVersion", request), as_json)


@command(app, "deactivate")
def tool_deactivate(name: ToolName, version: Version, as_json: AsJson = False) -> None:
    """Makes a version inactive: no call is admitted to it any more."""
    request = registry_pb2.DeactivateToolVersionRequest(tool=name, version=version)
    show_tool(registry("DeactivateToolVersion", request), as_json)


@command(app, "delete")
def tool_delete(
    name: ToolName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Deletes a tool with all its versions; their numbers are never used again."""
    if not yes:
        if not sys.stdin.isatty():
            raise CliError("deleting asks first, and there is no terminal to ask: pass --yes", Exit.USAGE)
        typer.confirm(f"Delete {name} with all its versions?", abort=True)
    registry("DeleteTool", registry_pb2.DeleteToolRequest(name=name))
    if as_json:
        out.show_json({"deleted": name})
    else:
        out.show(f"{name}: deleted")
