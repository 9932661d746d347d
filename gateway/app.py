"""The application: its routes, its channels to the registry service, and whether it is ready."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.failures.table import is_token_refused
from gateway.mcp.methods import Edge
from gateway.mcp.revisions import Server, Shapes
from gateway.mcp_endpoint import Document, Elsewhere, McpEndpoint
from gateway.openapi import document
from gateway.registry_client import Link, watched
from gateway.settings import Settings
from naru.v1 import wire
from naru.v1.accounts_pb2 import AuthenticateRequest
from naru.v1.accounts_pb2_grpc import AccountsStub
from naru.v1.execution_pb2_grpc import ExecutionStub
from naru.v1.registry_pb2_grpc import RegistryStub

# Larger than any body, result or catalog page; gRPC's own default of 4 MiB is too small for them.
_MAX_REQUEST = 16 << 20
# An answer travels as structured content and again as text, in which each quote may have become two characters.
_MAX_ANSWER = 48 << 20
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", _MAX_REQUEST),
    ("grpc.max_receive_message_length", _MAX_ANSWER),
    # A replica that says that it does not serve (it stops, or its database is away) gets no calls while others do.
    (
        "grpc.service_config",
        '{"loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":""}}',
    ),
    # A replica that hangs is noticed this long after a ping that it does not answer, and gets no more calls; gRPC's own
    # default is a minute, in which all callers would come to wait for it. A busy event loop answers: gRPC's threads do.
    ("grpc.http2.ping_timeout_ms", 1_500),
    ("grpc.keepalive_timeout_ms", 1_500),
    # However long a call says nothing: gRPC by itself pings twice, and then once a minute.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # How long one attempt to connect may take, and how soon the next follows.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_READY_SECONDS = 2.0


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
    """One process: its channels, its readiness, and its end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.mcp = McpEndpoint(settings)
        self.stopping = False
        self._health: dict[str, health_pb2_grpc.HealthStub] = {}

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Keeps the channels to the registry open; they connect, and connect again, on their own."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            registry = await stack.enter_async_context(_channel(settings, settings.registry))
            execution = registry
            if settings.execution != settings.registry:
                execution = await stack.enter_async_context(_channel(settings, settings.execution))
            link = await stack.enter_async_context(watched(Link(execution, settings.execution, self.mcp.log)))
            self._open(registry, execution, link)
            yield

    def _open(self, registry: grpc.aio.Channel, execution: grpc.aio.Channel, link: Link) -> None:
        self._health = {
            "naru.v1.Accounts": health_pb2_grpc.HealthStub(registry),
            "naru.v1.Registry": health_pb2_grpc.HealthStub(registry),
            "naru.v1.Execution": health_pb2_grpc.HealthStub(execution),
        }
        self.mcp.edge = Edge(
            accounts=AccountsStub(registry),
            registry=RegistryStub(registry),
            execution=ExecutionStub(execution),
            link=link,
            shapes=Shapes(Server("naru", version("naru"), title="Naru", prefix=self.settings.meta_prefix)),
            metrics=self.mcp.metrics,
            log=self.mcp.log,
            token=self.settings.registry_token,
            call_timeout=self.settings.call_timeout,
            registry_timeout=self.settings.registry_timeout,
        )

    async def healthz(self, _request: Request) -> Response:
        """Says that the process is alive."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Says whether a call could be served now, and if not, what is in the way."""
        if self.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        answers = await asyncio.gather(*(self._trouble(service) for service in self._health), self._token_trouble())
        troubles = [trouble for trouble in answers if trouble]
        if troubles:
            return JSONResponse({"status": "unavailable", "troubles": troubles}, 503)
        return JSONResponse({"status": "ok"})

    def stop(self) -> None:
        """Turns readiness off; what is running goes on."""
        self.stopping = True

    def end_answers(self) -> None:
        """Ends what is still running with a last message: the grace is over."""
        self.mcp.answers.end_all()

    async def _trouble(self, service: str) -> str:
        check = self._health[service].Check
        try:
            answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=_READY_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"{service}: {error.code().name}"
        return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else f"{service}: not serving"

    async def _token_trouble(self) -> str:
        """Asks for something that needs the service token, without a credential: only the token's refusal matters."""
        metadata = ((wire.SERVICE_TOKEN_KEY, self.settings.registry_token),)
        try:
            await self.mcp.edge.accounts.Authenticate(AuthenticateRequest(), metadata=metadata, timeout=_READY_SECONDS)
        except grpc.aio.AioRpcError as error:
            return "GATEWAY_REGISTRY_TOKEN: the registry refuses it" if is_token_refused(error) else ""
        return ""


def _channel(settings: Settings, target: str) -> grpc.aio.Channel:
    # A peer that vanished without a word is noticed, also in the middle of a long call.
    options = (*_CHANNEL_OPTIONS, ("grpc.keepalive_time_ms", int(settings.registry_ping * 1000)))
    if settings.registry_ca is None:
        return grpc.aio.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(settings.registry_ca, settings.registry_key, settings.registry_cert)
    return grpc.aio.secure_channel(target, credentials, options=options)
