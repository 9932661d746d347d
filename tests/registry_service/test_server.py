"""The real process, met as its clients and its operators meet it: sockets, signals, exit codes, log lines."""

import asyncio
import base64
import json
import os
import signal
import socket
import sqlite3
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.request import urlopen

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from naru.v1 import accounts_pb2, accounts_pb2_grpc, execution_pb2, execution_pb2_grpc, registry_pb2, registry_pb2_grpc
from registry_service.storage.url import open_database
from tests.support.certificates import make_certificates

ADMIN, SERVICE = "admin-token-of-the-tests", "service-token-of-the-tests"
AS_ADMIN = (("x-naru-admin-token", ADMIN),)
AS_GATEWAY = (("x-naru-token", SERVICE),)
SERVICES = ("naru.v1.Registry", "naru.v1.Accounts", "naru.v1.Execution")
PATIENCE = 40.0


@dataclass
class Running:
    process: asyncio.subprocess.Process
    records: list[dict[str, Any]] = field(default_factory=list)
    errors: bytes = b""

    async def record(self, event: str) -> dict[str, Any]:
        """Reads the log up to the next record of this event."""
        async with asyncio.timeout(PATIENCE):
            while line := await cast(asyncio.StreamReader, self.process.stdout).readline():
                self.records.append(json.loads(line))
                if self.records[-1]["event"] == event:
                    return self.records[-1]
        await self.exit_code()
        raise AssertionError(f"the log ended without {event!r}: {self.records} {self.errors.decode()}")

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE):
            out, self.errors = await self.process.communicate()
        self.records += [json.loads(line) for line in out.splitlines()]
        return cast(int, self.process.returncode)

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.exit_code()


@pytest.fixture
def settings(tmp_path):
    return {
        "DATABASE_URL": f"sqlite:///{tmp_path}/naru.db",
        "REGISTRY_PEPPER": "pepper-of-the-tests-of-32-bytes!",
        "REGISTRY_ADMIN_TOKEN": ADMIN,
        "REGISTRY_SERVICE_TOKEN": SERVICE,
        "REGISTRY_BIND": "127.0.0.1:0",
        "REGISTRY_METRICS_BIND": "127.0.0.1:0",
        "REGISTRY_ENDPOINT_NETWORKS": "127.0.0.0/8",
        "REGISTRY_SHUTDOWN_GRACE_SECONDS": "10",
    }


@asynccontextmanager
async def started(settings, module="registry_service", arguments=(), **changes):
    environ = {"PATH": os.environ["PATH"], **settings, **changes}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        env={name: value for name, value in environ.items() if value is not None},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def reason(error: Any) -> tuple[str, dict[str, Any]]:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info.reason, {name: json.loads(value) for name, value in info.metadata.items()}


async def health_of(channel, service=""):
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def until_health(channel, wanted):
    """Watches, as a load balancer does."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    async for answer in watch:
        if health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == wanted:
            watch.cancel()
            return
    raise AssertionError(f"health never became {wanted}")


async def create_account(channel):
    """Returns the metadata of a gateway that carries the new account's credential."""
    answer = await accounts_pb2_grpc.AccountsStub(channel).CreateAccount(
        accounts_pb2.CreateAccountRequest(display_name="시험", plan="standard"), metadata=AS_ADMIN, timeout=PATIENCE
    )
    credential = f"{answer.account.client_id}:{answer.secret}".encode()
    return (*AS_GATEWAY, ("authorization", f"Basic {base64.b64encode(credential).decode()}"))


async def test_the_process_serves_everything_and_stops_cleanly(settings):
    async with started(settings) as running:
        ready = await running.record("registry ready")
        assert ready["services"] == ["accounts", "execution", "registry"]
        metrics = next(record for record in running.records if record["event"] == "metrics")
        async with grpc.aio.insecure_channel(ready["address"]) as channel:
            for service in ("", *SERVICES):
                assert await health_of(channel, service) == "SERVING"
            as_account = await create_account(channel)
            accounts = accounts_pb2_grpc.AccountsStub(channel)
            who = await accounts.Authenticate(accounts_pb2.AuthenticateRequest(), metadata=as_account, timeout=PATIENCE)
            assert who.plan == "standard"
            catalog = await registry_pb2_grpc.RegistryStub(channel).ListCatalog(
                registry_pb2.ListCatalogRequest(), metadata=as_account, timeout=PATIENCE
            )
            assert (catalog.lane, list(catalog.entries)) == ("production", [])
            calls = execution_pb2_grpc.ExecutionStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in calls.CallTool(
                    execution_pb2.CallToolRequest(name="absent"), metadata=as_account, timeout=PATIENCE
                ):
                    pass
            assert reason(caught.value)[0] == "TOOL_NOT_FOUND"
        text = await asyncio.to_thread(lambda: urlopen(f"http://{metrics['address']}/metrics", timeout=5).read())
        assert b'naru_grpc_requests_total{code="OK",method="/naru.v1.Accounts/CreateAccount"} 1.0' in text
        assert await running.stop() == 0
        assert running.errors == b""
        assert running.records[-1]["event"] == "stopped"
        created = next(record for record in running.records if record["event"] == "rpc")
        assert created["method"] == "/naru.v1.Accounts/CreateAccount"
        everything = json.dumps(running.records)
        assert all(secret not in everything for secret in (ADMIN, SERVICE, "nrcs_", settings["REGISTRY_PEPPER"]))


