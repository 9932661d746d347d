"""The HTTP server: uvicorn, told of its end before its connections are."""

import asyncio
import gc
import math
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from gateway.app import Gateway, create_app
from gateway.failures.table import Wording
from gateway.http.unread import Connection, OnCut, UnreadAnswers
from gateway.http.uvicorn_protocol import Protocol
from gateway.settings import Settings
from naru.environment import Bind, SettingError
from naru.event_loop import LoopWatch
from naru.metrics_server import MetricsServer

# Python's own 700 new objects would have it look through a large body of small arrays a thousand times.
GC_THRESHOLD = (20_000, 20, 20)
# Longer than the usual 60 s of a load balancer, so that it is never us who close a connection that it is about to use.
_KEEP_ALIVE_SECONDS = 75
# How long the last messages may take to be written once the grace is over. Above the time that a refusal lingers.
_FAREWELL_SECONDS = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, and then until what is running has ended or the grace is over.

    Raises SettingError where an address cannot be listened on.
    """
    app = create_app(settings)
    gateway: Gateway = app.state.gateway
    listener = _listen(settings.bind)
    facts: dict[str, object] = {
        "address": str(Bind(settings.bind.host, listener.getsockname()[1])),
        "paths": settings.mcp_paths,
        "registry": settings.registry,
        "execution": settings.execution,
        "tls": settings.registry_ca is not None,
    }
    if settings.metrics_bind is not None:
        try:
            facts["metrics"] = str(
                MetricsServer(settings.metrics_bind, gateway.mcp.metrics.registry, settings.allowed_hosts).bind
            )
        except OSError as failed:
            raise _cannot_listen("GATEWAY_METRICS_BIND", settings.metrics_bind, failed) from failed
    Protocol.wording = Wording(settings.locale, settings.meta_prefix)
    Protocol.unread = UnreadAnswers(settings.write_timeout, settings.max_unread_bytes, _on_cut(gateway))
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

    def __init__(self, config: uvicorn.Config, gateway: Gateway, grace: float, facts: dict[str, object]) -> None:
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


def _on_cut(gateway: Gateway) -> OnCut:
    def cut(connection: Connection, held: int, why: str) -> None:
        client = connection.transport.get_extra_info("peername")
        gateway.mcp.metrics.unread_cut.labels(why).inc()
        gateway.mcp.log.warning("unread answer cut", client=client[0] if client else "", bytes=held, why=why)

    return cut


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
