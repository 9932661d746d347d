"""The table of MCP methods and their handlers.

A handler returns the messages of the answer, an async generator that ends with exactly one last `Frame`. Faults of the
parameters are raised before the generator exists; every later failure is its last frame.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import NamedTuple, TypeAlias

from gateway.frame import Frame, Item
from gateway.mcp import call_tool, jsonrpc, list_tools
from gateway.mcp.params import initialize_version
from gateway.mcp.request import Request
from gateway.mcp.results import Shapes
from gateway.mcp.revisions import Era
from gateway.registry_client import RegistryClient

Items: TypeAlias = AsyncGenerator[Item, None]


class Handled(NamedTuple):
    """The messages of an answer. `tool` is the name that a call asks for."""

    items: Items
    tool: str = ""


Handler: TypeAlias = Callable[[RegistryClient, Shapes, Request], Handled]


def _initialize(_client: RegistryClient, shapes: Shapes, request: Request) -> Handled:
    requested = initialize_version(request.message, request.meta)
    return _answered(request, shapes.initialize(request.dialect, requested))


def _ping(_client: RegistryClient, shapes: Shapes, request: Request) -> Handled:
    return _answered(request, shapes.empty(request.dialect))


def _discover(_client: RegistryClient, shapes: Shapes, request: Request) -> Handled:
    return _answered(request, shapes.discover())


def _list_tools(client: RegistryClient, shapes: Shapes, request: Request) -> Handled:
    return Handled(list_tools.listing(client, shapes, request, list_tools.cursor_of(request)))


def _call_tool(client: RegistryClient, shapes: Shapes, request: Request) -> Handled:
    call = call_tool.call_of(request)
    return Handled(call_tool.run(client, shapes, request, call), call.name)


_ANY_ERA: Mapping[str, Handler] = {"tools/list": _list_tools, "tools/call": _call_tool}
_HANDSHAKE: Mapping[str, Handler] = {**_ANY_ERA, "initialize": _initialize, "ping": _ping}
METHODS: Mapping[Era, Mapping[str, Handler]] = {
    Era.AGENT_BUILDER: _HANDSHAKE,
    Era.LEGACY: _HANDSHAKE,
    Era.MODERN: {**_ANY_ERA, "server/discover": _discover},
}
# Methods whose own RPC checks the credential; for all else Authenticate is asked first.
SELF_AUTHENTICATED = frozenset(_ANY_ERA)
KNOWN_METHODS = frozenset(method for methods in METHODS.values() for method in methods)


def _answered(request: Request, result: bytes) -> Handled:
    return Handled(one(Frame(jsonrpc.result(request.id, result))))


async def one(frame: Frame) -> Items:
    """Yields this frame, as the whole answer."""
    yield frame
