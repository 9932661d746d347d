"""The process: from settings to a server, what keeps its health true, and its clean stop."""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from naru.environment import Bind
from naru.event_loop import LoopWatch
from naru.metrics_server import MetricsServer
from naru.v1 import accounts_pb2, accounts_pb2_grpc, execution_pb2_grpc, registry_pb2, registry_pb2_grpc
from registry_service.accounts import AccountsServicer
from registry_service.calls.admission import Admissions
from registry_service.calls.runner import Calls
from registry_service.catalog import Catalog
from registry_service.errors import NaruError
from registry_service.execution import ExecutionServicer
from registry_service.health import EXECUTION, Health
from registry_service.identity.credentials import pepper_mark
from registry_service.identity.plans import Plan
from registry_service.ledger.ledger import Ledger
from registry_service.ledger.records import Records
from registry_service.registry import RegistryServicer
from registry_service.rpc.border import Gate, GuardedServer
from registry_service.rpc.pagination import PageTokens
from registry_service.rpc.tokens import Tokens
from registry_service.settings import Settings
from registry_service.storage.database import UNAVAILABLE, Database, DatabaseInUseError, DatabaseUnreachableError
from registry_service.storage.migrations import UnknownRevisionError
from registry_service.storage.pepper import holds_mark
from registry_service.storage.trouble import cause_of
from registry_service.storage.url import open_database
from registry_service.telemetry.metrics import LOOP_LAG_SECONDS, METRICS
from registry_service.tools.checks import Checks
from registry_service.tools.definition_lint import Site
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.reach import Reach

MAX_REQUEST_BYTES = 16 * 1024 * 1024
MAX_ANSWER_BYTES = 48 * 1024 * 1024
# Python's own 700 new objects would have it look through a large body of small arrays a thousand times.
GC_THRESHOLD = (20_000, 20, 20)
RETRY_SECONDS = 2.0
# For so long, at a stop, calls are served as ever while clients hear that health says NOT_SERVING; and then the port
# stays open for as long again. What comes meanwhile is refused in words, whereas gRPC cancels without one what comes
# between the end of a server and its clients' knowing of it.
LAME_DUCK_SECONDS = 0.5
# Lets the answers of calls that were cut at the end of the grace leave the process.
FAREWELL_SECONDS = 1.0
CLOSE_SECONDS = 5.0
_FOREVER_MS = 2**31 - 1

_NO_ANSWER: tuple[type[BaseException], ...] = (TimeoutError, *UNAVAILABLE)
_NOT_CLOSED: tuple[type[BaseException], ...] = (NaruError, *_NO_ANSWER)

_log = structlog.get_logger()


class StartError(Exception):
    """The process cannot serve, for a reason that fits one line."""


class _NotMigratedError(Exception):
    pass


