"""The application: its routes, its links to the registry service, and whether it is ready."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.failures.table import Failure
from gateway.http.body import App, Reply, gathered
from gateway.http.origin import check_host
from gateway.mcp_endpoint import Exchange, McpEndpoint
from gateway.openapi import document
from gateway.registry_client import RegistryClient
from gateway.settings import Settings


def create_app(settings: Settings) -> Starlette:
    """Builds the application; `app.state.gateway` is the Gateway behind it. The logs must have been configured."""
    gateway = Gateway(settings)
    mcp = gateway.mcp
    health = {"/healthz": gateway.healthz, "/readyz": gateway.readyz}
    read_only = (*health, "/openapi.json")
    app = Starlette(
        routes=[
            *(Route(path + slash, mcp) for path in settings.mcp_paths for slash in ("", "/")),
            *(Route(path, Health(mcp, answer), methods=["GET"]) for path, answer in health.items()),
            Route("/openapi.json", Document(mcp, document(settings)), methods=["GET"]),
            *(Route(path, Elsewhere(mcp, "METHOD_NOT_ALLOWED", allow=b"GET, HEAD")) for path in read_only),
        ],
        lifespan=gateway.lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = Elsewhere(mcp, "PATH_NOT_FOUND")
    app.state.gateway = gateway
    return app


class Elsewhere:
    """The ASGI application behind what is not served: a path, or a method of a path (`allow` names those that are)."""

    def __init__(self, endpoint: McpEndpoint, reason: str, allow: bytes = b"") -> None:
        self._endpoint = endpoint
        self._reason = reason
        self._allow = allow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint.carry(scope, receive, send, self._answer)

    async def _answer(self, exchange: Exchange) -> App:
        self._endpoint.check_source(exchange)
        if not self._allow:
            raise Failure(self._reason)
        exchange.headers.append((b"allow", self._allow))
        raise Failure(self._reason, {"allow": self._allow.decode()})


class Document:
    """The ASGI application behind a fixed JSON text."""

    def __init__(self, endpoint: McpEndpoint, text: bytes) -> None:
        self._endpoint = endpoint
        self._reply = Reply(200, text)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint.carry(scope, receive, send, self._answer)

    async def _answer(self, exchange: Exchange) -> App:
        self._endpoint.check_source(exchange)
        return self._reply


class Health:
    """The ASGI application behind a probe, which is neither counted nor logged.

    Probes ask by address as well as by name; a web page that makes a browser ask under a name of its own is refused.
    """

    def __init__(self, endpoint: McpEndpoint, answer: Callable[[], Awaitable[Response]]) -> None:
        self._allowed = endpoint.settings.allowed_hosts
        self._answer = answer
        self._refused = Elsewhere(endpoint, "HOST_NOT_ALLOWED")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_host(gathered(scope), self._allowed, any_address=True)
        except Failure:
            await self._refused(scope, receive, send)
        else:
            answer = await self._answer()
            await answer(scope, receive, send)


class Gateway:
    """One process: its links, its readiness, and its end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.mcp = McpEndpoint(settings)
        self.stopping = False

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Keeps the links to the registry open."""
        async with RegistryClient.connected(self.settings, self.mcp.metrics, self.mcp.log) as client:
            self.mcp.client = client
            yield
        await self.mcp.scans.close()

    async def healthz(self) -> Response:
        """Says that the process is alive."""
        return JSONResponse({"status": "ok"})

    async def readyz(self) -> Response:
        """Says whether calls could be served now, and what is in the way. Degraded: calls run, the rest fails."""
        if self.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        readiness = await self.mcp.client.readiness()
        if not readiness.troubles:
            return JSONResponse({"status": "ok"})
        status = "degraded" if readiness.calls else "unavailable"
        body = {"status": status, "troubles": readiness.troubles}
        return JSONResponse(body, 200 if readiness.calls else 503)

    def stop(self) -> None:
        """Turns readiness off; what is running goes on."""
        self.stopping = True

    def end_answers(self) -> None:
        """Ends what is still running with a last message: the grace is over."""
        self.mcp.answers.end_all()
