"""`tools/list`: the tools that the account may call in its lane."""

import asyncio
from collections.abc import AsyncGenerator

from gateway.failures.table import Failure
from gateway.frame import Frame, Item
from gateway.mcp import jsonrpc
from gateway.mcp.failed import failure_frame
from gateway.mcp.params import list_tools_cursor
from gateway.mcp.request import Request
from gateway.mcp.results import Shapes
from gateway.registry_client import RegistryClient

_AT_ONCE = 32


def cursor_of(request: Request) -> str:
    """Reads the parameters of `tools/list`; empty asks for the first page. Raises ProtocolError and Failure."""
    cursor = list_tools_cursor(request.message, request.meta)
    if cursor is not None and (not request.modern or not cursor):
        raise Failure("INVALID_PARAMS", {"detail": "params.cursor was not issued by this server"})
    return cursor or ""


async def listing(client: RegistryClient, shapes: Shapes, request: Request, cursor: str) -> AsyncGenerator[Item, None]:
    """Lists one page for modern clients; all of them in one answer for the others, who may read no second page."""
    tools: list[bytes] = []
    try:
        while True:
            page = await client.list_catalog(request.sender, request.lane, cursor)
            for number, entry in enumerate(page.entries):
                tools.append(shapes.tool(request.dialect, entry.tool))
                if number % _AT_ONCE == _AT_ONCE - 1 and not request.modern:
                    await asyncio.sleep(0)  # thousands of tools that are shaped must not hold up others
            cursor = page.next_page_token
            if not cursor or request.modern:
                break
    except Failure as failure:
        yield failure_frame(shapes, request, failure)
    else:
        yield Frame(jsonrpc.result(request.id, shapes.tools_list(request.dialect, tools, page.lane, cursor)))
