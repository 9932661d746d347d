"""The bytes of an HTTP answer, decompressed and bounded.

The HTTP client's own decompression takes a cut gzip or Brotli body for a whole one; here a cut body is an error.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Protocol

import brotli  # type: ignore[import-untyped]

from registry_service.errors import ResultTooLargeError, ToolFailedError, ToolResponseInvalidError
from registry_service.upstreams.http.media_type import is_charset
from registry_service.upstreams.http.turns import Pace

# Decompression yields at most so much at a time, so that a bomb is noticed before it unfolds.
_PIECE = 64 * 1024
# A decompressor gets at most so much at a time.
_SLICE = 4 * 1024


class _Decompressor(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]: ...

    def finished(self) -> bool: ...


class Body:
    """Reads an answer's body. `read_raw` returns the next bytes as they came, and nothing at the end; when it had to
    wait for them, it says so to the pace.

    `limit` bounds what comes, in bytes, before it is decompressed.
    """

    def __init__(
        self, read_raw: Callable[[Pace], Awaitable[bytes]], content_encoding: str, limit: int, pace: Pace
    ) -> None:
        """Raises ToolResponseInvalidError for an encoding that was not asked for."""
        self._read_raw = read_raw
        self._encoding = content_encoding.strip().lower()
        self._decompressor = _decompressor(self._encoding)
        self._limit = limit
        # Compression makes what cannot be compressed a little larger.
        self._rest = limit + limit // 8 + _PIECE
        self._pieces: Iterator[bytes] = iter(())
        self.pace = pace

    async def read(self) -> bytes:
        """Returns the next bytes, and nothing at the end.

        Raises ToolResponseInvalidError for broken compression, ResultTooLargeError.
        """
        try:
            while True:
                await self.pace.rest()
                for piece in self._pieces:
                    if piece:
                        return piece
                    await self.pace.rest()
                raw = await self._read_raw(self.pace)
                if self._decompressor is None or not raw:
                    break
                self._rest -= len(raw)
                if self._rest < 0:
                    raise ResultTooLargeError(limit_bytes=self._limit)
                self._pieces = self._decompressor.feed(raw)
        except (zlib.error, brotli.error):
            raise ToolResponseInvalidError(detail=f"broken {self._encoding}") from None
        if not raw and self._decompressor is not None and not self._decompressor.finished():
            raise ToolResponseInvalidError(detail=f"cut {self._encoding}")
        return raw

    async def read_all(self, limit: int) -> bytes:
        """Returns the whole body. Raises ResultTooLargeError once more than `limit` bytes have come."""
        whole: bytes | bytearray = await self.read()
        while True:
            if len(whole) > limit:
                raise ResultTooLargeError(limit_bytes=limit)
            piece = await self.read()
            if not piece:
                return bytes(whole)
            if isinstance(whole, bytes):
                whole = bytearray(whole)
            whole += piece
            self.pace.credit(len(piece))

    async def read_start(self, size: int, seconds: float) -> bytes:
        """Returns the first `size` bytes at most, or what of them came in time and could be decompressed."""
        start = bytearray()
        with suppress(ToolFailedError, TimeoutError):
            async with asyncio.timeout(seconds):
                while len(start) < size and (piece := await self.read()):
                    start += piece
        return bytes(start[:size])


def _decompressor(encoding: str) -> _Decompressor | None:
    codings = [coding for coding in map(str.strip, encoding.split(",")) if not _is_none(coding)]
    if not codings:
        return None
    if len(codings) == 1 and (decompressor := _DECOMPRESSORS.get(codings[0])):
        return decompressor()
    raise ToolResponseInvalidError(detail="unknown Content-Encoding")


def _is_none(coding: str) -> bool:
    """Returns True for what changes nothing, and for a charset, which many a server writes there."""
    return coding in ("", "identity", "none") or is_charset(coding)


def _slices(data: bytes) -> Iterator[bytes]:
    """Cuts what came. A decompressor copies what it has not consumed each time that it stops."""
    if len(data) <= _SLICE:
        return iter((data,))
    return (data[at : at + _SLICE] for at in range(0, len(data), _SLICE))


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
        for part in _slices(data):
            while part:
                if self._stream is None or self._stream.eof:
                    self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
                yield from _inflate(self._stream, part)
                part = self._stream.unused_data

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
        for part in _slices(data):
            if self._stream.eof:
                return  # it would keep whatever follows the end
            yield from _inflate(self._stream, part)

    def finished(self) -> bool:
        return self._stream is None or self._stream.eof


class _Brotli:
    def __init__(self) -> None:
        self._stream: brotli.Decompressor | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            self._stream = brotli.Decompressor()
        for part in _slices(data):
            piece = self._stream.process(part, output_buffer_limit=_PIECE)
            while piece or not self._stream.can_accept_more_data():
                yield piece
                piece = self._stream.process(b"", output_buffer_limit=_PIECE)
            yield b""

    def finished(self) -> bool:
        return self._stream is None or self._stream.is_finished()


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
}
