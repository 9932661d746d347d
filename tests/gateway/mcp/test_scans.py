"""gateway/mcp/scans.py: large bodies cost their sender, and nobody else."""

import asyncio
import time
from collections.abc import AsyncIterator

import psutil
import pytest

from gateway.mcp.jsonrpc import Message, ProtocolError, decode
from gateway.mcp.scans import PROCESSES, Scans
from gateway.mcp.strict_json import LARGE, MAX_ELEMENTS

SIZE = 4 << 20
# Of processor time, which a busy machine does not stretch as it does the time that passes.
LOOP_SECONDS = 0.02


def call(value: bytes) -> bytes:
    start = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","arguments":{"a":'
    return start + value + b"}}}"


def array(element: bytes, number: int | None = None) -> bytes:
    return b"[" + b",".join([element] * (number or (SIZE - 200) // (len(element) + 1))) + b"]"


WORST = {
    "numbers": array(b"0", 990_000),
    "strings": array(b'"abc"', 650_000),
    "nulls": array(b"null", 800_000),
    "objects": array(b'{"a":1}', 190_000),
    "members": b"{" + b",".join(b'"k%06d":"%04d"' % (n, n % 10_000) for n in range(190_000)) + b"}",
    "escapes": b'"' + b'\\"' * (SIZE // 2 - 200) + b'"',
    "pairs": b'"' + b"\\ud83d\\ude00" * (SIZE // 12 - 200) + b'"',
    "text": b'"' + "한".encode() * (SIZE // 3 - 200) + b'"',
}


@pytest.fixture
async def scans() -> AsyncIterator[Scans]:
    scans = Scans()
    await scans.decode(call(array(b"1", LARGE)), "")  # starts a process
    yield scans
    await scans.close()


@pytest.mark.parametrize("value", WORST.values(), ids=WORST)
async def test_the_worst_bodies_take_next_to_nothing_of_the_event_loop(scans: Scans, value: bytes):
    body = call(value)
    began = time.thread_time()
    message = await scans.decode(body, "")
    assert time.thread_time() - began < LOOP_SECONDS
    assert message == decode(body)
    assert isinstance(message, Message)
    assert value in message.params


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (array(b"0", MAX_ELEMENTS + 2), "elements"),
        (array(b"[]", 300_000), "arrays and objects"),
        (array(b'{"a":1,"a":2}', 50_000), "duplicate key"),
        (b"[" * 100_000, "nested deeper"),
        (b'"' + b"x" * LARGE, "not JSON"),
        (b'"' + b"\xff" * LARGE + b'"', "not UTF-8"),
    ],
)
async def test_what_is_wrong_with_a_large_body_is_said(scans: Scans, value: bytes, fault: str):
    with pytest.raises(ProtocolError, match=fault) as refused:
        await scans.decode(call(value), "")
    assert refused.value.reason == "PARSE_ERROR"


def scan_processes() -> list[psutil.Process]:
    """Returns the scanners of this process; other services of this worker's tests are none of ours."""
    return [child for child in psutil.Process().children() if "gateway.mcp.scan_process" in child.cmdline()]


async def test_a_process_that_is_killed_is_replaced(scans: Scans):
    for child in scan_processes():
        child.kill()
        child.wait()
    assert isinstance(await scans.decode(call(array(b"1", LARGE)), ""), Message)


async def test_one_sender_takes_one_process_and_leaves_the_other_to_others(scans: Scans):
    body = call(WORST["members"])
    many = [asyncio.create_task(scans.decode(body, "greedy")) for _ in range(4)]
    await asyncio.sleep(0)
    await scans.decode(body, "modest")
    assert sum(task.done() for task in many) < len(many)
    await asyncio.gather(*many)
    assert len(scan_processes()) <= PROCESSES
