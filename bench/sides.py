"""The two sides of the comparison, as running processes, and the requests that the generator sends to them."""

from pathlib import Path
from typing import Literal, NamedTuple

from ops.admin import read_manifest
from ops.stack import Process, Stack

Carriage = Literal["json", "sse"]

ARGUMENTS = '{"text":"hello, ferry","count":3}'
# What every good answer of either side holds, and every good answer of the endpoint.
SIDE_MARKER = '"isError":false'
ENDPOINT_MARKER = "hello, ferry"
_MANIFEST = Path(__file__).with_name("tools.yaml")
_TOOLS: dict[Carriage, str] = {"json": "echo", "sse": "stream"}
_ACCEPT: dict[Carriage, str] = {"json": "application/json", "sse": "text/event-stream"}


class Side(NamedTuple):
    """The product or the floor: the gateway's process, the executor's, and the client's Authorization header."""

    name: str
    gateway: Process
    executor: Process
    authorization: str


def start_floor(stack: Stack, endpoint: Process) -> Side:
    """Starts the floor's two processes in front of the endpoint."""
    executor = stack.start("bench.floor_executor", endpoint.address)
    gateway = stack.start("bench.floor_gateway", executor.address)
    return Side("floor", gateway, executor, "")


def start_product(stack: Stack, endpoint: Process) -> Side:
    """Starts registry service (SQLite) and gateway, registers the tools and an account."""
    registry = stack.registry()
    admin = stack.admin(registry)
    admin.apply(read_manifest(_MANIFEST, ENDPOINT=endpoint.url))
    credential = admin.create_account("Bench")
    return Side("product", stack.gateway(registry), registry, credential.basic)


def tool_call(side: Side, carriage: Carriage) -> str:
    """The HTTP request of one `tools/call`, whole."""
    body = (
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":'
        f'{{"name":"{_TOOLS[carriage]}","arguments":{ARGUMENTS},"_meta":{{"progressToken":"p"}}}}}}'
    )
    headers = {"Accept": _ACCEPT[carriage]}
    if side.authorization:
        headers["Authorization"] = side.authorization
    return _post(side.gateway.address, "/mcp", headers, body)


def direct_call(endpoint: Process, carriage: Carriage) -> str:
    """The HTTP request that reaches the same endpoint without either side."""
    return _post(endpoint.address, f"/{_TOOLS[carriage]}", {}, ARGUMENTS)


def _post(host: str, path: str, headers: dict[str, str], body: str) -> str:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body])
