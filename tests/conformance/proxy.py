"""A loopback proxy that adds an Authorization header, since the suite can send none.

It forwards bytes as they come: one request a connection, everything else in the head untouched, and the end of either
side's connection ends the other's, so that a client's disconnect reaches the gateway.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType

_MAX_HEAD = 1 << 16
_CONNECT_SECONDS = 5.0


class AuthorizingProxy:
    """Listens on a free port from `async with` on; set `target` (host:port) and `authorization` before it is used."""

    def __init__(self) -> None:
        self.target = ""
        self.authorization = ""
        self.port = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "AuthorizingProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            host, _, port = self.target.rpartition(":")
            async with asyncio.timeout(_CONNECT_SECONDS):
                answer, upstream = await asyncio.open_connection(host, int(port))
            with contextlib.closing(upstream):
                upstream.write(self._authorized(head))
                await _first_of(_copy(reader, upstream), _copy(answer, writer))

    def _authorized(self, head: bytes) -> bytes:
        request_line, *fields = head.split(b"\r\n")
        kept = [field for field in fields if not field.lower().startswith((b"connection:", b"authorization:"))]
        added = [b"Authorization: " + self.authorization.encode(), b"Connection: close"]
        return b"\r\n".join([request_line, *added, *kept])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def _first_of(*copies: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(copy) for copy in copies]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
