"""The load generator, a process of its own: a closed loop of raw HTTP/1.1 on as many connections as asked for.

`python -m bench.load` reads one JSON object from stdin (`Plan`) and prints one to stdout (`Report`). Every response is
checked: status 200 and the plan's marker in the body. It costs a few tens of microseconds a call, which it reports.
"""

import asyncio
import sys
import time
from array import array
from typing import cast

import msgspec
import uvloop

_HEAD_END = b"\r\n\r\n"
_CHUNKS_END = b"\r\n0\r\n\r\n"


class Plan(msgspec.Struct):
    """Describes what to send. `seconds` or `calls` ends the run, whichever is first; calls under way are finished."""

    host: str
    port: int
    request: str
    marker: str
    concurrency: int
    seconds: float = 3600.0
    calls: int = 1 << 60


class Report(msgspec.Struct):
    """Holds the results of a run. Latencies are in microseconds, `wall` and `cpu` (the generator's own) in seconds."""

    calls: int
    failures: int
    wall: float
    cpu: float
    p50: float
    p99: float
    first_failure: str = ""


class Run:
    """The counters that the connections of one run share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.request = plan.request.encode()
        self.marker = plan.marker.encode()
        self.started = 0
        self.failures = 0
        self.first_failure = ""
        self.latencies = array("d")
        self.end = time.perf_counter() + plan.seconds

    def more(self) -> bool:
        """Counts a call in, unless the run is over."""
        if self.started >= self.plan.calls or time.perf_counter() >= self.end:
            return False
        self.started += 1
        return True

    def fail(self, what: str) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or what[:600]


class Connection(asyncio.Protocol):
    """One connection: sends the request, waits for the whole response, sends it again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = b""
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass
        self.send()

    def send(self) -> None:
        if not self.run.more():
            self.transport.close()
            return
        self.received = b""
        self.sent_at = time.perf_counter()
        self.transport.write(self.run.request)

    def data_received(self, data: bytes) -> None:
        self.received = received = self.received + data if self.received else data
        if not _complete(received):
            return
        self.run.latencies.append(time.perf_counter() - self.sent_at)
        self.sent_at = 0.0
        if not received.startswith(b"HTTP/1.1 200") or self.run.marker not in received:
            self.run.fail(received.decode(errors="replace"))
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.sent_at:
            self.run.fail(f"the connection was lost before the response was whole: {exc}")
        self.done.set_result(None)


def _complete(received: bytes) -> bool:
    end = received.find(_HEAD_END)
    if end < 0:
        return False
    head = received[:end].lower()
    at = head.find(b"content-length:")
    if at < 0:
        return received.endswith(_CHUNKS_END)
    length = int(head[at + 15 :].split(b"\r\n", 1)[0])
    return len(received) >= end + len(_HEAD_END) + length


async def run(plan: Plan) -> Report:
    """Runs a plan to its end. Raises OSError if the server cannot be connected to."""
    loop = asyncio.get_running_loop()
    shared = Run(plan)
    wall, cpu = time.perf_counter(), time.process_time()
    pairs = [
        await loop.create_connection(lambda: Connection(shared), plan.host, plan.port) for _ in range(plan.concurrency)
    ]
    async with asyncio.timeout(plan.seconds + 60):
        await asyncio.gather(*(connection.done for _, connection in pairs))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ordered = sorted(shared.latencies)
    return Report(
        calls=len(ordered), failures=shared.failures, wall=wall, cpu=cpu, first_failure=shared.first_failure,
        p50=_quantile(ordered, 0.50), p99=_quantile(ordered, 0.99),
    )  # fmt: skip


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6 if ordered else 0.0


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    print(msgspec.json.encode(uvloop.run(run(plan))).decode())


if __name__ == "__main__":
    main()
