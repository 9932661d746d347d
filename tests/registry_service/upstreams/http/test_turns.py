"""An endpoint that sends without end costs the event loop little at a time, whatever it sends."""

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError
from registry_service.tools.checks import Checks
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.http.turns import ALLOWANCE_SECONDS, REST, Effort, Turns
from registry_service.upstreams.upstream import Attempt, Context
from tests.support.endpoint_tools import LOOPBACK, make_tool
from tests.support.hostile_endpoint import KINDS, HostileEndpoint

CALL_SECONDS = 0.7
# Of the event loop, in one go; measured as time of the processor, since the machine has other work too.
STRETCH_SECONDS = 0.02


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileEndpoint]:
    with HostileEndpoint() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> Iterator[None]:
    """The garbage collector leaves out what was there before, as it does in the service."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
async def client():
    opened = EndpointClient(LOOPBACK, None, 1 << 23, Checks())
    await opened.open()
    yield opened
    await opened.close()


class Others:
    """Everybody else on the event loop: how long they had to wait at most, and what is left for them."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.turns = 0

    async def work(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            self.turns += 1
            last = now


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_without_end_never_holds_up_others(client, hostile, kind):
    request = client.prepare(make_tool(hostile.url(kind)), "production", b"{}")
    others = Others()
    task = asyncio.create_task(others.work())
    try:
        async with asyncio.timeout(CALL_SECONDS):
            answer = await client.call(request, Context("0" * 32, 5.0), Attempt(), lambda *_: None)
            assert answer.is_error
    except (TimeoutError, ToolResponseInvalidError, ResultTooLargeError):
        pass
    finally:
        task.cancel()
    assert others.longest < STRETCH_SECONDS


async def test_who_costs_much_goes_on_in_turns_one_at_a_time():
    turns = Turns()
    order = []

    async def costly(name):
        for _ in range(3):
            await turns.wait()
            order.append(name)
            turns.charge(0.001)

    began = asyncio.get_running_loop().time()
    await asyncio.gather(costly("a"), costly("b"))
    assert order == ["a", "b"] * 3
    assert asyncio.get_running_loop().time() - began >= 5 * 0.001 * REST


async def test_one_who_stopped_waiting_takes_no_turn_from_others():
    turns = Turns()
    gone = asyncio.create_task(turns.wait())
    await asyncio.sleep(0)
    stays = asyncio.create_task(turns.wait())
    gone.cancel()
    await asyncio.wait_for(stays, 5)


async def test_great_effort_is_forgiven_slowly():
    effort, turns = Effort(), Turns()
    effort.add(ALLOWANCE_SECONDS, turns)
    assert not effort.is_great
    effort.add(ALLOWANCE_SECONDS, turns)
    assert effort.is_great
