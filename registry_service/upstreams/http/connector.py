"""The connector for HTTP: it connects to allowed addresses only, and bounds what a connection costs.

Written against the private members of aiohttp that `PRIVATE` names; a test says which of them has gone.
"""

import asyncio
import contextlib
import select
import socket
import ssl
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import cast
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import AddrInfoType, Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader
from aiohttp.tracing import Trace

from registry_service.upstreams.egress import AddressRefusedError, Guard
from registry_service.upstreams.http.turns import SLICE_SECONDS, Effort, Turns
from registry_service.upstreams.upstream import Attempt

PRIVATE = {
    ResponseHandler: (
        "_buffer",
        "_buffer_paused",
        "_exception",
        "_loop",
        "_parser",
        "_pause_reading_for_buffer",
        "_payload",
        "_reading_paused",
        "_resume_reading_for_buffer",
        "_upgraded",
    ),
    aiohttp.TCPConnector: ("_factory", "_loop"),
}

# Below the 5 seconds after which uvicorn and Node close an idle connection, so that we let go first.
KEEPALIVE_SECONDS = 4.0

# More answers of the kind "not yet" (1xx) to one request are no answer.
MAX_INFORMATIONAL = 20
# The limit of an answer's head, together with all the heads of the kind "not yet" before it.
MAX_HEAD_BYTES = 64 * 1024
# The limit of all that stands around the content (sizes of chunks, their extensions, trailers) is so much, and 8 times
# the content.
MAX_FRAMING_BYTES = 1024 * 1024
# The parser gets at most so much at a time: a few milliseconds of work even where every byte is made expensive.
_PIECE = 16 * 1024
_END_OF_HEAD = b"\r\n\r\n"


class Exchange:
    """One request and its answer, as the connection sees them."""

    __slots__ = ("attempt", "effort", "fault", "refused", "tried")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        # The cost of reading the answer.
        self.effort = Effort()
        # How the answer broke, a short word; empty where it did not.
        self.fault = ""
        # The number of addresses that the guard has refused, and of those that it has let pass.
        self.refused = 0
        self.tried = 0


EXCHANGE: ContextVar[Exchange] = ContextVar("EXCHANGE")


