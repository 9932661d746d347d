"""Serves Prometheus metrics from a thread of its own. Both services use it."""

import ipaddress
import socket
import sys
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Final
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from naru.environment import Bind

Environ = dict[str, Any]
StartResponse = Callable[..., Any]

_REFUSAL: Final = b"421: this host name is not one of this machine's; see METRICS_ALLOWED_HOSTS in docs/operations.md\n"


class MetricsServer:
    """A server of `/metrics`, to those who name it by an address, a name without dots, or a name of this machine.

    A page in a browser here could otherwise read them, under a name of its own that leads to this address.
    """

    def __init__(self, bind: Bind, registry: CollectorRegistry, allowed_hosts: Iterable[str] = ()) -> None:
        """Listens; port 0 takes a free one. Raises OSError."""
        self._app = make_wsgi_app(registry)
        self._allowed = frozenset({socket.gethostname().lower(), *allowed_hosts})
        kind = _ServerOfIpv6 if ":" in bind.host else _Server
        self._server = make_server(bind.host, bind.port, self._answer, kind, _Handler)
        self.bind = Bind(bind.host, self._server.server_port)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._is_allowed(environ.get("HTTP_HOST", "").lower()):
            answer: Iterable[bytes] = self._app(environ, start_response)
            return answer
        start_response(
            "421 Misdirected Request", [("Content-Type", "text/plain"), ("Content-Length", str(len(_REFUSAL)))]
        )
        return [_REFUSAL]

    def _is_allowed(self, host: str) -> bool:
        name = _hostname(host)
        return name is not None and (
            "." not in name or _is_address(name) or name in self._allowed or host in self._allowed
        )


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Passes over connections that break: whoever scrapes notices it, and asks again."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _ServerOfIpv6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    # The time limit for a client that says nothing, or reads nothing.
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name of the class above
        """Logs nothing: scrapes are many, and all alike."""


def _hostname(host: str) -> str | None:
    """Returns the name in a `Host`, an empty text where there is none, and None for what isn't a `Host`."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