class StopSignals:
    """SIGTERM and SIGINT: the first asks for a graceful stop, the second for one at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard)

    def _heard(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def serve(settings: Settings, plans: Mapping[str, Plan]) -> None:
    """Serves until a signal, then stops in order. Raises StartError."""
    signals = StopSignals()
    with _metrics(settings.metrics_bind, settings.metrics_allowed_hosts):
        database = await _open(settings.database_url)
        try:
            process = Process(settings, plans, database)
            await process.listen()
            running = asyncio.create_task(process.run())
            await _either(running, signals.first.wait())
            failure = await _ended(running)
            await process.stop(signals.second)
        finally:
            await _closed("database", database.close())
    if isinstance(failure, StartError):
        raise failure
    if failure is not None:
        raise StartError("the service could not go on: the log says why")


class Process:
    """Holds the parts of the service and runs them. Those of execution exist only where it is served."""

    def __init__(self, settings: Settings, plans: Mapping[str, Plan], database: Database) -> None:
        self._settings = settings
        self._database = database
        self._catalog = Catalog(database, plans, settings.pepper)
        self._gate = Gate("starting")
        self._health = Health(database)
        self._server = grpc.aio.server(options=_options(settings))
        self._address = ""
        self._ledger: Ledger | None = None
        self._endpoints: EndpointClient | None = None
        self._checks: Checks | None = None
        self._calls: Calls | None = None
        self._names = self._add_services(plans)

    def _add_services(self, plans: Mapping[str, Plan]) -> list[str]:
        """Returns the full names of the services that the settings ask for."""
        settings, wanted = self._settings, self._settings.services
        guarded = GuardedServer(self._server, self._gate, Tokens(settings.admin_token, settings.service_token))
        server, names = cast("grpc.aio.Server", guarded), []
        pages = PageTokens(settings.pepper)
        if "registry" in wanted:
            reach = Reach(settings.endpoint_networks, settings.secrets_dir)
            registry = RegistryServicer(self._database, self._catalog, pages, reach, _site(settings, reach))
            registry_pb2_grpc.add_RegistryServicer_to_server(registry, server)
            names.append(registry_pb2.DESCRIPTOR.services_by_name["Registry"].full_name)
        if "accounts" in wanted:
            accounts = AccountsServicer(
                database=self._database, catalog=self._catalog, plans=plans, pages=pages, pepper=settings.pepper
            )
            accounts_pb2_grpc.add_AccountsServicer_to_server(accounts, server)
            names.append(accounts_pb2.DESCRIPTOR.services_by_name["Accounts"].full_name)
        if "execution" in wanted:
            execution_pb2_grpc.add_ExecutionServicer_to_server(self._make_execution(pages), server)
            names.append(EXECUTION)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        reflected = [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(reflected), server)
        return names

    def _make_execution(self, pages: PageTokens) -> ExecutionServicer:
        settings = self._settings
        self._ledger = ledger = Ledger(self._database)
        self._checks = checks = Checks()
        self._endpoints = endpoints = EndpointClient(
            settings.endpoint_networks, settings.secrets_dir, settings.max_result_bytes, checks, settings.endpoint_ca
        )
        self._calls = Calls(
            admissions=Admissions(catalog=self._catalog, ledger=ledger, upstream=endpoints, checks=checks),
            ledger=ledger,
            upstream=endpoints,
            default_timeout=settings.default_timeout,
            max_timeout=settings.max_timeout,
        )
        return ExecutionServicer(calls=self._calls, catalog=self._catalog, records=Records(self._database), pages=pages)

    async def listen(self) -> None:
        """Takes the port. Until the database can be used, health says NOT_SERVING and RPCs say why."""
        await self._health.start(self._names)
        bind = self._settings.bind
        try:
            bound = self._add_port(str(bind))
        except RuntimeError:
            raise StartError(f"REGISTRY_BIND: cannot listen on {bind}") from None
        await self._server.start()
        self._address = str(Bind(bind.host, bound))
        _log.info("listening", address=self._address, tls=self._settings.tls is not None)

    def _add_port(self, address: str) -> int:
        tls = self._settings.tls
        if tls is None:
            return self._server.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials(
            [(tls.key, tls.certificate)], tls.client_ca, require_client_auth=tls.client_ca is not None
        )
        return self._server.add_secure_port(address, credentials)

    async def run(self) -> None:
        """Brings the service up, then keeps its health and its catalog true until cancelled."""
        await self._bring_up()
        self._gate.open()
        await self._health.set(serving=True)
        gc.collect()
        gc.freeze()  # what is there now stays, and need not be looked at again
        gc.set_threshold(*GC_THRESHOLD)
        _log.info("registry ready", address=self._address, services=sorted(self._settings.services))
        with LoopWatch(LOOP_LAG_SECONDS.observe):
            async with asyncio.TaskGroup() as group:
                group.create_task(_supervised("catalog", self._catalog.watch))
                group.create_task(_supervised("health", lambda: self._health.keep(self._ledger_trouble)))

    async def _bring_up(self) -> None:
        """Waits, as long as it takes, for a database that answers and is migrated."""
        if self._endpoints is not None:
            await self._endpoints.open()
        while True:
            try:
                return await self._prepare()
            except _NotMigratedError:
                self._refuse("database_not_migrated")
                _log.warning("database is not migrated", retry_seconds=RETRY_SECONDS)
            except UNAVAILABLE as error:
                self._refuse(cause_of(error))
                url = self._settings.database_url
                _log.warning(
                    "database cannot be used",
                    cause=self._gate.cause,
                    host=_host(url),
                    error=_shown(error, url),
                    retry_seconds=RETRY_SECONDS,
                )
            await asyncio.sleep(RETRY_SECONDS)

    def _refuse(self, cause: str) -> None:
        """Says to whoever asks why nothing is served."""
        self._gate.shut(cause)
        self._health.cause = cause

    async def _prepare(self) -> None:
        if self._settings.auto_migrate:
            await self._migrate()
        elif not await self._database.is_migrated():
            raise _NotMigratedError
        if not await holds_mark(self._database, pepper_mark(self._settings.pepper)):
            raise StartError(
                "REGISTRY_PEPPER: the secrets in this database were made with another one, and none would be accepted"
            )
        await self._catalog.load()
        if self._ledger is not None:
            await self._ledger.start()

    async def _migrate(self) -> None:
        try:
            await self._database.migrate()
        except UnknownRevisionError as error:
            raise StartError(f"DATABASE_URL: {error}") from None

    def _ledger_trouble(self) -> str:
        return "" if self._ledger is None else self._ledger.trouble

    async def stop(self, at_once: asyncio.Event) -> None:
        """Lets clients leave and running calls end within the grace, or until `at_once`; records outcomes; closes."""
        grace = self._settings.shutdown_grace
        self._health.cause = "shutting_down"
        await self._health.servicer.enter_graceful_shutdown()
        if self._gate.cause is None:
            leaving = min(grace / 2, LAME_DUCK_SECONDS)
            grace -= leaving
            # A balancer that has not heard of it yet still sends calls here, and none is to be lost.
            await _within(leaving, at_once)
        self._refuse("shutting_down")
        _log.info("stopping", grace_seconds=grace)
        finishing = asyncio.create_task(self._finish(grace))
        await _either(finishing, at_once.wait())
        if not finishing.done():
            _log.warning("stopping at once")
            await _ended(finishing)
            await self._finish(0)
        if self._ledger is not None:
            await _closed("ledger", self._ledger.close())
        if self._endpoints is not None:
            await _closed("endpoints", self._endpoints.close())
        if self._checks is not None:
            await _closed("checks", self._checks.close())
        _log.info("stopped")

    async def _finish(self, grace: float) -> None:
        if self._calls is None:
            await self._stop_server(grace)
        else:
            await asyncio.gather(self._stop_server(grace), self._calls.drain(grace))

    async def _stop_server(self, grace: float) -> None:
        lame_duck = min(grace, LAME_DUCK_SECONDS)
        await asyncio.sleep(lame_duck)
        self._gate.end_streams()
        await self._server.stop(grace - lame_duck + FAREWELL_SECONDS)


def _site(settings: Settings, reach: Reach) -> Site:
    """Only a process that runs calls knows their secrets."""
    return Site(settings.max_timeout, reach.has_secret if "execution" in settings.services else None)


def _options(settings: Settings) -> list[tuple[str, Any]]:
    return [
        # Two processes on one port would share its connections at random.
        ("grpc.so_reuseport", 0),
        ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        # Clients look up new replicas only when a connection ends. Its calls end when they end.
        ("grpc.max_connection_age_ms", int(settings.max_connection_age * 1000)),
        ("grpc.max_connection_age_grace_ms", _FOREVER_MS),
        # Clients may ping, as gateways do to notice a dead link, idle connections as well. gRPC by itself allows one
        # ping in five minutes, and cuts the calls of a client that sends more.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


@contextmanager
def _metrics(bind: Bind | None, allowed_hosts: frozenset[str]) -> Iterator[None]:
    if bind is None:
        yield
        return
    try:
        server = MetricsServer(bind, METRICS, allowed_hosts)
    except OSError as error:
        raise StartError(f"REGISTRY_METRICS_BIND: cannot listen on {bind}: {error.strerror}") from None
    _log.info("metrics", address=str(server.bind))
    try:
        yield
    finally:
        server.close()


async def _open(url: str) -> Database:
    try:
        return open_database(url)
    except (DatabaseInUseError, DatabaseUnreachableError) as error:
        raise StartError(f"DATABASE_URL: {error}") from None


async def _either(task: "asyncio.Task[None]", event: Awaitable[Any]) -> None:
    """Waits for the first of the two, and leaves the task alone."""
    waiting = asyncio.ensure_future(event)
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Waits for the event, but not longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _ended(task: "asyncio.Task[None]") -> BaseException | None:
    """Cancels the task if it runs, waits for its end, and returns its error if it failed."""
    task.cancel()
    await asyncio.wait({task})
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, StartError):
        _log.error("failed", exc_info=error)
    return error


async def _supervised(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Runs the work until it returns; begins it anew when it fails."""
    while True:
        try:
            return await work()
        except Exception:  # noqa: BLE001 -- the supervisor of background tasks: logged, and tried again
            _log.error("background task failed", task=name, exc_info=True)
        await asyncio.sleep(RETRY_SECONDS)


async def _closed(name: str, closing: Awaitable[None]) -> None:
    """Waits for something to close, but not for ever: what follows must be closed as well."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await closing
    except _NOT_CLOSED as error:
        _log.error("could not be closed", part=name, error=type(error).__name__)


def _host(url: str) -> str:
    """Returns the address of the database, without user and password."""
    parts = urlsplit(url)
    named = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", [""])[0]
    return named or parts.path


def _shown(error: BaseException, url: str) -> str:
    """The error for the log, without the password even where a driver repeats it."""
    text = f"{type(error).__name__}: {error}"
    parts = urlsplit(url)
    passwords = [parts.password or "", unquote(parts.password or ""), *parse_qs(parts.query).get("password", [])]
    for password in filter(None, passwords):
        text = text.replace(password, "***")
    return text[:300]
