"""Endpoints that send without end, as fast as the reader takes it. Each connection is a thread of its own.

with HostileEndpoint() as endpoint:
    url = endpoint.url("gzip-members")
"""

import contextlib
import gzip
import itertools
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Self

import brotli  # type: ignore[import-untyped]

_BLOCK = 256 * 1024
_OK = b"HTTP/1.1 200 OK\r\n"


def _times(block: bytes) -> bytes:
    return block * max(1, _BLOCK // len(block))


def _head(content_type: str, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in (f"Content-Type: {content_type}", *headers))
    return _OK + lines.encode() + b"\r\n"


def _for_ever(head: bytes, block: bytes) -> Callable[[], Iterator[bytes]]:
    """A head, and then the block again and again."""
    whole = _times(block)
    return lambda: itertools.chain([head], itertools.repeat(whole))


def _chunked(content_type: str, block: bytes, *headers: str) -> Callable[[], Iterator[bytes]]:
    return _for_ever(_head(content_type, "Transfer-Encoding: chunked", *headers), block)


def _compressed(encoding: str, block: bytes, start: bytes = b"") -> Callable[[], Iterator[bytes]]:
    return _for_ever(_head("application/json", f"Content-Encoding: {encoding}") + start, block)


def _empty_deflate_block() -> bytes:
    """A stored block that holds nothing."""
    return b"\x00\x00\x00\xff\xff"


def _progress(text: str = "") -> bytes:
    return json.dumps({"progress": 1, "message": text}).encode()


def _rising() -> Iterator[bytes]:
    """Progress that grows, so that each of it counts."""
    yield _head("application/x-ndjson")
    for number in itertools.count(step=5_000):
        yield b"".join(b'{"progress":%d}\n' % n for n in range(number, number + 5_000))


_SSE, _NDJSON = "text/event-stream", "application/x-ndjson"

KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    # Decompression that yields nothing, or little for much.
    "gzip-members": _compressed("gzip", gzip.compress(b"")),
    "gzip-members-of-one-byte": _compressed("gzip", gzip.compress(b" ")),
    "gzip-padding": _compressed("gzip", b"\0" * 1024, gzip.compress(b"{}")),
    "deflate-blocks": _compressed("deflate", _empty_deflate_block(), b"\x78\x9c"),
    "deflate-after-the-end": _compressed("deflate", b"x" * 1024, zlib.compress(b"{}")),
    "brotli-metadata": _compressed("br", b"\x0c\x00\x00", brotli.compress(b"")[:0] + b"\x06"),
    # Streams of what is no frame, or of frames that are no result.
    "sse-comments": _for_ever(_head(_SSE), b":\n"),
    "sse-blank-lines": _for_ever(_head(_SSE), b"\n"),
    "sse-carriage-returns": _for_ever(_head(_SSE), b"\r"),
    "sse-other-fields": _for_ever(_head(_SSE), b"id: 1\nretry: 5\n"),
    "sse-empty-data": _for_ever(_head(_SSE), b"data\ndata:\n"),
    "sse-progress": _for_ever(_head(_SSE), b'data: {"progress":1}\n\n'),
    "ndjson-progress": _for_ever(_head(_NDJSON), b'{"progress":1}\n'),
    "ndjson-rising-progress": _rising,
    "ndjson-messages": _for_ever(_head(_NDJSON), _progress("가" * 1000) + b"\n"),
    "ndjson-other-objects": _for_ever(_head(_NDJSON), b"{}\n"),
    "ndjson-blank-lines": _for_ever(_head(_NDJSON), b"\n"),
    "ndjson-byte-order-marks": _for_ever(_head(_NDJSON), b"\xef\xbb\xbf{}\n"),
    "ndjson-deep": _for_ever(_head(_NDJSON), b"[" * 500 + b"]" * 500 + b"\n"),
    "ndjson-one-line": _for_ever(_head(_NDJSON), b"[" * 1024),
    # HTTP that is more frame than content.
    "chunk-extensions": _chunked("application/json", b"1;a=" + b"b" * 1000 + b"\r\n \r\n"),
    "one-chunk-extension": _for_ever(_head("application/json", "Transfer-Encoding: chunked") + b"1;a=", b"b" * 1024),
    "tiny-chunks": _chunked("application/json", b"1\r\n \r\n"),
    "tiny-chunks-of-ndjson": _chunked(_NDJSON, b"1\r\n \r\n1\r\n\n\r\n"),
    "trailers": _for_ever(_head("application/json", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n", b"A: b\r\n"),
    "headers": _for_ever(_OK, b"A: b\r\n"),
    "one-header": _for_ever(_OK + b"A: ", b"b" * 1024),
    "informational": _for_ever(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "lines-before-the-answer": _for_ever(b"", b"\r\n"),
    "answers-after-the-answer": _for_ever(b"", _OK + b"Content-Length: 0\r\n\r\n"),
    "body": _for_ever(_head("application/json"), b" " * 1024),
    "error-body": _for_ever(b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\n\r\n", b" " * 1024),
    "error-in-tiny-chunks": _for_ever(
        b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"
    ),
}


class HostileEndpoint:
    """See the module. A request's path names the kind."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connections: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def url(self, kind: str) -> str:
        port: int = self._server.getsockname()[1]
        return f"http://127.0.0.1:{port}/{kind}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections.add(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            head = b""
            while b"\r\n\r\n" not in head:
                received = connection.recv(65536)
                if not received:
                    return
                head += received
            kind = head.split(b" ", 2)[1].decode().strip("/")
            for block in KINDS[kind]():
                connection.sendall(block)