class _Handler(ResponseHandler):
    """Hands what an endpoint sends to aiohttp's parser: bounded, a slice at a time, and with an end that is seen.

    aiohttp parses all that has come in one go and does not wake who reads a body when its framing is broken. Here the
    body ends instead, after all that was good of it, and the exchange says what was wrong.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
        super().__init__(loop)
        self._turns = turns
        self._held = bytearray()
        self._awaits_turn = False
        self.begin(Exchange(Attempt()))

    def begin(self, exchange: Exchange) -> None:
        """Starts the count for another request on this connection."""
        self._exchange = exchange
        self._came = 0
        self._informational = 0
        self._content: StreamReader | None = None

    @property
    def should_close(self) -> bool:
        return bool(self._held) or super().should_close

    def data_received(self, data: bytes) -> None:
        if not data or self._parser is None or self._upgraded:
            # Either aiohttp goes on with what it has, or this isn't HTTP any more.
            self._parse(data)
            return
        if self._held or self._awaits_turn:
            self._held += data
            return
        rest = self._parse_slice(data)
        if rest or self._exchange.effort.is_great:
            self._hold(rest)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Takes a head. Ends the connection of an endpoint that sends no end of them: aiohttp passes over 1xx answers
        in a loop that does not suspend while there are more, and keeps all others."""
        message, payload = data
        if self._exception is not None:
            return
        # 101 is the end of HTTP on the connection.
        if 100 <= message.code < 200 and message.code != 101:
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                # The bytes that are not read yet would be passed over before the exception is seen.
                self._buffer.clear()
                self._refuse_head(message.code, "too many 1xx answers", "malformed HTTP")
                return
        elif self._content is not None:
            # A second answer to one request; the first is whole.
            self._abort()
            return
        else:
            self._content = payload
        super().feed_data(data, size)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Goes on after a pause. aiohttp asks for it with each piece that is read, paused or not."""
        if not self._reading_paused:
            return
        super().resume_reading(resume_parser)
        # Also where nothing is held: the socket may have been paused only so that others get their turn.
        if self._held or self._buffer_paused:
            self._ask_to_go_on()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._held.clear()
        parser, payload = self._parser, self._payload
        if parser is not None and payload is not None and not payload.is_eof():
            try:
                if exc is None:
                    parser.feed_eof()
            except HttpProcessingError:
                pass
            if not payload.is_eof():
                self._end_body("broken off")
        super().connection_lost(exc)

    def _parse_slice(self, data: bytes) -> bytes:
        """Parses until the slice of time is over, and returns what is left then."""
        if self._content is not None and len(data) <= _PIECE:
            self._parse(data)
            return b""
        end = perf_counter() + SLICE_SECONDS
        at = 0
        while at < len(data):
            size = _PIECE if self._content is not None else self._head_size(data, at)
            if not size:
                self._refuse_head(HTTPStatus.BAD_REQUEST, "headers too large", "headers too large")
                return b""
            self._parse(data[at : at + size])
            at += size
            if self._exception is not None or not self.is_connected():
                return b""
            if self._reading_paused or perf_counter() > end:
                break
        return data[at:]

    def _head_size(self, data: bytes, at: int) -> int:
        """Returns how much may belong to a head; nothing if it is too large. The head is parsed by itself: with what
        follows, and is broken, it would be lost."""
        size = min(_PIECE, MAX_HEAD_BYTES - self._came)
        head_end = data.find(_END_OF_HEAD, at, at + size)
        return size if head_end < 0 else head_end + len(_END_OF_HEAD) - at

    def _parse(self, data: bytes) -> None:
        began = perf_counter()
        self._came += len(data)
        super().data_received(data)
        content = self._content
        if self._exception is not None:
            self._end_body("malformed HTTP")
        elif content is not None and self._came > MAX_HEAD_BYTES + MAX_FRAMING_BYTES + 8 * content.total_bytes:
            self._end_body("malformed HTTP")
            self._abort()
        self._exchange.effort.add(perf_counter() - began, self._turns)

    def _end_body(self, fault: str) -> None:
        """Ends a body that will never be whole; what has come of it can be read."""
        payload = self._content
        self.force_close()
        if payload is not None and not payload.is_eof():
            self._exchange.fault = self._exchange.fault or fault
            payload.feed_eof()
        self._payload = None

    def _refuse_head(self, code: int, message: str, fault: str) -> None:
        self._exchange.fault = fault
        self.set_exception(HttpProcessingError(code=code, message=message))
        self._abort()

    def _abort(self) -> None:
        self._held.clear()
        self.force_close()
        if self.transport is not None:
            self.transport.abort()

    def _hold(self, rest: bytes) -> None:
        self._held += rest
        self._pause_reading_for_buffer()
        if not self._reading_paused:
            self._ask_to_go_on()

    def _ask_to_go_on(self) -> None:
        if self._awaits_turn:
            return
        self._awaits_turn = True
        if self._exchange.effort.is_great:
            self._turns.ask(self._go_on)
        else:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._awaits_turn = False
        if self._reading_paused or not self.is_connected():
            return
        if self._held:
            data = bytes(self._held)
            self._held.clear()
            self._held += self._parse_slice(data)
        if self._held:
            if not self._reading_paused:
                self._ask_to_go_on()
        elif self._buffer_paused:
            self._resume_reading_for_buffer()


class Connector(aiohttp.TCPConnector):
    """Connects to allowed addresses only, and never hands out a kept connection that the endpoint has closed."""

    def __init__(self, guard: Guard, resolver: AbstractResolver | None = None, authority: bytes | None = None) -> None:
        super().__init__(
            limit=0,
            keepalive_timeout=KEEPALIVE_SECONDS,
            resolver=resolver,
            socket_factory=self._make_socket,
            ssl=True if authority is None else trusting(authority),
        )
        self._guard = guard
        self.turns = Turns()
        self._factory = cast("partial[ResponseHandler]", partial(_Handler, loop=self._loop, turns=self.turns))
        self._seen: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 -- the signature is aiohttp's
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol not in self._seen:
                if protocol is not None:
                    self._seen.add(protocol)
                break
            # Kept from an earlier request: the endpoint's FIN may be waiting in the kernel, unseen by the event loop.
            # Looking costs about a microsecond, and saves a request that may not be repeated from being lost.
            if not _hung_up(connection.transport):
                break
            connection.close()
        exchange = EXCHANGE.get(None) or Exchange(Attempt())
        exchange.attempt.connected = True
        if isinstance(protocol, _Handler):
            protocol.begin(exchange)
        return connection

    def _make_socket(self, info: AddrInfoType) -> socket.socket:
        exchange = EXCHANGE.get(None) or Exchange(Attempt())
        try:
            made = self._guard.make_socket(info)
        except AddressRefusedError:
            exchange.refused += 1
            raise
        exchange.tried += 1
        return made


def trusting(authority: bytes) -> ssl.SSLContext:
    """Returns a context that trusts these certificates (PEM) too. Raises ssl.SSLError for what holds none."""
    context = ssl.create_default_context()
    # Beside the certificates stand comments, in any language.
    context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))
    return context


# Where the peer's FIN cannot be asked for by itself (not Linux), only a reset is seen.
_HANG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


def _hung_up(transport: asyncio.Transport | None) -> bool:
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None:
        return True
    poll = select.poll()
    with contextlib.suppress(ValueError, OSError):
        poll.register(sock.fileno(), _HANG_UP)
        return bool(poll.poll(0))
    return True