def reflected(address: str, metadata: tuple[tuple[str, str], ...]) -> set[str]:
    """Asked by gRPC's blocking client: that of asyncio at times hides a refusal behind the failure of its own write."""
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    with grpc.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = list(stub.ServerReflectionInfo(iter(asked), metadata=metadata, timeout=PATIENCE))
    return {service.name for answer in answers for service in answer.list_services_response.service}


async def test_reflection_names_what_is_served_to_those_with_a_token(settings):
    async with started(settings, REGISTRY_SERVICES="accounts") as running:
        address = (await running.record("registry ready"))["address"]
        expected = {"naru.v1.Accounts", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert await asyncio.to_thread(reflected, address, AS_GATEWAY) == expected
        assert await asyncio.to_thread(reflected, address, AS_ADMIN) == expected
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(reflected, address, ())
        assert reason(caught.value)[0] == "TOKEN_INVALID"
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as missing:
                await health_of(channel, "naru.v1.Execution")
            assert missing.value.code() is grpc.StatusCode.NOT_FOUND
        assert await running.stop() == 0


async def test_open_streams_of_watchers_do_not_hold_up_the_stop(settings):
    async with started(settings) as running:
        address = (await running.record("registry ready"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            began = asyncio.get_running_loop().time()
            running.process.send_signal(signal.SIGTERM)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await running.exit_code() == 0
            assert asyncio.get_running_loop().time() - began < 5


async def test_a_database_that_is_not_migrated_is_waited_for(settings):
    async with started(settings, REGISTRY_AUTO_MIGRATE="false") as running:
        address = (await running.record("listening"))["address"]
        await running.record("database is not migrated")
        async with grpc.aio.insecure_channel(address) as channel:
            assert await health_of(channel) == "NOT_SERVING"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await create_account(channel)
            assert reason(caught.value) == ("SERVICE_UNAVAILABLE", {"cause": "database_not_migrated"})
        assert await running.stop() == 0
        assert running.errors == b""


async def test_a_database_out_of_reach_is_waited_for(settings, unused_port):
    url = f"postgresql://naru:hunter2@127.0.0.1:{unused_port}/naru"
    async with started(settings, DATABASE_URL=url) as running:
        address = (await running.record("listening"))["address"]
        record = await running.record("database cannot be used")
        assert record["host"] == f"127.0.0.1:{unused_port}"
        async with grpc.aio.insecure_channel(address) as channel:
            assert await health_of(channel, SERVICES[0]) == "NOT_SERVING"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await create_account(channel)
            assert reason(caught.value) == ("SERVICE_UNAVAILABLE", {"cause": "database_unreachable"})
        assert await running.stop() == 0
        assert running.errors == b""
        assert "hunter2" not in json.dumps(running.records)


@pytest.fixture
def unused_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # Bound and not listening: nobody else gets it, and nobody is let in.
        yield taken.getsockname()[1]


async def test_a_second_process_on_one_sqlite_file_refuses(settings):
    async with started(settings) as first:
        await first.record("registry ready")
        async with started(settings) as second:
            assert await second.exit_code() == 1
            (line,) = second.errors.decode().splitlines()
            assert line.startswith("registry: DATABASE_URL: ")
            assert "naru.db" in line
        assert await first.stop() == 0


@pytest.mark.parametrize("name", ["REGISTRY_BIND", "REGISTRY_METRICS_BIND"])
async def test_a_port_in_use_stops_the_start(settings, name):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with started(settings, **{name: f"127.0.0.1:{taken.getsockname()[1]}"}) as running:
            assert await running.exit_code() == 1
            assert running.errors.decode().splitlines()[-1].startswith(f"registry: {name}: cannot listen on ")
            assert b"Traceback" not in running.errors


async def test_mutual_tls(settings, tmp_path):
    made = make_certificates(tmp_path)
    tls = {
        "REGISTRY_TLS_CERT_FILE": str(made.server.certificate),
        "REGISTRY_TLS_KEY_FILE": str(made.server.key),
        "REGISTRY_TLS_CLIENT_CA_FILE": str(made.authority),
        "REGISTRY_SERVICE_TOKEN": None,
    }
    authority = made.authority.read_bytes()
    known = grpc.ssl_channel_credentials(authority, made.client.key.read_bytes(), made.client.certificate.read_bytes())
    async with started(settings, **tls) as running:
        address = (await running.record("registry ready"))["address"]
        async with grpc.aio.secure_channel(address, known) as channel:
            assert await health_of(channel) == "SERVING"
            await create_account(channel)
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_of(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await running.stop() == 0


class Endpoint:
    """A tool that takes its time: each request is answered when the test says so."""

    def __init__(self):
        self.url = ""
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.closed = asyncio.Event()

    async def handle(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        self.asked.set()
        waiting = asyncio.ensure_future(self.answer.wait())
        gone = asyncio.ensure_future(self._gone(reader))
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.closed.set()
        gone.cancel()
        waiting.cancel()
        body = b'{"done":true}'
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        writer.close()

    async def _gone(self, reader):
        while await reader.read(4096):
            pass


@pytest.fixture
async def endpoint():
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.handle, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    yield endpoint
    endpoint.answer.set()
    server.close()


@asynccontextmanager
async def calling(settings, endpoint, **changes):
    """A process that runs one call, which waits for its endpoint. Gives the process, the channel and the call."""
    tool = {
        "name": "slow",
        "version": "1",
        "active": True,
        "description": "waits",
        "inputSchema": {"type": "object"},
        "endpoint": {"production": {"url": endpoint.url, "method": "POST"}},
    }
    async with started(settings, **changes) as running:
        address = (await running.record("registry ready"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            manifest = registry_pb2.ApplyManifestRequest(manifest=json.dumps({"tools": [tool]}).encode())
            applied = await registry_pb2_grpc.RegistryStub(channel).ApplyManifest(
                manifest, metadata=AS_ADMIN, timeout=PATIENCE
            )
            assert not applied.faults
            as_account = await create_account(channel)
            stub = execution_pb2_grpc.ExecutionStub(channel)

            async def call():
                request = execution_pb2.CallToolRequest(name="slow", stream=True)
                return [event async for event in stub.CallTool(request, metadata=as_account, timeout=PATIENCE)]

            task = asyncio.create_task(call())
            async with asyncio.timeout(PATIENCE):
                await endpoint.asked.wait()
            yield running, call, task


async def test_a_running_call_ends_within_the_grace_and_no_other_begins(settings, endpoint):
    async with calling(settings, endpoint) as (running, call, task):
        running.process.send_signal(signal.SIGTERM)
        await running.record("stopping")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()
        assert reason(caught.value) == ("SERVICE_UNAVAILABLE", {"cause": "shutting_down"})
        assert not task.done()
        endpoint.answer.set()
        events = await task
        assert events[-1].result.structured_content == b'{"done":true}'
        assert await running.exit_code() == 0
        assert running.errors == b""


async def test_a_call_is_served_while_its_client_has_not_heard_of_the_stop(settings, endpoint):
    """As in a rolling restart: the balancer sends one more call after the signal, and it must not be lost."""
    async with calling(settings, endpoint) as (running, call, task):
        address = next(record for record in running.records if record["event"] == "registry ready")["address"]
        endpoint.answer.set()
        await task
        async with grpc.aio.insecure_channel(address) as channel:
            await until_health(channel, "SERVING")
            running.process.send_signal(signal.SIGTERM)
            await until_health(channel, "NOT_SERVING")
            assert (await call())[-1].result.structured_content == b'{"done":true}'
        assert await running.exit_code() == 0
        assert running.errors == b""


async def test_a_call_that_outlasts_the_grace_is_cut_and_its_client_told(settings, endpoint):
    async with calling(settings, endpoint, REGISTRY_SHUTDOWN_GRACE_SECONDS="0.5") as (running, _, task):
        assert await running.stop() == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await task
        assert reason(caught.value)[0] == "CALL_OUTCOME_UNKNOWN"
        await asyncio.wait_for(endpoint.closed.wait(), PATIENCE)
        assert running.errors == b""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_at_once(settings, endpoint, second):
    async with calling(settings, endpoint, REGISTRY_SHUTDOWN_GRACE_SECONDS="600") as (running, _, task):
        running.process.send_signal(signal.SIGTERM)
        await running.record("stopping")
        running.process.send_signal(second)
        assert await running.exit_code() == 0
        assert running.errors == b""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await task
        assert reason(caught.value)[0] == "CALL_OUTCOME_UNKNOWN"


async def test_sigint_stops_as_sigterm_does(settings):
    async with started(settings) as running:
        await running.record("registry ready")
        running.process.send_signal(signal.SIGINT)
        assert await running.exit_code() == 0
        assert running.errors == b""


async def test_a_waiting_process_serves_by_itself_once_the_database_is_migrated(settings, postgresql_url):
    """PostgreSQL, where somebody else can migrate."""
    async with started(settings, DATABASE_URL=postgresql_url, REGISTRY_AUTO_MIGRATE="false") as running:
        address = (await running.record("listening"))["address"]
        await running.record("database is not migrated")
        async with grpc.aio.insecure_channel(address) as channel:
            assert await health_of(channel) == "NOT_SERVING"
            database = open_database(postgresql_url)
            await database.migrate()
            await database.close()
            await running.record("registry ready")
            await until_health(channel, "SERVING")
            await create_account(channel)
        assert await running.stop() == 0


async def test_health_follows_the_database(settings, postgresql, postgresql_url):
    async with started(settings, DATABASE_URL=postgresql_url) as running:
        address = (await running.record("registry ready"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            await until_health(channel, "SERVING")
            await asyncio.to_thread(postgresql.stop)
            try:
                await until_health(channel, "NOT_SERVING")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await create_account(channel)
                assert reason(caught.value) == ("SERVICE_UNAVAILABLE", {"cause": "database_unreachable"})
            finally:
                await asyncio.to_thread(postgresql.start)
            await until_health(channel, "SERVING")
            await create_account(channel)
        assert await running.stop() == 0
        assert running.errors == b""


async def test_health_follows_the_ledger(settings, endpoint, tmp_path):
    """The database answers, but another process holds the lock that writers need. Nobody calls meanwhile."""
    async with calling(settings, endpoint) as (running, _, task):
        address = next(record for record in running.records if record["event"] == "registry ready")["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            with closing(sqlite3.connect(tmp_path / "naru.db", isolation_level=None)) as intruder:
                intruder.execute("BEGIN IMMEDIATE")
                endpoint.answer.set()
                await until_health(channel, "NOT_SERVING")
                assert [await health_of(channel, name) for name in SERVICES] == ["SERVING", "SERVING", "NOT_SERVING"]
                assert not task.done()
                check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
                assert dict(await check.trailing_metadata())["x-naru-cause"] == "database_locked"
            await until_health(channel, "SERVING")
            assert await health_of(channel, SERVICES[2]) == "SERVING"
            assert (await task)[-1].result.structured_content == b'{"done":true}'
        assert await running.stop() == 0
        told = [record["event"] for record in running.records if "the ledger can" in record["event"]]
        assert told == ["the ledger cannot be written", "the ledger can be written again"]


async def test_a_database_that_is_away_does_not_hold_up_the_stop(settings, postgresql, postgresql_url):
    async with started(settings, DATABASE_URL=postgresql_url) as running:
        await running.record("registry ready")
        await asyncio.to_thread(postgresql.stop)
        try:
            assert await running.stop() == 0
            assert running.errors == b""
        finally:
            await asyncio.to_thread(postgresql.start)


async def test_an_sqlite_file_in_a_directory_that_does_not_exist(settings, tmp_path):
    async with started(settings, DATABASE_URL=f"sqlite:///{tmp_path}/absent/naru.db") as running:
        assert await running.exit_code() == 1
        (line,) = running.errors.decode().splitlines()
        assert line.startswith("registry: DATABASE_URL: ")


async def test_tables_of_a_newer_version_stop_the_start(settings, tmp_path):
    async with started(settings) as running:
        await running.record("registry ready")
        assert await running.stop() == 0
    with closing(sqlite3.connect(tmp_path / "naru.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    async with started(settings) as running:
        assert await running.exit_code() == 1
        (line,) = running.errors.decode().splitlines()
        assert line.startswith("registry: DATABASE_URL: the database is at revision 9999")


async def test_another_pepper_on_the_same_database_does_not_start(settings):
    """Every credential would be refused, as if it were wrong."""
    async with started(settings) as running:
        await running.record("registry ready")
        assert await running.stop() == 0
    async with started(settings, REGISTRY_PEPPER="another-pepper-that-is-long-enough-too") as running:
        assert await running.exit_code() == 1
        (line,) = running.errors.decode().splitlines()
        assert line.startswith("registry: REGISTRY_PEPPER: the secrets in this database were made with another one")
    async with started(settings) as running:
        await running.record("registry ready")


async def test_a_secret_in_the_place_of_the_client_id_is_not_logged(settings):
    """`Basic base64(SECRET:ID)`: swapped, it is wrong, and must not stand in a log."""
    secret = "nrcs_" + "s" * 49
    async with started(settings) as running:
        address = (await running.record("registry ready"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            call = execution_pb2_grpc.ExecutionStub(channel).CallTool(
                execution_pb2.CallToolRequest(name="tool"),
                metadata=(
                    ("x-naru-token", SERVICE),
                    ("authorization", "Basic " + base64.b64encode(f"{secret}:nrci_{'a' * 21}".encode()).decode()),
                ),
            )
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
        assert (await running.record("call refused"))["client_id"] == ""
        await running.stop()
    assert secret not in str(running.records)
