"""Finds what a definition may say and is likely to be a slip, or not to work here. Schemas are schema_lint.py's."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from registry_service.tools.definition import ANNOTATIONS, Definition, seconds
from registry_service.tools.http_endpoint import SECRET
from registry_service.tools.json_document import Fault, shown, token
from registry_service.tools.json_schema import warnings_of_schema
from registry_service.tools.schema_lint import near

# The longest name of a tool that all clients and models take.
_COMMON_NAME = 64
_ICON = ("src", "mimeType", "sizes", "theme")


class Site(NamedTuple):
    """Describes what this installation allows and has. `has_secret` is None where the process can't know."""

    max_timeout: float
    has_secret: Callable[[str], bool] | None


def name_warnings(name: str) -> Iterator[str]:
    """Yields what may be amiss with a tool's name that is allowed."""
    if "." in name:
        yield "has a dot, which some clients refuse"
    if len(name) > _COMMON_NAME:
        yield f"is longer than {_COMMON_NAME} characters, which some clients refuse"


def definition_warnings(definition: Definition, site: Site) -> Iterator[Fault]:
    """Yields the slips in a definition without faults, each with a JSON Pointer into it."""
    value = msgspec.json.decode(definition.document)
    yield from _schemas(value)
    yield from _unknown_names(value.get("annotations", {}), ANNOTATIONS, "/annotations", "a hint of MCP")
    for index, icon in enumerate(value.get("icons", [])):
        yield from _unknown_names(icon, _ICON, f"/icons/{index}", "a member of an icon")
    wanted = seconds(value.get("timeout"))
    if wanted is not None and wanted > site.max_timeout:
        yield Fault("/timeout", f"is above the {site.max_timeout:g} s that this service allows, which hold instead")
    if site.has_secret is not None:
        yield from _secrets(value["endpoint"], site.has_secret)


def _schemas(value: Mapping[str, object]) -> Iterator[Fault]:
    for name in ("inputSchema", "outputSchema"):
        schema = value.get(name)
        if isinstance(schema, dict):
            yield from warnings_of_schema(schema, token(name), of_arguments=name == "inputSchema")


def _unknown_names(value: Mapping[str, object], known: Collection[str], at: str, what: str) -> Iterator[Fault]:
    for name in value:
        if name not in known:
            yield Fault(at + token(name), f"{shown(name)} isn't {what}{near(name, known)}")


def _secrets(endpoint: Mapping[str, Mapping[str, object]], has_secret: Callable[[str], bool]) -> Iterator[Fault]:
    for lane, parts in endpoint.items():
        headers = parts.get("headers", {})
        places = [(f"/endpoint/{lane}/url", str(parts["url"]))]
        if isinstance(headers, dict):
            places += [(f"/endpoint/{lane}/headers{token(name)}", text) for name, text in headers.items()]
        for at, text in places:
            for name in SECRET.findall(text):
                if not has_secret(name):
                    yield Fault(at, f"names the secret {name}, which this service doesn't have")
