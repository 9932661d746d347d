"""An answer of one JSON object."""

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeAlias

from starlette.types import Send

from gateway.frame import Frame, Item
from gateway.http.accept import Carriage

# Hears of each Frame that is about to be sent, whether or not anybody still reads it.
Observe: TypeAlias = Callable[[Frame], None]
# Hears how the answer travels, once that is decided.
Chosen: TypeAlias = Callable[[Carriage], None]


class JsonAnswer:
    """One JSON object: everything but the last frame is passed over."""

    def __init__(self, send: Send, observe: Observe, chosen: Chosen) -> None:
        self._send = send
        self._chosen = chosen
        self._observe = observe
        self._headers: dict[str, str] = {}

    async def carry(self, items: AsyncGenerator[Item, None]) -> Frame:
        """Writes what comes before the last frame, and gives that back."""
        async for item in items:
            if isinstance(item, Frame):
                if item.last:
                    return item
                self._observe(item)
                self._headers.update(item.headers)
        raise RuntimeError("the messages of an answer ended without a last frame")

    async def finish(self, last: Frame) -> None:
        """Writes the last frame and ends the answer."""
        self._observe(last)
        self._headers.update(last.headers)
        self._chosen(Carriage.JSON)
        length = b"%d" % len(last.body)
        with suppress(OSError):  # some servers tell so that the client has gone
            await self._open(last.status, ((b"content-type", b"application/json"), (b"content-length", length)))
            await self._send({"type": "http.response.body", "body": last.body})

    def close(self) -> None:
        """Writes nothing of its own accord from now on."""

    async def _open(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        more = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
