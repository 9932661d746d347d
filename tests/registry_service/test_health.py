"""Health tells a busy event loop from a lost database, as balancers and gateways see it."""

import asyncio
import signal
import time
from contextlib import asynccontextmanager
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from naru.v1 import wire
from registry_service.health import PING_SECONDS
from tests.registry_service.test_server import ADMIN, PATIENCE, SERVICE, started, until_health

# How long a frozen database may go unnoticed: a pause, a ping, and what a busy machine adds.
NOTICED_SECONDS = 2 * PING_SECONDS + 6


@pytest.fixture
def settings(database_url):
    return {
        "DATABASE_URL": database_url,
        "REGISTRY_PEPPER": "pepper-of-the-tests-of-32-bytes!",
        "REGISTRY_ADMIN_TOKEN": ADMIN,
        "REGISTRY_SERVICE_TOKEN": SERVICE,
        "REGISTRY_BIND": "127.0.0.1:0",
        "REGISTRY_METRICS_BIND": "127.0.0.1:0",
        "BUSY_SECONDS": "0.6",
        "BUSY_TIMES": "12",
    }


@asynccontextmanager
async def watched(channel):
    """Yields the list of what health says, which goes on growing."""
    said = []

    async def watch():
        answers = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        async for answer in answers:
            note(answer.status)

    def note(status):
        said.append(health_pb2.HealthCheckResponse.ServingStatus.Name(status))

    task = asyncio.create_task(watch())
    try:
        yield said
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_busy_loop_is_not_a_lost_database(settings):
    """It is held up for longer than a ping may take, and gets a turn now and then, as under hostile inputs."""
    async with started(settings, module="tests.support.busy", arguments=["registry_service"]) as running:
        ready = await running.record("registry ready")
        metrics = next(record for record in running.records if record["event"] == "metrics")
        async with grpc.aio.insecure_channel(ready["address"]) as channel, watched(channel) as said:
            await until_health(channel, "SERVING")
            running.process.send_signal(signal.SIGUSR1)
            held_up = await running.record("event loop held up")
            await running.record("flood over")
            await until_health(channel, "SERVING")
            assert said == ["SERVING"]
        assert held_up["level"] == "warning"
        assert held_up["seconds"] > 0.3
        assert ".hold_up_the_loop:" in held_up["stack"][0]
        lateness = await asyncio.to_thread(lag_above_250_ms, metrics["address"])
        assert lateness >= 1
        assert await running.stop() == 0
        assert "database cannot be used" not in [record["event"] for record in running.records]


def lag_above_250_ms(address):
    with urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    samples = families["naru_registry_event_loop_lag_seconds"].samples
    buckets = {sample.labels["le"]: sample.value for sample in samples if sample.name.endswith("_bucket")}
    return buckets["+Inf"] - buckets["0.25"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_frozen_database_is_noticed_in_time(settings, postgresql):
    async with started(settings) as running:
        address = (await running.record("registry ready"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            await until_health(channel, "SERVING")
            with postgresql.frozen():
                began = time.monotonic()
                await until_health(channel, "NOT_SERVING")
                assert time.monotonic() - began < NOTICED_SECONDS
                assert await cause_of(channel) == "database_unreachable"
            await until_health(channel, "SERVING")
        assert await running.stop() == 0


async def cause_of(channel):
    """Returns what a health check says in its trailers."""
    check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert (await check).status == health_pb2.HealthCheckResponse.NOT_SERVING
    return dict(await check.trailing_metadata())[wire.CAUSE_KEY]


async def test_tables_that_are_absent_are_named_by_health(settings):
    async with started(settings, REGISTRY_AUTO_MIGRATE="false") as running:
        address = (await running.record("listening"))["address"]
        await running.record("database is not migrated")
        async with grpc.aio.insecure_channel(address) as channel:
            assert await cause_of(channel) == "database_not_migrated"
        assert await running.stop() == 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_removed_file_is_named_by_health_and_in_the_log(settings, tmp_path):
    async with started(settings) as running:
        address = (await running.record("registry ready"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            await until_health(channel, "SERVING")
            (tmp_path / "naru.db").rename(tmp_path / "elsewhere.db")
            await until_health(channel, "NOT_SERVING")
            assert await cause_of(channel) == "database_replaced"
            record = await running.record("database cannot be used")
            assert (record["cause"], "naru.db was removed" in record["error"]) == ("database_replaced", True)
            (tmp_path / "elsewhere.db").rename(tmp_path / "naru.db")
            await until_health(channel, "SERVING")
        assert await running.stop() == 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_full_disk_is_named_at_the_start(settings, tmp_path):
    """There is room for an empty database, and none for its tables."""
    async with started(settings, module="tests.support.full_disk", arguments=["registry_service"]) as running:
        record = await running.record("database cannot be used")
        assert record["cause"] in ("disk_full", "disk_error")
        address = next(record for record in running.records if record["event"] == "listening")["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            assert await cause_of(channel) == record["cause"]
        assert await running.stop() == 0


async def test_a_process_with_nothing_to_do_stops_soon(settings):
    async with started(settings) as running:
        await running.record("registry ready")
        began = time.monotonic()
        assert await running.stop() == 0
        assert time.monotonic() - began < 3
