"""Checks that take long run in processes of their own: nobody waits for those of others."""

import asyncio
import os
import signal
import time

import psutil
import pytest

from registry_service.errors import ServiceUnavailableError
from registry_service.tools import checks as checks_module
from registry_service.tools.checks import TOO_SLOW, Checks
from registry_service.tools.schema_check import SchemaCheck
from tests.support.samples import raw
from tests.support.waiting import eventually

UNIQUE = SchemaCheck(raw({"uniqueItems": True}))
FOR_MINUTES = raw([10**19 + number for number in range(200_000)])
LARGE = raw(["x" * 100_000])


@pytest.fixture
async def checks():
    running = Checks()
    yield running
    await running.close()


def children():
    module = "registry_service.tools.check_process"  # other services of this worker's tests are none of ours
    return [child for child in psutil.Process().children() if module in child.cmdline()]


async def test_a_light_check_needs_no_process(checks):
    check = SchemaCheck(raw({"type": "object", "required": ["a"]}))
    assert await checks.violations(check, b'{"a":1}', "me") == []
    assert [violation.message for violation in await checks.violations(check, b"{}", "me")] == [
        '"a" is a required property'
    ]
    assert children() == []


async def test_a_large_value_is_checked_as_a_small_one(checks):
    check = SchemaCheck(raw({"items": {"type": "integer"}}))
    large = raw([1] * 50_000 + ["x"])
    assert not check.is_light(large)
    assert [violation.pointer for violation in await checks.violations(check, large, "me")] == ["/50000"]
    assert await checks.violations(UNIQUE, LARGE, "me") == []
    (found,) = await checks.violations(UNIQUE, b"[" + LARGE, "me")
    assert found.message == "is not JSON that can be read"
    assert len(children()) == 1
    patterned = SchemaCheck(raw({"pattern": "a"}))
    assert [found.keyword for found in await checks.violations(patterned, b"[", "me")] == ["json"]


async def test_the_event_loop_goes_on_while_a_check_takes_long(checks):
    task = asyncio.create_task(checks.violations(UNIQUE, FOR_MINUTES, "me"))
    longest = 0.0
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        longest = max(longest, time.perf_counter() - began)
    assert await task == [TOO_SLOW]
    assert longest < 0.3
    # The process that was ended has a successor.
    assert await checks.violations(UNIQUE, LARGE, "me") == []


async def test_others_do_not_queue_behind_one_who_asks_for_much(checks):
    greedy = [asyncio.create_task(checks.violations(UNIQUE, FOR_MINUTES, "greedy")) for _ in range(5)]
    await eventually(lambda: bool(children()))
    began = time.monotonic()
    assert await checks.violations(UNIQUE, LARGE, "other") == []
    assert time.monotonic() - began < 1.5
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)


async def test_a_check_that_is_cancelled_ends_its_process(checks):
    task = asyncio.create_task(checks.violations(UNIQUE, FOR_MINUTES, "me"))
    await eventually(lambda: bool(children()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not children())


async def test_a_process_that_dies_costs_no_answer(checks):
    assert await checks.violations(UNIQUE, LARGE, "me") == []
    (child,) = children()
    os.kill(child.pid, signal.SIGKILL)
    assert await checks.violations(UNIQUE, LARGE, "me") == []


async def test_a_check_that_nobody_gets_to_says_so(checks, monkeypatch):
    monkeypatch.setattr(checks_module, "WAIT_SECONDS", 0.05)
    with pytest.raises(ServiceUnavailableError) as caught:
        await checks.violations(UNIQUE, FOR_MINUTES, "me")
    assert caught.value.facts["cause"] == "checks_busy"
    await eventually(lambda: not children())


async def test_one_who_asks_for_more_than_can_wait_is_refused(checks, monkeypatch):
    monkeypatch.setattr(checks_module, "WAITING", 2)
    waiting = [asyncio.create_task(checks.violations(UNIQUE, FOR_MINUTES, "greedy")) for _ in range(2)]
    await eventually(lambda: bool(children()))
    with pytest.raises(ServiceUnavailableError):
        await checks.violations(UNIQUE, LARGE, "greedy")
    assert await checks.violations(UNIQUE, LARGE, "other") == []
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_process_knows_no_secret_of_the_service(checks, monkeypatch):
    monkeypatch.setenv("REGISTRY_PEPPER", "secret")
    assert await checks.violations(UNIQUE, LARGE, "me") == []
    (child,) = children()
    assert not any(name.startswith("REGISTRY_") for name in child.environ())


async def test_processes_end_with_their_owner():
    checks = Checks()
    assert await checks.violations(UNIQUE, LARGE, "me") == []
    await checks.close()
    assert children() == []
