"""The bytes of an HTTP answer, decompressed and bounded.

The HTTP client's own decompression takes a cut gzip or Brotli body for a whole one; here a cut body is an error.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import brotli  # type: ignore[import-untyped]

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError

# What decompression yields at a time, so that a bomb is noticed before it unfolds.
_PIECE = 64 * 1024


class _Decompressor(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]: ...

    def finished(self) -> bool: ...


class Body:
    """Reads an answer's body. `read_raw` returns the next bytes as they came, and nothing at the end."""

    def __init__(self, read_raw: Callable[[], Awaitable[bytes]], content_encoding: str) -> None:
        """Raises ToolResponseInvalidError for an encoding that was not asked for."""
        self._read_raw = read_raw
        self._encoding = content_encoding.strip().lower()
        self._decompressor = _decompressor(self._encoding)
        self._pieces: Iterator[bytes] = iter(())

    async def read(self) -> bytes:
        """Returns the next bytes, and nothing at the end. Raises ToolResponseInvalidError for broken compression."""
        if self._decompressor is None:
            return await self._read_raw()
        try:
            while True:
                for piece in self._pieces:
                    if piece:
                        # Little that came may unfold to much: others get their turn in between.
                        await asyncio.sleep(0)
                        return piece
                raw = await self._read_raw()
                if not raw:
                    break
                self._pieces = self._decompressor.feed(raw)
        except (zlib.error, brotli.error):
            raise ToolResponseInvalidError(detail=f"broken {self._encoding}") from None
        if not self._decompressor.finished():
            raise ToolResponseInvalidError(detail=f"cut {self._encoding}")
        return b""

    async def read_all(self, limit: int) -> bytes:
        """Returns the whole body. Raises ResultTooLargeError once more than `limit` bytes have come."""
        pieces = []
        size = 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise ResultTooLargeError(limit_bytes=limit)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_start(self, size: int) -> bytes:
        """Returns the first `size` bytes at most, or what of them could be decompressed."""
        start = b""
        try:
            while len(start) < size and (piece := await self.read()):
                start += piece
        except ToolResponseInvalidError:
            return start[:size]
        return start[:size]


def _decompressor(encoding: str) -> _Decompressor | None:
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip"):
        return _Gzip()
    if encoding == "deflate":
        return _Deflate()
    if encoding == "br":
        return _Brotli()
    raise ToolResponseInvalidError(detail="unknown Content-Encoding")


def _inflate(stream: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    while True:
        piece = stream.decompress(data, _PIECE)
        data = stream.unconsumed_tail
        yield piece
        if stream.eof or (not data and len(piece) < _PIECE):
            return


class _Gzip:
    """One member or several."""

    def __init__(self) -> None:
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream is None or self._stream.eof:
                self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
            yield from _inflate(self._stream, data)
            data = self._stream.unused_data

    def finished(self) -> bool:
        return self._stream is None or self._stream.eof


class _Deflate:
    """In the wrapping of zlib, as the standard says, or bare, as some servers send it."""

    def __init__(self) -> None:
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            wrapped = data[0] & 0x0F == zlib.DEFLATED
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        yield from _inflate(self._stream, data)

    def finished(self) -> bool:
        return self._stream is None or self._stream.eof


class _Brotli:
    def __init__(self) -> None:
        self._stream: brotli.Decompressor | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            self._stream = brotli.Decompressor()
        piece = self._stream.process(data, output_buffer_limit=_PIECE)
        while piece or not self._stream.can_accept_more_data():
            yield piece
            piece = self._stream.process(b"", output_buffer_limit=_PIECE)

    def finished(self) -> bool:
        return self._stream is None or self._stream.is_finished()
