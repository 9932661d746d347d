"""The tool that both sides call: the cheapest HTTP/1.1 server that answers correctly, in a process of its own.

`POST /echo` answers with the body that was sent. `POST /stream` answers with NDJSON: three frames of progress, then the
body as result. It understands what an HTTP client sends with `Content-Length`, and no more.
"""

import asyncio
import signal
from typing import cast

import uvloop

from bench.ready import announce

_HEAD_END = b"\r\n\r\n"
_PROGRESS = b"".join(b'{"progress":%d,"total":3,"message":"step %d"}\n' % (step, step) for step in (1, 2, 3))


class EndpointProtocol(asyncio.Protocol):
    """One connection. Requests are answered in order; the head and the body may come in any number of pieces."""

    def __init__(self) -> None:
        self.pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass

    def data_received(self, data: bytes) -> None:
        self.pending += data
        while self.pending and (end := self.pending.find(_HEAD_END)) >= 0:
            head, start = self.pending[:end], end + len(_HEAD_END)
            stop = start + _content_length(head)
            if len(self.pending) < stop:
                return
            body, self.pending = self.pending[start:stop], self.pending[stop:]
            self.transport.write(_answer(head, body))


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _answer(head: bytes, body: bytes) -> bytes:
    if head.startswith(b"POST /stream "):
        media_type, body = b"application/x-ndjson", _PROGRESS + b'{"result":' + body + b"}\n"
    else:
        media_type = b"application/json"
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (media_type, len(body), body)


async def serve() -> None:
    """Listens on a free port until SIGTERM."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(EndpointProtocol, "127.0.0.1", 0, backlog=256)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    announce("bench endpoint", server.sockets[0])
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
