"""The registry service as the gateway sees it: links, metadata, deadlines, and what a failed RPC means.

Every RPC has a deadline, and none begins on a link that is down: a registry that is away is an answer, not a delay.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.typing import FilteringBoundLogger

from gateway.failures.table import TABLE, Failure
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from naru.v1 import wire
from naru.v1.accounts_pb2 import AuthenticateRequest
from naru.v1.accounts_pb2_grpc import AccountsStub
from naru.v1.execution_pb2 import CallToolEvent, CallToolRequest, GetCallRequest
from naru.v1.execution_pb2_grpc import ExecutionStub
from naru.v1.registry_pb2 import ListCatalogRequest, ListCatalogResponse
from naru.v1.registry_pb2_grpc import RegistryStub

if TYPE_CHECKING:  # stubs of asynchronous channels exist for the type checker only
    from naru.v1.accounts_pb2_grpc import AccountsAsyncStub
    from naru.v1.execution_pb2_grpc import ExecutionAsyncStub
    from naru.v1.registry_pb2_grpc import RegistryAsyncStub

# Larger than any body, result or catalog page; gRPC's own default of 4 MiB is too small for them.
_MAX_REQUEST = 16 << 20
# An answer travels as structured content and again as text, in which each quote may have become two characters.
_MAX_ANSWER = 48 << 20
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", _MAX_REQUEST),
    ("grpc.max_receive_message_length", _MAX_ANSWER),
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
# A replica that says that it does not serve (it stops, or its database is away) gets no calls while others do.
_CHECKED = (
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":""}}'),
)
_READY_SECONDS = 2.0

_READY = grpc.ChannelConnectivity.READY
# A connection is on its way: soon there is one, or word that there is none.
_UNDECIDED = frozenset({grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING})

# How gRPC words the failures of a request that no connection ever carried. There is no other sign of it in grpc.aio:
# initial metadata that never came says nothing, since the registry may have admitted the call and died before it.
_NEVER_SENT = (
    "connections to all backends failing",
    "failed to connect to all addresses",
    "errors resolving ",
    "DNS resolution failed",
    "empty address list",
    "CLIENT: Sent message larger than max",
)
_TOO_LARGE_REQUEST = ("CLIENT: Sent message larger than max", "SERVER: Received message larger than max")
_TOO_LARGE_RESULT = ("CLIENT: Received message larger than max", "SERVER: Sent message larger than max")
# A read-only RPC that fails with one of these, and without an ErrorInfo, may be sent again.
_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

_Answered = TypeVar("_Answered")


class Sender(NamedTuple):
    """On whose behalf an RPC is made: the credential as metadata, and what correlates the logs of both sides."""

    authorization: str
    request_id: str
    trace_id: str
    traceparent: str
    tracestate: str = ""

    def __repr__(self) -> str:
        return f"Sender(authorization=…, request_id={self.request_id!r}, traceparent={self.traceparent!r})"


class Readiness(NamedTuple):
    """Says whether calls can run now, and what is in the way of anything."""

    calls: bool
    troubles: list[str]


class Link:
    """A channel, and one watcher for all who want to know whether it is connected.

    gRPC keeps a kilobyte for ever of every server-streaming RPC that starts on a channel which was never connected, so
    none is to be started there.
    """

    def __init__(self, settings: Settings, side: str, target: str, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self.channel = _channel(settings, target, *_CHECKED)
        self.ready = False
        self.side = side
        self._target = target
        self._log = log
        self._decided = asyncio.Event()

    def open_unchecked(self) -> grpc.aio.Channel:
        """Returns a further channel, which connects to what says that it does not serve too."""
        return _channel(self._settings, self._target)

    async def connect(self, seconds: float) -> None:
        """Returns at once on a link that stands. Waits for one that is being made; raises SERVICE_UNAVAILABLE."""
        if self.ready:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._decided.wait()
        if self.channel.get_state(try_to_connect=True) is not _READY:
            raise Failure("SERVICE_UNAVAILABLE")

    async def watch(self) -> None:
        """Follows the state of the channel, and has it connect again whenever it is idle."""
        was_ready = True
        while True:
            state = self.channel.get_state(try_to_connect=True)
            self.ready = state is _READY
            if state in _UNDECIDED:
                self._decided.clear()
            else:
                self._decided.set()
                self._report(was_ready)
                was_ready = self.ready
            await self.channel.wait_for_state_change(state)

    def _report(self, was_ready: bool) -> None:
        if was_ready and not self.ready:
            self._log.warning(f"{self.side} is away", target=self._target)
        elif self.ready and not was_ready:
            self._log.info(f"{self.side} is back", target=self._target)


class RegistryClient:
    """Speaks to the registry service, or to the two processes of a split one. A failed RPC raises Failure.

    `registry` and `execution` are the same link unless execution runs in a process of its own.
    """

    def __init__(
        self, registry: Link, execution: Link, settings: Settings, metrics: Metrics, log: FilteringBoundLogger
    ) -> None:
        self._registry = registry
        self._execution = execution
        self._accounts: AccountsAsyncStub = AccountsStub(registry.channel)
        self._catalog: RegistryAsyncStub = RegistryStub(registry.channel)
        self._calls: ExecutionAsyncStub = ExecutionStub(execution.channel)
        self._token = ((wire.SERVICE_TOKEN_KEY, settings.registry_token),) if settings.registry_token else ()
        self._call_timeout = settings.call_timeout
        self._timeout = settings.registry_timeout
        self._metrics = metrics
        self._log = log

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, settings: Settings, metrics: Metrics, log: FilteringBoundLogger
    ) -> AsyncIterator["RegistryClient"]:
        """Keeps the links open; they connect, and connect again, on their own."""
        async with AsyncExitStack() as stack:
            registry = await stack.enter_async_context(_linked(settings, "the registry", settings.registry, log))
            execution = registry
            if settings.execution != settings.registry:
                side = "the execution service"
                execution = await stack.enter_async_context(_linked(settings, side, settings.execution, log))
            yield cls(registry, execution, settings, metrics, log)

    async def authenticate(self, sender: Sender) -> None:
        """Returns if the sender's credential is an active account's."""
        await self._unary("Authenticate", self._accounts.Authenticate, AuthenticateRequest(), sender)

    async def list_catalog(self, sender: Sender, lane: str, page_token: str) -> ListCatalogResponse:
        """Returns one page of the tools that the sender may call in a lane (empty: the lane of its plan)."""
        page = ListCatalogRequest(requested_lane=lane, page_token=page_token)
        return await self._unary("ListCatalog", self._catalog.ListCatalog, page, sender)

    async def call_tool(self, sender: Sender, call: CallToolRequest) -> AsyncGenerator[CallToolEvent, None]:
        """Runs a call: yields its events, of which the result is the last. The caller closes the generator.

        A call that takes long says its id before its end, in `accepted`, even if it does not stream. The stream is read
        to its end before the result is yielded: the RPC then ends on its own instead of being cancelled, which costs
        both sides less and leaves the registry no doubt.
        """
        if not self._execution.ready:
            await self._connect(self._execution, "CallTool")
        rpc = self._calls.CallTool(call, metadata=self._metadata(sender), timeout=self._call_timeout)
        try:
            if not call.stream and (call_id := _early_call_id(await rpc.initial_metadata())):
                yield CallToolEvent(accepted=CallToolEvent.Accepted(call_id=call_id))
            async for event in rpc:
                if event.HasField("result"):
                    await _ended(rpc)
                    self._metrics.rpc("CallTool", "OK")
                    yield event
                    return
                yield event
            self._metrics.rpc("CallTool", "OK")
            raise Failure("CALL_OUTCOME_UNKNOWN")  # a stream that ended without a result
        except grpc.aio.AioRpcError as error:
            raise self._failed("CallTool", error, sender, may_have_run=True) from error
        except asyncio.CancelledError:
            self._metrics.rpc("CallTool", "CANCELLED")
            raise
        finally:
            rpc.cancel()

    async def readiness(self) -> Readiness:
        """Asks both sides how they are, and whether they take the gateway's token."""
        execution, *others = await asyncio.gather(
            self._trouble(self._execution, "Execution"),
            self._trouble(self._registry, "Accounts"),
            self._trouble(self._registry, "Registry"),
        )
        token = await asyncio.gather(
            self._token_trouble(self._execution, self._calls.GetCall, GetCallRequest()),
            self._token_trouble(self._registry, self._accounts.Authenticate, AuthenticateRequest()),
        )
        troubles = [trouble for trouble in (execution, *others, *token) if trouble]
        return Readiness(not execution and not token[0], list(dict.fromkeys(troubles)))

    async def _connect(self, link: Link, rpc: str) -> None:
        try:
            await link.connect(self._timeout)
        except Failure:
            self._metrics.rpc(rpc, "UNAVAILABLE")
            raise

    async def _unary(
        self, rpc: str, method: Callable[..., Awaitable[_Answered]], message: object, sender: Sender
    ) -> _Answered:
        if not self._registry.ready:
            await self._connect(self._registry, rpc)
        try:
            answer = await method(message, metadata=self._metadata(sender), timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise self._failed(rpc, error, sender, may_have_run=False) from error
        self._metrics.rpc(rpc, "OK")
        return answer

    def _metadata(self, sender: Sender) -> tuple[tuple[str, str], ...]:
        state = ((wire.TRACESTATE_KEY, sender.tracestate),) if sender.tracestate else ()
        return (
            (wire.AUTHORIZATION_KEY, sender.authorization),
            (wire.REQUEST_ID_KEY, sender.request_id),
            (wire.TRACEPARENT_KEY, sender.traceparent),
            *self._token,
            *state,
        )

    def _failed(self, rpc: str, error: grpc.aio.AioRpcError, sender: Sender, *, may_have_run: bool) -> Failure:
        """Names the failure of an RPC, counts it, and logs what an operator has to look at."""
        code = error.code().name
        self._metrics.rpc(rpc, code)
        failure = failure_of(error, may_have_run=may_have_run)
        if _is_token_refused(error):
            self._log.error("the registry refuses the gateway's token", setting="GATEWAY_REGISTRY_TOKEN", rpc=rpc)
        elif failure.reason in {"INTERNAL", "SERVICE_UNAVAILABLE", "CALL_OUTCOME_UNKNOWN"}:
            self._log.warning(
                "rpc failed", rpc=rpc, code=code, details=error.details(), reason=failure.reason,
                request_id=sender.request_id, trace_id=sender.trace_id,
            )  # fmt: skip
        if failure.reason == "INTERNAL":
            return Failure("INTERNAL", {"trace_id": sender.trace_id, **failure.facts})
        return failure

    async def _trouble(self, link: Link, service: str) -> str:
        name = f"naru.v1.{service}"
        request = health_pb2.HealthCheckRequest(service=name)
        with suppress(grpc.aio.AioRpcError):
            answer = await health_pb2_grpc.HealthStub(link.channel).Check(request, timeout=_READY_SECONDS)
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return ""
        # The usual channel carries nothing to a process that says that it does not serve; this one asks it why.
        async with link.open_unchecked() as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_READY_SECONDS)
            try:
                await check
            except grpc.aio.AioRpcError as error:
                return f"{name}: {error.code().name}"
            cause = dict(await check.trailing_metadata()).get(wire.CAUSE_KEY)
        return f"{name}: not serving ({cause})" if cause else f"{name}: not serving"

    async def _token_trouble(self, link: Link, method: Callable[..., Awaitable[Any]], message: object) -> str:
        """Asks for something that needs the service token, without a credential: only the token's refusal matters."""
        try:
            await method(message, metadata=self._token, timeout=_READY_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"GATEWAY_REGISTRY_TOKEN: {link.side} refuses it" if _is_token_refused(error) else ""
        return ""


def failure_of(error: grpc.aio.AioRpcError, *, may_have_run: bool) -> Failure:
    """Maps a failed RPC to a Failure. `may_have_run` is True for RPCs with side effects (CallTool).

    A status with an ErrorInfo of the registry names it. Without one the link failed: a request that provably was not
    sent is SERVICE_UNAVAILABLE; of any other the outcome is unknown, unless the RPC only reads.
    """
    info = wire.unpack_status(error.trailing_metadata())
    if info is not None:
        return _registry_failure(info.reason, info.facts, may_have_run=may_have_run)
    details = error.details() or ""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if any(text in details for text in _TOO_LARGE_RESULT):
            return Failure("RESULT_TOO_LARGE" if may_have_run else "INTERNAL", {"safe_to_retry": False})
        if any(text in details for text in _TOO_LARGE_REQUEST):
            return Failure("BODY_TOO_LARGE")
    if details.startswith(_NEVER_SENT) or error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Failure("SERVICE_UNAVAILABLE")
    if may_have_run:
        return Failure("CALL_OUTCOME_UNKNOWN")
    return Failure("SERVICE_UNAVAILABLE" if error.code() in _TRANSIENT else "INTERNAL")


def _registry_failure(reason: str, facts: dict[str, Any], *, may_have_run: bool) -> Failure:
    if reason in TABLE:
        return Failure(reason, facts)
    if reason == "PAGE_TOKEN_INVALID":
        return Failure("INVALID_PARAMS", {"detail": "params.cursor was not issued by this server"})
    if reason == "TOKEN_INVALID":  # ours, not the client's: the registry refused before it did anything
        return Failure("SERVICE_UNAVAILABLE")
    # A reason that a newer registry knows and we do not.
    return Failure("CALL_OUTCOME_UNKNOWN" if may_have_run else "INTERNAL")


def _is_token_refused(error: grpc.aio.AioRpcError) -> bool:
    info = wire.unpack_status(error.trailing_metadata())
    return info is not None and info.reason == "TOKEN_INVALID"


def _early_call_id(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    for key, value in metadata or ():
        if key == wire.CALL_ID_KEY and isinstance(value, str):
            return value
    return ""


async def _ended(rpc: AsyncIterable[CallToolEvent]) -> None:
    """Reads to the end of an RPC whose result is known; how it ends cannot change that any more."""
    try:
        async for _ in rpc:
            pass
    except grpc.aio.AioRpcError:
        return


@asynccontextmanager
async def _linked(settings: Settings, side: str, target: str, log: FilteringBoundLogger) -> AsyncIterator[Link]:
    """Opens a channel and watches it for as long as the context is open."""
    link = Link(settings, side, target, log)
    async with link.channel:
        watching = asyncio.create_task(link.watch())
        try:
            yield link
        finally:
            watching.cancel()
            await asyncio.wait({watching})


def _channel(settings: Settings, target: str, *more: tuple[str, str]) -> grpc.aio.Channel:
    # A peer that vanished without a word is noticed, also in the middle of a long call.
    options = (*_CHANNEL_OPTIONS, *more, ("grpc.keepalive_time_ms", int(settings.registry_ping * 1000)))
    if settings.registry_ca is None:
        return grpc.aio.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(settings.registry_ca, settings.registry_key, settings.registry_cert)
    return grpc.aio.secure_channel(target, credentials, options=options)
