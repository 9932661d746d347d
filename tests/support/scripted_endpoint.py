"""A tool endpoint that does as it is told: a real HTTP server on a free port, in the test's event loop.

    async with ScriptedEndpoint() as endpoint:
        endpoint.serve("/mine", Script(chunks=[b'{"a":1}']))
        url = endpoint.url("/mine")            # or one of the ready modes: endpoint.url("/echo")

Ready modes: /echo (the body, byte for byte), /target (method and request target), /headers (what was sent, as a list of
pairs), /raw (the request's bytes), /size?n= (a JSON object of n bytes), /sleep?seconds= (waits, then answers), /hang
(never answers), /gate (waits for `endpoint.gate`), /gated-progress (a progress line, then the gate, then the result),
/ticks?every= (a progress line every so many seconds, and never a result), /count (executions so far), and those of
SCRIPTS.

`arrived()` waits for the next request, `gone()` for the next client that closed its socket before it had its answer.
"""

import asyncio
import contextlib
import gzip
import itertools
import json
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs

import brotli  # type: ignore[import-untyped]

LIMIT_SECONDS = 10.0
HANGUL = '{"msg":"안녕","n":9007199254740993,"f":1.0}'


@dataclass
class Received:
    """One request. `raw` is all of it, `body` what came after the head."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    raw: bytes
    connection: int

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def argument(self, name: str, default: str = "") -> str:
        return parse_qs(self.target.partition("?")[2]).get(name, [default])[0]


@dataclass
class Script:
    """An answer. `chunks` are sent one by one; with `framing` "length" as one body.

    `end`: "keep" the connection, "close" it in order, "drop" it with a reset, or "stall": say nothing more and wait.
    """

    status: int = 200
    content_type: str | None = "application/json"
    chunks: Sequence[bytes] = ()
    headers: Sequence[tuple[str, str]] = ()
    framing: Literal["length", "chunked", "until-close"] = "length"
    end: Literal["keep", "close", "drop", "stall"] = "keep"


def ndjson(*frames: object) -> Script:
    lines = [json.dumps(frame, ensure_ascii=False).encode() + b"\n" for frame in frames]
    return Script(content_type="application/x-ndjson", chunks=lines, framing="chunked")


def sse(*chunks: bytes) -> Script:
    return Script(content_type="text/event-stream", chunks=chunks, framing="chunked")


_PROGRESS = [{"progress": 1, "total": 3, "message": "하나"}, {"progress": 2, "total": 3}, {"progress": 3.5}]
_RESULT = {"result": {"done": True, "msg": "안녕"}}
_SPLIT = 'data: {"result":{"msg":"안녕"}}\n\n'.encode()
_HTML = b"<!doctype html><title>tool</title><p>hello"
_PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(16))

SCRIPTS = {
    "/hangul": Script(chunks=[HANGUL.encode()]),
    "/escaped-hangul": Script(chunks=[json.dumps({"msg": "안녕"}).encode()]),
    "/separators": Script(chunks=['{"text":"a\u2028b\u2029c\u0085d"}'.encode()]),
    "/ndjson": ndjson(*_PROGRESS, _RESULT),
    "/ndjson-without-result": ndjson(*_PROGRESS),
    "/sse-crlf": sse(b'data: {"progress":1}\r\n\r\n: hi\r\n\r\nid: 1\r\ndata:\r\n\r\ndata: {"result":{"a":1}}\r\n\r\n'),
    "/sse-lone-cr": sse(b'data: {"progress":1}\r\rdata: {"result":{"a":1}}\r\r'),
    "/sse-crlf-split": sse(b'data: {"progress":1}\r', b"\n\r", b'\ndata: {"result":{"a":1}}\r\n\r', b"\n"),
    "/sse-hangul-split": sse(*(_SPLIT[index : index + 1] for index in range(len(_SPLIT)))),
    "/sse-multi-line": sse(b'data: {"result":\ndata: {"a":1}}\n\n'),
    "/sse-error": sse(b'data: {"progress":1}\n\ndata: {"error":{"message":"no such row"}}\n\n'),
    "/gzip": Script(chunks=[gzip.compress(HANGUL.encode())], headers=[("Content-Encoding", "gzip")]),
    "/gzip-without-label": Script(chunks=[gzip.compress(HANGUL.encode())]),
    "/gzip-cut": Script(chunks=[gzip.compress(HANGUL.encode())[:-6]], headers=[("Content-Encoding", "gzip")]),
    "/gzip-bomb": Script(chunks=[gzip.compress(b" " * 64_000_000, 1)], headers=[("Content-Encoding", "gzip")]),
    "/gzip-label-only": Script(chunks=[HANGUL.encode()], headers=[("Content-Encoding", "gzip")]),
    "/zstd": Script(chunks=[b"\x28\xb5\x2f\xfd"], headers=[("Content-Encoding", "zstd")]),
    "/deflate": Script(chunks=[zlib.compress(HANGUL.encode())], headers=[("Content-Encoding", "deflate")]),
    "/deflate-bare": Script(chunks=[zlib.compress(HANGUL.encode())[2:-4]], headers=[("Content-Encoding", "deflate")]),
    "/brotli": Script(chunks=[brotli.compress(HANGUL.encode())], headers=[("Content-Encoding", "br")]),
    "/euc-kr": Script(content_type="application/json; charset=euc-kr", chunks=['{"msg":"안녕"}'.encode("euc-kr")]),
    "/euc-kr-text": Script(content_type='text/plain; charset="EUC-KR"', chunks=["똠방각하 안녕".encode("cp949")]),
    "/html": Script(content_type="text/html; charset=utf-8", chunks=[_HTML]),
    "/empty": Script(),
    "/empty-204": Script(status=204, content_type=None),
    "/redirect": Script(status=302, headers=[("Location", "http://169.254.169.254/latest/meta-data/")]),
    "/png": Script(content_type="image/png", chunks=[_PNG]),
    "/wav": Script(content_type="audio/wav", chunks=[b"RIFF....WAVE"]),
    "/binary": Script(content_type="application/pdf", chunks=[b"%PDF-\x00\xff"]),
    "/unlabelled": Script(content_type=None, chunks=[b'{"a":1}']),
    "/not-json": Script(chunks=[b"{oops"]),
    "/list": Script(chunks=[b"[1, 2.0]"]),
    "/deep": Script(chunks=[b"[" * 100_000 + b"]" * 100_000]),
    "/404": Script(status=404, chunks=[b'{"why":"no such row"}']),
    "/429": Script(status=429, content_type="text/plain", chunks=[b"slow down"], headers=[("Retry-After", "7")]),
    "/500": Script(status=500, content_type="text/plain; charset=utf-8", chunks=["고장".encode()]),
    "/500-empty": Script(status=500, content_type=None),
    "/500-large": Script(status=500, content_type="text/plain", chunks=["가".encode() * 50_000]),
    "/401": Script(status=401, chunks=[b'{"hint":"key of naru is wrong"}']),
    "/403": Script(status=403),
    "/cut-body": Script(chunks=[b'{"a":'], headers=[("Content-Length", "50")], framing="until-close", end="close"),
    "/commit-then-drop": Script(status=0, end="drop"),
    "/commit-then-close": Script(status=0, end="close"),
    "/headers-then-stall": Script(chunks=[b'{"a":'], framing="chunked", end="stall"),
    "/not-http": Script(status=0, chunks=[b"SSH-2.0-OpenSSH_9.6\r\n"], end="close"),
    "/set-cookie": Script(chunks=[b"{}"], headers=[("Set-Cookie", "session=1; Path=/")]),
    "/closes-in-silence": Script(chunks=[b"{}"], end="close"),
}

Mode = Callable[["_Connection", Received], Awaitable[None]]


@dataclass
class ScriptedEndpoint:
    """See the module."""

    received: list[Received] = field(default_factory=list)
    executions: int = 0
    connections: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> "ScriptedEndpoint":
        self._scripts = dict(SCRIPTS)
        self._arrivals: asyncio.Queue[Received] = asyncio.Queue()
        self._goners: asyncio.Queue[Received] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**24)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def serve(self, path: str, script: Script) -> str:
        """Adds or replaces a mode and returns its URL."""
        self._scripts[path] = script
        return self.url(path)

    async def arrived(self) -> Received:
        return await asyncio.wait_for(self._arrivals.get(), LIMIT_SECONDS)

    async def gone(self) -> Received:
        return await asyncio.wait_for(self._goners.get(), LIMIT_SECONDS)

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    def find(self, path: str) -> Mode:
        """The mode of a path, or of its first segment, so that the rest can be a template's."""
        if script := self._scripts.get(path):
            return _play(script)
        return _MODES["/" + path.split("/")[1]]

    def record(self, request: Received) -> None:
        self.received.append(request)
        self.executions += 1
        self._arrivals.put_nowait(request)

    def lost(self, request: Received) -> None:
        self._goners.put_nowait(request)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection = _Connection(self, reader, writer, self.connections)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
                await connection.serve()
        finally:
            writer.transport.abort()


