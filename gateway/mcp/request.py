"""One MCP request, and what its handler needs of it."""

from typing import NamedTuple

from gateway.failures.table import Wording
from gateway.mcp.jsonrpc import Message
from gateway.mcp.params import NO_META, Meta
from gateway.mcp.revisions import Dialect, Era
from gateway.registry_client import Sender

UNREAD = Message(id=None, method="", params=b"{}")


class Request(NamedTuple):
    """An MCP request as far as it could be read.

    `lane` and `session_id` are empty where no header names them. `streams` says that the answer may become a stream,
    and `progress_token` (JSON text) under which token it then reports progress.
    """

    dialect: Dialect
    wording: Wording
    sender: Sender
    message: Message = UNREAD
    meta: Meta = NO_META
    lane: str = ""
    session_id: str = ""
    streams: bool = False
    progress_token: bytes | None = None

    @property
    def id(self) -> bytes:
        """Returns the JSON-RPC id as it was sent; empty before the body was read, and for notifications."""
        return self.message.id or b""

    @property
    def method(self) -> str:
        """Returns the JSON-RPC method; empty before the body was read."""
        return self.message.method

    @property
    def modern(self) -> bool:
        """Says whether the request follows the rules of 2026-07-28."""
        return self.dialect.era is Era.MODERN
