"""uvicorn's protocol for one connection, with limits, and careful with what it cannot parse.

Written against uvicorn 0.54.0 and httptools 0.9.0: it uses members that uvicorn keeps to itself, which
tests/gateway/http/test_uvicorn_members.py looks for.
"""

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, ClassVar, Final, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.failures.table import TABLE, Wording, describe
from gateway.http.body import CONNECTION, Reply
from gateway.http.unread import UnreadAnswers

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

MAX_HEAD_BYTES: Final = 64 << 10
# How long a client that is refused may go on sending before its connection is closed.
_LINGER_SECONDS = 2.0
# How many requests may wait for the answer of one before them. A packet can hold thousands, and each takes memory.
_MAX_PIPELINED: Final = 64
# How often the connection of a client that sends no more is looked at while its leaving matters.
_PROBE_SECONDS: Final = 0.2
_TCP_CLOSE: Final = 7
_OFFER = frozenset({b"upgrade", b"http2-settings"})


class _Unframed(RequestResponseCycle):
    """HTTP/1.0 knows no chunks: an answer whose length is not known ends with the connection."""

    async def send(self, message: "ASGISendEvent") -> None:
        """Keeps uvicorn's account of the length in balance."""
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                self.chunked_encoding = False
                self.expected_content_length = sys.maxsize
        elif self.expected_content_length > sys.maxsize >> 1 and not message.get("more_body", False):
            self.expected_content_length = len(cast(bytes, message.get("body", b"")))
        await super().send(message)


class Protocol(HttpToolsProtocol):
    """uvicorn's, with a limit on the head of a request, and with JSON in answer to what is no HTTP."""

    wording: ClassVar = Wording("ko", "xdata.kr")
    # How long a request may take to come whole, from its first byte.
    request_seconds: ClassVar = 60.0
    unread: ClassVar = UnreadAnswers()

    # The bytes of an answer that cannot be written yet.
    waiting = 0
    _in_head = True
    _head_bytes = 0
    # What has come since the last piece of a body: trailers, or framing without end.
    _tail_bytes = 0
    _refused = False
    _impatience: asyncio.TimerHandle | None = None
    # The head that came offers to go on in another protocol: its parser takes no body, and is replaced.
    _offered = False
    _half_closed = _leaving_matters = _probed = False
    _probing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limits how long a new connection may say nothing."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Counts a head that comes in pieces: the parser itself would take headers without end."""
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._tail_bytes += len(data)
        self._feed(data)
        if self.transport.is_closing() or self._refused:
            return
        if max(self._head_bytes, self._tail_bytes) > MAX_HEAD_BYTES:
            self._refuse(431, "the headers are too large")
        elif self._impatience is None and (self._head_bytes or not self._in_head):
            late = "the request took too long to come"
            self._impatience = self.loop.call_later(self.request_seconds, self._refuse, 408, late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is waited for."""
        self._be_patient()
        if self._probing is not None:
            self._probing.cancel()
        self.unread.forget(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads slower than it is written to."""
        super().pause_writing()
        self.unread.watch(self)

    def resume_writing(self) -> None:
        """The client has read nearly all."""
        super().resume_writing()
        self.unread.forget(self)

    def on_response_complete(self) -> None:
        """An answer is written, as far as the client reads it."""
        super().on_response_complete()
        self._leaving_matters = self._probed = False
        if self.transport.is_closing():
            self._watch_unread()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long. What is unread may keep the connection open, but not for ever."""
        super().timeout_keep_alive_handler()
        self._watch_unread()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, and may be gone or not. What it has asked for is answered."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self._head_bytes or not self._in_head:
            return False  # nothing is due, or what is due will never come whole
        cycle.keep_alive = False
        self._half_closed = True
        self._probe()
        return True

    def expect_departure(self) -> None:
        """Hears that what is being answered ends when its client goes."""
        self._leaving_matters = True
        self._probe()

    def _probe(self) -> None:
        """Finds out whether a client that sends no more has gone: who has answers whatever it is sent with a reset."""
        self._probing = None
        if self.parser is None or not (self._half_closed and self._leaving_matters):
            return
        if _is_reset(self.transport):
            self.transport.abort()
            return
        if not self._probed and not self.pipeline:
            self._probed = True
            self._send_next_to_nothing()
        self._probing = self.loop.call_later(_PROBE_SECONDS, self._probe)

    def _send_next_to_nothing(self) -> None:
        """Sends what every reader passes over: an interim answer, or an empty line of a stream."""
        if self.cycle.response_started:
            if self.cycle.chunked_encoding:
                self.transport.write(b"1\r\n\n\r\n")
        elif self.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")

    def _feed(self, data: bytes) -> None:
        """Parses what came. An offer of another protocol (h2c, of Java's HTTP client) is taken up for nobody."""
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._offered:  # CONNECT: what comes next is no HTTP
                    return
                data = self._without_offer() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("")
                return
            else:
                return

    def _without_offer(self) -> bytes:
        """Writes the head once more for a new parser: the old one would drop the body that comes with the offer."""
        self._offered = False
        method = self.parser.get_method()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        lines = [name + b": " + value for name, value in self.headers if name not in _OFFER]
        return b"\r\n".join([method + b" " + self.url + b" HTTP/1.1", *lines, b"", b""])

    def _watch_unread(self) -> None:
        if self.parser is not None:  # the connection is not lost yet
            self.unread.watch(self)

    def _close(self) -> None:
        self.transport.close()
        self._watch_unread()

    def on_message_complete(self) -> None:
        """The next head begins."""
        if self._refused or self._offered:
            return
        self._in_head = True
        self._head_bytes = self._tail_bytes = 0
        self._be_patient()
        super().on_message_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Passes over trailers: nobody reads them."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body."""
        if self._refused:
            return
        self._tail_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """A head is whole; one that came in a single piece is measured here."""
        if self._refused:
            return
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._offered = True
            return
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refused = True
            self.cycle.keep_alive = False  # its answer is the last: the client asks again for what came after it
            return
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self._in_head = False
        self._head_bytes = 0
        if sum([len(value) for _, value in self.headers]) + len(self.url) > MAX_HEAD_BYTES:
            self.app = Reply(431, self._complaint("the headers are too large"), unread=True, closing=True)
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = _Unframed

    def _be_patient(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP."""
        self._refuse(400, "not a valid HTTP request")

    def _refuse(self, status: int, detail: str) -> None:
        """Answers and closes, but not at once: with unread data the closing would take the answer down with it."""
        self._refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head or (cycle.response_started and not self.pipeline):
                cycle.keep_alive = False  # the answer to what came whole is due first, and is the last
                return
            if self.pipeline:  # another answer is due before that of the request which broke
                self._close()
                return
            # The body of the very request that waits for its answer: what was to answer it hears that it is too late.
            cycle.disconnected = True
            cycle.message_event.set()
        body = self._complaint(detail)
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self._close)

    def _complaint(self, detail: str) -> bytes:
        message, data = describe("INVALID_REQUEST", {"detail": detail}, self.wording)
        error = {"code": TABLE["INVALID_REQUEST"].code, "message": message, "data": data}
        return msgspec.json.encode({"jsonrpc": "2.0", "error": error})


def _is_reset(transport: asyncio.Transport) -> bool:
    """Says whether the other side has reset the connection: not every loop looks once nothing more is read."""
    info = getattr(socket, "TCP_INFO", None)
    if info is None:  # not every system tells
        return False
    try:
        state: bytes = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, info, 1)
    except OSError:  # it is closed by now
        return True
    return state[0] == _TCP_CLOSE
