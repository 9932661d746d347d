"""One running pair with scripted tools, and clients of every contract, for the tests of what goes over the wire.

    tool = pair.tool("/echo")                                    # a new tool; the endpoint's mode or a Script
    reply = await pair.call(tool, {"a": 1}, speaker=MODERN)      # in the words of one contract or revision
    assert pair.executions(tool) == 1

Each tool has a path of its own at the endpoint, so that tests do not see each other's requests. The endpoint runs in
the tests' event loop: whatever waits for an answer must be awaited.
"""

import itertools
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from naru.v1.registry_pb2 import ApplyManifestRequest
from ops.admin import Admin, Credential
from ops.stack import Process, Stack
from tests.support.scripted_endpoint import SCRIPTS, Received, Script, ScriptedEndpoint
from tests.support.speaker import AGENT_BUILDER, BOTH, LEGACY, UNNAMED, XDATA, Speaker, headers_of, message, replaced
from tests.support.wire import Head, Header, Reply, Wire

# Of the gateway for impatient tests.
QUICK_KEEPALIVE = 0.15
QUICK_STREAM_AFTER = 0.4


class Tool(NamedTuple):
    """A registered tool. `path` is that of its endpoint."""

    name: str
    path: str


class Stream(NamedTuple):
    """An answer that is being received: `pieces` yields its body as it comes."""

    wire: Wire
    head: Head
    pieces: AsyncIterator[bytes]


