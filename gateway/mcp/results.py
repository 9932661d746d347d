"""Result objects, as JSON text, in the shape that each dialect demands. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gateway.mcp.jsonrpc import obj, text
from gateway.mcp.legacy_tool import LegacyTools
from gateway.mcp.revisions import LATEST_LEGACY, LEGACY, SUPPORTED, Dialect, Era

SERVER_INFO = "io.modelcontextprotocol/serverInfo"

TOOLS_TTL_MS = 5_000
DISCOVER_TTL_MS = 3_600_000


class Server(NamedTuple):
    """The name under which Naru introduces itself; `prefix` is that of its own `_meta` keys."""

    name: str
    version: str
    title: str = ""
    instructions: str = ""
    prefix: str = "xdata.kr"


class Shapes:
    """Builds results. What never changes is built once."""

    def __init__(self, server: Server) -> None:
        info = {"name": server.name, "version": server.version}
        if server.title:
            info["title"] = server.title
        self._info = text(info)
        self._instructions = text(server.instructions) if server.instructions else b""
        self._prefix = server.prefix
        self._error_key = f"{server.prefix}/error"
        self._lane_key = f"{server.prefix}/lane"
        self._own_meta = {SERVER_INFO: self._info}
        self._modern_tail = b',"_meta":' + obj(self._own_meta) + b"}"
        self._discover = self._build_discover()
        self._legacy_tools = LegacyTools()

    def initialize(self, dialect: Dialect, requested: str) -> bytes:
        """Returns the result of `initialize`: Agent Builder's own, or that of the revision asked for if served."""
        if dialect.era is Era.AGENT_BUILDER:
            return b'{"protocolVersion":"%b","capabilities":{},"serverInfo":{}}' % LATEST_LEGACY.encode()
        return obj(
            {
                "protocolVersion": text(requested if requested in LEGACY else LATEST_LEGACY),
                "capabilities": b'{"tools":{}}',
                "serverInfo": self._info,
                "instructions": self._instructions,
            }
        )

    def discover(self) -> bytes:
        """Returns the result of `server/discover`."""
        return self._discover

    def empty(self, dialect: Dialect) -> bytes:
        """Returns a result that says nothing."""
        return b'{"resultType":"complete"' + self._modern_tail if dialect.era is Era.MODERN else b"{}"

    def tool(self, dialect: Dialect, tool: bytes) -> bytes:
        """Returns the JSON text of a tool as clients of this dialect can take it."""
        return tool if dialect.era is Era.MODERN else self._legacy_tools.shaped(tool)

    def tools_list(self, dialect: Dialect, tools: Iterable[bytes], lane: str, next_cursor: str = "") -> bytes:
        """Returns the result of `tools/list`; `tools` are those that `tool` returned."""
        modern = dialect.era is Era.MODERN
        lane_meta = {self._lane_key: text(lane)}
        return obj(
            {
                "resultType": b'"complete"' if modern else b"",
                "tools": b"[" + b",".join(tools) + b"]",
                "nextCursor": text(next_cursor) if next_cursor else b"",
                "ttlMs": b"%d" % TOOLS_TTL_MS if modern else b"",
                "cacheScope": b'"private"' if modern else b"",
                "_meta": obj(lane_meta | self._own_meta if modern else lane_meta),
            }
        )

    def call(
        self,
        dialect: Dialect,
        content: bytes,
        structured: bytes = b"",
        is_error: bool = False,
        meta: bytes = b"",
        error: bytes = b"",
    ) -> bytes:
        """Returns the result of `tools/call`.

        `content` is the JSON text of the blocks, `structured` of the structured content and `meta` of the tool's own
        `_meta` (b"": none), `error` of what `_meta["<prefix>/error"]` says. Legacy clients cannot take structured
        content that is not an object, and lose the whole result over it: they get the text blocks alone.
        """
        modern = dialect.era is Era.MODERN
        parts = [b'{"resultType":"complete","content":' if modern else b'{"content":', content or b"[]"]
        if structured and (modern or structured.lstrip()[:1] == b"{"):
            parts += (b',"structuredContent":', structured)
        parts.append(b',"isError":true' if is_error else b',"isError":false')
        if not meta and not error:
            parts.append(self._modern_tail if modern else b"}")
        else:
            own = dict(self._own_meta) if modern else {}
            if error:
                own[self._error_key] = error
            parts += (b',"_meta":', _merged(meta, own, self._prefix), b"}")
        return b"".join(parts)

    def _build_discover(self) -> bytes:
        return obj(
            {
                "resultType": b'"complete"',
                "supportedVersions": text(SUPPORTED),
                "capabilities": b'{"tools":{}}',
                "instructions": self._instructions,
                "ttlMs": b"%d" % DISCOVER_TTL_MS,
                "cacheScope": b'"public"',
                "_meta": obj(self._own_meta),
            }
        )


_MCP_LABELS = frozenset({"modelcontextprotocol", "mcp"})

_meta_members = msgspec.json.Decoder(dict[str, Raw]).decode


def _merged(meta: bytes, own: Mapping[str, bytes], prefix: str) -> bytes:
    """Adds our members to the tool's `_meta`, without those in which it would speak in our name or in MCP's."""
    if not meta:
        return obj(own)
    theirs = {key: bytes(raw) for key, raw in _meta_members(meta).items() if not _is_reserved(key, prefix)}
    return obj(theirs | dict(own))


def _is_reserved(key: str, prefix: str) -> bool:
    """Says whether a `_meta` key is ours, or of MCP: in 2025-11-25 by its second label, before by any but the last."""
    of, slash, _ = key.lower().partition("/")
    if not slash:
        return False
    labels = of.split(".")
    return of == prefix.lower() or not _MCP_LABELS.isdisjoint((*labels[:-1], *labels[1:2]))