class _Connection:
    def __init__(
        self, endpoint: ScriptedEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        self.endpoint = endpoint
        self.reader = reader
        self.writer = writer
        self.number = number
        self.keep = True

    async def serve(self) -> None:
        while self.keep:
            request = await self._read_request()
            self.endpoint.record(request)
            answering = asyncio.ensure_future(self.endpoint.find(request.path)(self, request))
            watching = asyncio.ensure_future(self.reader.read(1))
            try:
                await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    answering.result()
                else:
                    self.endpoint.lost(request)
                    return
            finally:
                answering.cancel()
                watching.cancel()
                await asyncio.gather(answering, watching, return_exceptions=True)

    async def _read_request(self) -> Received:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        body = await self.reader.readexactly(length)
        return Received(method, target, headers, body, head + body, self.number)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        await self.send(f"HTTP/1.1 {status} Scripted\r\n{head}\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer(self, value: object, status: int = 200) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        await self.start(status, headers)
        await self.send(body)


def _play(script: Script) -> Mode:
    async def mode(connection: _Connection, _: Received) -> None:
        headers = list(script.headers)
        if script.content_type is not None:
            headers.append(("Content-Type", script.content_type))
        body = b"".join(script.chunks)
        if script.framing == "chunked":
            headers.append(("Transfer-Encoding", "chunked"))
        elif script.framing == "length" and script.status != 204:
            headers.append(("Content-Length", str(len(body))))
        if script.status:
            await connection.start(script.status, headers)
        for chunk in script.chunks:
            await (connection.chunk(chunk) if script.framing == "chunked" else connection.send(chunk))
            # Lets the reader see each chunk by itself, most of the time.
            await asyncio.sleep(0)
        if script.end == "stall":
            await asyncio.Event().wait()
        if script.framing == "chunked" and script.end != "drop" and script.status:
            await connection.send(b"0\r\n\r\n")
        connection.keep = script.end == "keep"
        if script.end == "drop":
            connection.writer.transport.abort()
        elif script.end == "close":
            connection.writer.close()
            await connection.writer.wait_closed()

    return mode


async def _echo(connection: _Connection, request: Received) -> None:
    await connection.answer(request.body or b"{}")


async def _target(connection: _Connection, request: Received) -> None:
    await connection.answer({"method": request.method, "target": request.target, "body": request.body.decode()})


async def _headers(connection: _Connection, request: Received) -> None:
    await connection.answer({"headers": request.headers})


async def _raw(connection: _Connection, request: Received) -> None:
    await connection.answer({"raw": request.raw.decode("latin-1")})


async def _size(connection: _Connection, request: Received) -> None:
    filler = int(request.argument("n", "100")) - len('{"text":""}')
    await connection.answer(b'{"text":"' + b"x" * filler + b'"}')


async def _sleep(connection: _Connection, request: Received) -> None:
    seconds = float(request.argument("seconds", "1"))
    await asyncio.sleep(seconds)
    await connection.answer({"slept": seconds})


async def _hang(connection: _Connection, request: Received) -> None:
    await asyncio.Event().wait()


async def _gate(connection: _Connection, request: Received) -> None:
    await connection.endpoint.gate.wait()
    await connection.answer({"passed": True})


async def _gated_progress(connection: _Connection, request: Received) -> None:
    await connection.start(200, [("Content-Type", "application/x-ndjson"), ("Transfer-Encoding", "chunked")])
    await connection.chunk(b'{"progress":1,"total":2,"message":"waits"}\n')
    await connection.endpoint.gate.wait()
    await connection.chunk(b'{"progress":2,"total":2}\n{"result":{"passed":true}}\n')
    await connection.send(b"0\r\n\r\n")


async def _ticks(connection: _Connection, request: Received) -> None:
    every = float(request.argument("every", "0.1"))
    await connection.start(200, [("Content-Type", "application/x-ndjson"), ("Transfer-Encoding", "chunked")])
    for number in itertools.count(1):
        await connection.chunk(b'{"progress":%d}\n' % number)
        await asyncio.sleep(every)


async def _count(connection: _Connection, request: Received) -> None:
    await connection.answer({"executions": connection.endpoint.executions})


async def _early_hints(connection: _Connection, request: Received) -> None:
    """`n` answers that are none yet, then one that is."""
    for _ in range(int(request.argument("n", "1"))):
        await connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    await connection.answer({"hinted": True})


async def _processing_for_ever(connection: _Connection, request: Received) -> None:
    while True:
        await connection.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)


_MODES: dict[str, Mode] = {
    "/early-hints": _early_hints,
    "/processing-for-ever": _processing_for_ever,
    "/echo": _echo,
    "/target": _target,
    "/headers": _headers,
    "/raw": _raw,
    "/size": _size,
    "/sleep": _sleep,
    "/hang": _hang,
    "/gate": _gate,
    "/gated-progress": _gated_progress,
    "/ticks": _ticks,
    "/count": _count,
}
