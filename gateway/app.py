"""The application: its routes, its links to the registry service, and whether it is ready."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.mcp_endpoint import Document, Elsewhere, McpEndpoint
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
            *(Route(path, answer, methods=["GET"]) for path, answer in health.items()),
            Route("/openapi.json", Document(mcp, document(settings)), methods=["GET"]),
            *(Route(path, Elsewhere(mcp, "METHOD_NOT_ALLOWED", allow=b"GET, HEAD")) for path in read_only),
            Route("/{path:path}", Elsewhere(mcp, "PATH_NOT_FOUND")),
        ],
        lifespan=gateway.lifespan,
    )
    app.state.gateway = gateway
    return app


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

    async def healthz(self, _request: Request) -> Response:
        """Says that the process is alive."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
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
