"""Reads the arguments of `naru call`: `--arg NAME=VALUE` as JSON text, typed as the tool's input schema says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from naru_cli.call import Gateway
from naru_cli.failures import CliError, Exit

# The JSON Schema types that each argument may have; empty where the schema says it in another way.
Types: TypeAlias = Mapping[str, frozenset[str]]


class Schema(msgspec.Struct):
    """Holds what is read of a tool's input schema: the types that its properties name."""

    properties: dict[str, Any] = {}

    def types(self) -> Types:
        return {name: type_names(schema) for name, schema in self.properties.items()}


class Tool(msgspec.Struct):
    """Holds what is read of a tool, in a catalog or in its definition."""

    name: str = ""
    input_schema: Schema = msgspec.field(name="inputSchema", default_factory=Schema)


class ToolList(msgspec.Struct):
    tools: list[Tool]


JSON_TYPES = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}


def json_type(text: str) -> str | None:
    """Returns the JSON Schema type of what is JSON and not a string; None for all other text."""
    try:
        return JSON_TYPES.get(type(msgspec.json.decode(text)))
    except (msgspec.DecodeError, RecursionError):
        return None


def checked_object(text: str) -> bytes:
    """Returns the JSON text of an object, as it was given. Raises CliError."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CliError(f"--args is not a JSON object: {error}", Exit.USAGE) from error
    return text.encode()


def arguments_of(pairs: Sequence[str], ask_types: Callable[[], Types]) -> bytes:
    """Returns `k=v` … as the JSON text of an object. Asks for the schema only where a value could mean two things.

    `k:=JSON` is taken as it is. Raises CliError.
    """
    members = [split(pair) for pair in pairs]
    ambiguous = any(not exact and json_type(text) for _, text, exact in members)
    types = ask_types() if ambiguous else {}
    written: dict[str, str] = {}
    for name, text, exact in members:
        if name in written:
            raise CliError(f"--arg {name} is given twice", Exit.USAGE)
        written[name] = text if exact else argument(text, types.get(name, frozenset()))
    return (
        "{" + ",".join(f"{msgspec.json.encode(name).decode()}:{text}" for name, text in written.items()) + "}"
    ).encode()


def split(pair: str) -> tuple[str, str, bool]:
    """Returns name, text, and if the text is JSON as it stands."""
    name, equals, text = pair.partition("=")
    exact = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise CliError(f"--arg {pair!r}: want NAME=VALUE, or NAME:=JSON", Exit.USAGE)
    if exact:
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CliError(f"--arg {name}:= is not JSON: {error}", Exit.USAGE) from error
    return name, text, exact


def argument(text: str, types: frozenset[str]) -> str:
    kind = json_type(text)
    fits = kind is not None and (not types or kind in types or (kind == "integer" and "number" in types))
    return text if fits else msgspec.json.encode(text).decode()


async def listed_types(gateway: Gateway, tool: str) -> Types:
    """Asks the gateway for the types of a tool's arguments; none for a tool that it doesn't list."""
    listed = msgspec.json.decode(await gateway.request("tools/list"), type=ToolList)
    return next((item.input_schema.types() for item in listed.tools if item.name == tool), {})


def defined_types(definition: bytes) -> Types:
    """Returns the types of the arguments of a definition, given as JSON text."""
    return msgspec.json.decode(definition, type=Tool).input_schema.types()


def type_names(schema: object) -> frozenset[str]:
    named = schema.get("type") if isinstance(schema, dict) else None
    return frozenset([named] if isinstance(named, str) else named or [])
