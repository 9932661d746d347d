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
        assert "database is out of reach" not in [record["event"] for record in running.records]


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
            await until_health(channel, "SERVING")
        assert await running.stop() == 0


async def test_a_process_with_nothing_to_do_stops_soon(settings):
    async with started(settings) as running:
        await running.record("registry ready")
        began = time.monotonic()
        assert await running.stop() == 0
        assert time.monotonic() - began < 3