class Pair:
    """See the module. `quick` is a second gateway that keeps alive and commits early; see QUICK_KEEPALIVE."""

    def __init__(self, stack: Stack, endpoint: ScriptedEndpoint) -> None:
        self.stack = stack
        self.endpoint = endpoint
        self.registry: Process = stack.registry()
        self.gateway: Process = stack.gateway(self.registry)
        self.quick: Process = stack.gateway(
            self.registry,
            GATEWAY_KEEPALIVE_SECONDS=str(QUICK_KEEPALIVE),
            GATEWAY_STREAM_AFTER_SECONDS=str(QUICK_STREAM_AFTER),
        )
        self.admin: Admin = stack.admin(self.registry)
        self.credential: Credential = self.admin.create_account()
        self._numbers = itertools.count(1)
        self._entries: list[dict[str, Any]] = []
        self._alive = self.tool("/echo", name="is_alive")
        self._entries.clear()

    def endpoint_of(self, answer: str | Script) -> str:
        """A new path of the scripted endpoint, where it answers in one of its modes or by a script."""
        number = next(self._numbers)
        script = answer if isinstance(answer, Script) else SCRIPTS.get(answer)
        if script is not None:
            path = f"/scripted/{number}"
            self.endpoint.serve(path, script)
            return path
        assert isinstance(answer, str)
        mode, _, query = answer.partition("?")
        return f"{mode}/{number}" + (f"?{query}" if query else "")

    def definition(self, answer: str | Script, name: str = "", **members: object) -> tuple[Tool, dict[str, Any]]:
        """A tool and its manifest entry, not registered. `endpoint` adds to the endpoint of its production lane."""
        path = self.endpoint_of(answer)
        name = name or f"tool_{next(self._numbers)}"
        more = members.pop("endpoint", {})
        assert isinstance(more, dict)
        production = {"url": self.endpoint.url(path), **more}
        entry: dict[str, Any] = {
            "name": name, "version": "1.0.0", "active": True, "description": "Does what it is told.",
            "inputSchema": {"type": "object"}, "endpoint": {"production": production}, **members,
        }  # fmt: skip
        return Tool(name, path.partition("?")[0]), entry

    def tool(self, answer: str | Script, name: str = "", **members: object) -> Tool:
        """Registers a tool and makes it active, unless `active` says otherwise."""
        tool, entry = self.definition(answer, name, **members)
        self.admin.apply({"tools": [entry]})
        self._entries.append(entry)
        return tool

    def retire(self) -> None:
        """Deactivates all tools that `tool` has registered, but the one of `is_alive`."""
        self.admin.apply({"tools": [{**entry, "active": False} for entry in self._entries]})
        self._entries.clear()

    def faults(self, entry: Mapping[str, object] | str) -> list[str]:
        """Why a manifest of this one entry (an object, or its JSON text) is refused; empty if it was applied."""
        text = entry if isinstance(entry, str) else json.dumps(entry)
        request = ApplyManifestRequest(manifest=b'{"tools":[%b]}' % text.encode())
        response = self.admin.call(self.admin.registry.ApplyManifest, request)
        return [f"{fault.pointer} {fault.message}" for fault in response.faults]

    def requests(self, tool: Tool) -> list[Received]:
        """Returns the requests that the tool's endpoint was sent."""
        return [request for request in self.endpoint.received if request.path == tool.path]

    def executions(self, tool: Tool) -> int:
        return len(self.requests(tool))

    async def arrived(self, tool: Tool) -> Received:
        """Waits for the tool's next request."""
        while (request := await self.endpoint.arrived()).path != tool.path:
            pass
        return request

    async def gone(self, tool: Tool) -> Received:
        """Waits until the tool's endpoint has lost a client that had no answer yet."""
        while (request := await self.endpoint.gone()).path != tool.path:
            pass
        return request

    async def wire(self, gateway: Process | None = None) -> Wire:
        """Opens a connection: `async with await pair.wire() as wire`."""
        return await Wire.open((gateway or self.gateway).address)

    def authorized(self, headers: Iterable[Header], extra: Iterable[Header] = ()) -> list[Header]:
        return replaced([("Authorization", self.credential.basic), *headers], extra)

    async def http(
        self,
        method: str,
        target: str,
        headers: Iterable[Header] = (),
        body: bytes = b"",
        *,
        gateway: Process | None = None,
        chunked: bool = False,
    ) -> Reply:
        """One request on a connection of its own, with these headers and no others."""
        async with await self.wire(gateway) as wire:
            await wire.request(method, target, headers, body, chunked=chunked)
            return await wire.reply(bodiless=method == "HEAD")

    async def post(
        self, body: bytes | str, *extra: Header, accept: str | None = BOTH, gateway: Process | None = None
    ) -> Reply:
        """Posts any body, with the headers of a client that names no revision, and `extra` in their place."""
        headers = self.authorized(headers_of(UNNAMED.accepting(accept), "", {}), extra)
        return await self.http("POST", "/mcp", headers, body.encode() if isinstance(body, str) else body,
                               gateway=gateway)  # fmt: skip

    async def ask(
        self,
        speaker: Speaker,
        method: str,
        params: Mapping[str, object] | None = None,
        *extra: Header,
        id: object = 1,
        meta: Mapping[str, object] | None = None,
        gateway: Process | None = None,
    ) -> Reply:
        """One request as this kind of client sends it."""
        built = message(speaker, method, params, id=id, meta=meta)
        return await self.http("POST", "/mcp", self.authorized(built.headers, extra), built.body, gateway=gateway)

    async def call(
        self,
        tool: Tool | str,
        arguments: object = None,
        *extra: Header,
        speaker: Speaker = LEGACY,
        id: object = 1,
        meta: Mapping[str, object] | None = None,
        gateway: Process | None = None,
    ) -> Reply:
        """One `tools/call`."""
        params = call_params(tool, arguments)
        return await self.ask(speaker, "tools/call", params, *extra, id=id, meta=meta, gateway=gateway)

    @asynccontextmanager
    async def calling(
        self,
        tool: Tool,
        arguments: object = None,
        *extra: Header,
        speaker: Speaker = LEGACY,
        id: object = 1,
        meta: Mapping[str, object] | None = None,
        gateway: Process | None = None,
    ) -> AsyncIterator[Wire]:
        """Sends a `tools/call` and leaves the answer to be read; the connection is cut at the end."""
        built = message(speaker, "tools/call", call_params(tool, arguments), id=id, meta=meta)
        async with await self.wire(gateway) as wire:
            await wire.request("POST", "/mcp", self.authorized(built.headers, extra), built.body)
            yield wire

    @asynccontextmanager
    async def streaming(
        self,
        tool: Tool,
        arguments: object = None,
        *extra: Header,
        speaker: Speaker = XDATA,
        id: object = 1,
        meta: Mapping[str, object] | None = None,
        gateway: Process | None = None,
    ) -> AsyncIterator[Stream]:
        """A `tools/call` whose answer is read piece by piece, from its head on."""
        async with self.calling(tool, arguments, *extra, speaker=speaker, id=id, meta=meta, gateway=gateway) as wire:
            head = await wire.head()
            yield Stream(wire, head, wire.pieces(head))

    async def is_alive(self) -> None:
        """Fails unless both services still answer, with this account and with a tool."""
        for gateway in (self.gateway, self.quick):
            reply = await self.call(self._alive, {"alive": True}, speaker=AGENT_BUILDER, gateway=gateway)
            assert reply.result["structuredContent"] == {"alive": True}
        assert all(process.popen.poll() is None for process in self.stack.processes)


def call_params(tool: Tool | str, arguments: object) -> dict[str, object]:
    params: dict[str, object] = {"name": tool.name if isinstance(tool, Tool) else tool}
    if arguments is not None:
        params["arguments"] = arguments
    return params


@asynccontextmanager
async def running_pair(directory: Path) -> AsyncIterator[Pair]:
    """Starts a pair with a new database in this directory, and stops it at the end."""
    async with ScriptedEndpoint() as endpoint:
        with Stack(directory) as stack:
            yield Pair(stack, endpoint)
