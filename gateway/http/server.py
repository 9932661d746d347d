"""The HTTP server: uvicorn, told of its end before its connections are, and careful with what it cannot parse."""

import asyncio
import gc
import math
import re
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.app import Gateway, create_app
from gateway.failures.table import TABLE, Wording, describe
from gateway.http.body import Reply
from gateway.mcp.jsonrpc import error
from gateway.settings import Settings
from gateway.telemetry.metrics import start_metrics
from naru.environment import Bind, SettingError
from naru.event_loop import LoopWatch

MAX_HEAD_BYTES: Final = 64 << 10
# Python's own 700 new objects would have it look through a large body of small arrays a thousand times.
GC_THRESHOLD = (20_000, 20, 20)
# Longer than the usual 60 s of a load balancer, so that it is never us who close a connection that it is about to use.
_KEEP_ALIVE_SECONDS = 75
# How long the last messages may take to be written once the grace is over. Above the time that a refusal lingers.
_FAREWELL_SECONDS = 3
# How long a client that is refused may go on sending before its connection is closed.
_LINGER_SECONDS = 2.0
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, and then until what is running has ended or the grace is over.

    Raises SettingError where an address cannot be listened on.
    """
    app = create_app(settings)
    gateway: Gateway = app.state.gateway
    listener = _listen(settings.bind)
    facts = {"address": str(Bind(settings.bind.host, listener.getsockname()[1]))}
    if settings.metrics_bind is not None:
        try:
            facts["metrics"] = str(start_metrics(settings.metrics_bind, gateway.mcp.metrics.registry))
        except OSError as failed:
            raise _cannot_listen("GATEWAY_METRICS_BIND", settings.metrics_bind, failed) from failed
    Protocol.wording = Wording(settings.locale, settings.meta_prefix)
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.forwarded_allow_ips),
        forwarded_allow_ips=settings.forwarded_allow_ips or None,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + 2 * _FAREWELL_SECONDS,
    )
    await Server(config, gateway, settings.shutdown_grace, facts).serve(sockets=[listener])


class Server(uvicorn.Server):
    """uvicorn's, which tells the gateway of its end first, and ends with status 0.

    `facts` go into the line that says that it is ready.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway, grace: float, facts: dict[str, str]) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._grace = grace
        self._facts = facts

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Listens to signals while the server runs. They are not raised again: this end is the wanted one."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        """The first signal begins the grace, the second ends it, a third waits for nobody."""
        if self._gateway.mcp.answers.ended:
            self.force_exit = True
        elif self.should_exit:
            self._end_answers()
        else:
            self._gateway.stop()
            self._gateway.mcp.log.info("gateway stopping", grace_seconds=self._grace)
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept, and says so."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there now stays, and need not be looked at again
        gc.set_threshold(*GC_THRESHOLD)
        for unknown in self._gateway.settings.unknown:
            self._gateway.mcp.log.warning("unknown variable", **unknown._asdict())
        self._gateway.mcp.log.info("gateway ready", **self._facts)

    async def main_loop(self) -> None:
        """Serves until a signal comes, and watches the event loop meanwhile."""
        with LoopWatch(self._gateway.mcp.metrics.loop_lag.observe):
            await super().main_loop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops accepting, lets what is running end, and ends it itself when the grace is over."""
        end = asyncio.get_running_loop().call_later(self._grace, self._end_answers)
        await super().shutdown(sockets)
        end.cancel()
        self._gateway.mcp.log.info("gateway stopped")

    def _end_answers(self) -> None:
        self._gateway.end_answers()
        asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, self._cut_connections)

    def _cut_connections(self) -> None:
        """Whoever has not read the last message by now does not read: closing in order would wait for it for ever."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Protocol(HttpToolsProtocol):
    """uvicorn's, with a limit on the head of a request, and with JSON in answer to what is no HTTP."""

    wording: ClassVar = Wording("ko", "xdata.kr")
    # How long a request may take to come whole, from its first byte.
    request_seconds: ClassVar = 60.0

    _in_head = True
    _head_bytes = 0
    # What has come since the last piece of a body: trailers, or framing without end.
    _tail_bytes = 0
    _refused = False
    _impatience: asyncio.TimerHandle | None = None

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
            if b"upgrade" in data.lower():
                data = _without_upgrade(data)
        else:
            self._tail_bytes += len(data)
        super().data_received(data)
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
        super().connection_lost(exc)

    def on_message_complete(self) -> None:
        """The next head begins."""
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
        self._tail_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """A head is whole; one that came in a single piece is measured here."""
        self._in_head = False
        self._head_bytes = 0
        if sum([len(value) for _, value in self.headers]) + len(self.url) > MAX_HEAD_BYTES:
            self.app = Reply(431, self._complaint("the headers are too large"), unread=True, closing=True)
        super().on_headers_complete()

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
                self.transport.close()
                return
            # The body of the very request that waits for its answer: what was to answer it hears that it is too late.
            cycle.disconnected = True
            cycle.message_event.set()
        body = self._complaint(detail)
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _complaint(self, detail: str) -> bytes:
        message, data = describe("INVALID_REQUEST", {"detail": detail}, self.wording)
        return error(b"", TABLE["INVALID_REQUEST"].code, message, data)


def _without_upgrade(data: bytes) -> bytes:
    """Hides an offer to upgrade, which we take up for nobody: the parser would drop the body that comes with it.

    The HTTP client of Java offers HTTP/2 (h2c) with every first request.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest


def _listen(bind: Bind) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as failed:
        raise _cannot_listen("GATEWAY_BIND", bind, failed) from failed
    listener.setblocking(False)
    return listener


def _cannot_listen(name: str, bind: Bind, failed: OSError) -> SettingError:
    return SettingError(f"{name}: cannot listen on {bind}: {failed.strerror}")
