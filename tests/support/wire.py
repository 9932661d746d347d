"""HTTP/1.1 as bytes on a socket, so that a test can send what no HTTP library would, and see what one would hide."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

LIMIT_SECONDS = 15.0

# A value in bytes goes out as it is; text goes out as UTF-8.
Header = tuple[str, str | bytes]


class Head(NamedTuple):
    """The status and the header lines of a response."""

    status: int
    headers: Sequence[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """The value of a header that may come once; AssertionError if it came more often."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


class Reply(NamedTuple):
    """A whole response."""

    head: Head
    body: bytes

    @property
    def status(self) -> int:
        return self.head.status

    def header(self, name: str) -> str | None:
        return self.head.header(name)

    def all(self, name: str) -> list[str]:
        return self.head.all(name)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header lines, with names in lower case."""
        return [(name.lower(), value) for name, value in self.head.headers]

    @property
    def media_type(self) -> str:
        return (self.header("content-type") or "").partition(";")[0]

    @property
    def json(self) -> Any:
        assert self.media_type == "application/json", (self.head, self.body[:1000])
        return json.loads(self.body)

    @property
    def events(self) -> list["Event"]:
        assert self.media_type == "text/event-stream", (self.head, self.body[:1000])
        return parse_events(self.body)

    @property
    def messages(self) -> list[Any]:
        """The JSON-RPC messages, however they were carried."""
        if self.media_type == "text/event-stream":
            return [event.message for event in self.events if event.data]
        if self.media_type in ("application/x-ndjson", "application/jsonl"):
            return [json.loads(line) for line in self.body.split(b"\n") if line]
        return [self.json]

    @property
    def result(self) -> Any:
        """The result of the last message. AssertionError with the whole reply if it is an error."""
        last = self.messages[-1]
        assert "error" not in last, last
        return last["result"]

    @property
    def error(self) -> Any:
        """The error of the last message. AssertionError with the whole reply if it is a result."""
        last = self.messages[-1]
        assert "result" not in last, last
        return last["error"]


class Event(NamedTuple):
    """One event of a stream, or a comment, which has no data."""

    name: str
    data: str
    comment: str

    @property
    def message(self) -> Any:
        return json.loads(self.data)


def parse_events(stream: bytes) -> list[Event]:
    """Reads events as the strictest client might: one `event` and one `data` line each, or one comment line.

    Lines are split as Python's `splitlines` does, which takes more characters for line ends than the standard.
    """
    text = stream.decode()
    assert not text or text.endswith("\n\n"), text[-200:]
    return [_event(block.splitlines()) for block in text.removesuffix("\n\n").split("\n\n")] if text else []


def _event(lines: list[str]) -> Event:
    if len(lines) == 1 and lines[0].startswith(":"):
        return Event("", "", lines[0][1:].strip())
    assert len(lines) == 2, lines
    name, data = lines
    assert name == "event: message", lines
    assert data.startswith("data: "), lines
    return Event("message", data.removeprefix("data: "), "")


class Wire:
    """One connection. Every wait is bounded by LIMIT_SECONDS (TimeoutError)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address

    @classmethod
    async def open(cls, address: str) -> "Wire":
        """Connects to `host:port`."""
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(LIMIT_SECONDS):
            return cls(*await asyncio.open_connection(host, int(port), limit=2**24), address)

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()

    def abort(self) -> None:
        """Closes the socket at once, whatever is still to be read."""
        self._writer.transport.abort()

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(LIMIT_SECONDS):
            await self._writer.drain()

    async def request(
        self, method: str, target: str, headers: Iterable[Header] = (), body: bytes = b"", *, chunked: bool = False
    ) -> None:
        """Sends one request. Host and the length of the body are added unless they are given."""
        lines = list(headers)
        given = {name.lower() for name, _ in lines}
        if "host" not in given:
            lines.insert(0, ("Host", self._address))
        if chunked:
            lines.append(("Transfer-Encoding", "chunked"))
        elif "content-length" not in given and (body or method in ("POST", "PUT", "PATCH")):
            lines.append(("Content-Length", str(len(body))))
        head = b"".join(
            name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
            for name, value in lines
        )
        payload = _chunked(body) if chunked else body
        await self.write(f"{method} {target} HTTP/1.1\r\n".encode() + head + b"\r\n" + payload)

    async def head(self) -> Head:
        """Reads the head of the next response."""
        async with asyncio.timeout(LIMIT_SECONDS):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        version, status, *_ = lines[0].split(" ")
        assert version in ("HTTP/1.0", "HTTP/1.1"), lines
        pairs = (line.partition(":") for line in lines[1:])
        return Head(int(status), [(name, value.strip()) for name, _, value in pairs])

    async def pieces(self, head: Head) -> AsyncIterator[bytes]:
        """Reads the body of a response piece by piece, as it comes."""
        if head.header("transfer-encoding") == "chunked":
            assert head.header("content-length") is None, head
            while piece := await self._chunk():
                yield piece
            return
        length = head.header("content-length")
        assert length is not None or head.status == 204, head
        if int(length or 0):
            async with asyncio.timeout(LIMIT_SECONDS):
                yield await self._reader.readexactly(int(length or 0))

    async def _chunk(self) -> bytes:
        async with asyncio.timeout(LIMIT_SECONDS):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def reply(self, *, bodiless: bool = False) -> Reply:
        """Reads the next response whole. `bodiless`: that of a HEAD request."""
        head = await self.head()
        return Reply(head, b"" if bodiless else b"".join([piece async for piece in self.pieces(head)]))

    async def closed(self) -> bool:
        """Waits until the server has closed the connection. False if it sent something more instead."""
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                return not await self._reader.read(1)
        except ConnectionError:
            return True


def _chunked(body: bytes, size: int = 65536) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
