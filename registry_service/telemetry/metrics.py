"""Logs and metrics of this process.

Logs: one JSON object a line on standard output: `time`, `level`, `event`, and facts. What libraries
send to `logging` comes out in the same form. Metrics: Prometheus, on a bind of their own.
"""

import asyncio
import json
import logging
import os
from datetime import UTC, datetime
from threading import Thread
from typing import NamedTuple
from wsgiref.simple_server import WSGIServer

import msgspec
import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from structlog.typing import EventDict, WrappedLogger

from naru.environment import Bind
from naru.event_loop import LAG_BUCKETS, Holdup

disable_created_metrics()  # type: ignore[no-untyped-call]
METRICS = CollectorRegistry()
ProcessCollector(registry=METRICS)
PlatformCollector(registry=METRICS)

GATHER_SECONDS = 0.05
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

# `outcome` is the name of a call's state in the ledger, in small letters.
CALLS = Counter("naru_calls", "Calls that have ended", ["tool", "lane", "outcome"], registry=METRICS)
CALL_SECONDS = Histogram(
    "naru_call_seconds", "From admission to settlement", ["tool", "lane"], buckets=_SECONDS, registry=METRICS
)
PROGRESS_DROPPED = Counter(
    "naru_progress_dropped", "Progress of endpoints that did not rise, or that a slow client did not fetch in time",
    registry=METRICS,
)  # fmt: skip
CALLS_RUNNING = Gauge("naru_calls_running", "Calls that run now", registry=METRICS)
LEDGER_COMMIT_SECONDS = Histogram(
    "naru_ledger_commit_seconds", "One group commit of the ledger", buckets=_SECONDS, registry=METRICS
)
LEDGER_GROUP_SIZE = Histogram(
    "naru_ledger_group_size",
    "Admissions and settlements in one group commit",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    registry=METRICS,
)
LOOP_LAG_SECONDS = Histogram(
    "naru_registry_event_loop_lag_seconds",
    "How late the event loop was, ten times a second",
    buckets=LAG_BUCKETS,
    registry=METRICS,
)
GRPC_REQUESTS = Counter("naru_grpc_requests", "RPCs that have ended", ["method", "code"], registry=METRICS)
LOG_RECORDS_LOST = Counter("naru_log_records_lost", "Records that could not be written", registry=METRICS)

# `labels()` takes a lock and builds a key each time; these two are bounded by the tools that were ever called.
_call_counters: dict[tuple[str, str, str], Counter] = {}
_call_timers: dict[tuple[str, str], Histogram] = {}


def observe_call(tool: str, lane: str, outcome: str, seconds: float) -> None:
    """Counts one call that has ended, and its time."""
    counter = _call_counters.get((tool, lane, outcome))
    if counter is None:
        counter = _call_counters[tool, lane, outcome] = CALLS.labels(tool, lane, outcome)
    timer = _call_timers.get((tool, lane))
    if timer is None:
        timer = _call_timers[tool, lane] = CALL_SECONDS.labels(tool, lane)
    counter.inc()
    timer.observe(seconds)


def report_holdup(holdup: Holdup) -> None:
    """Logs what held up the event loop."""
    structlog.get_logger().warning("event loop held up", **holdup._asdict())


class MetricsServer(NamedTuple):
    server: WSGIServer
    thread: Thread

    @property
    def address(self) -> str:
        return str(Bind(str(self.server.server_address[0]), self.server.server_port))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def start_metrics(bind: Bind) -> MetricsServer:
    """Serves `/metrics` from a thread of its own; port 0 takes a free one. Raises OSError."""
    return MetricsServer(*start_http_server(bind.port, bind.host, METRICS))


class LineSink:
    """Writes records, some at a time: a system call for each would be a tenth of what a call costs.

    A record waits for at most 50 ms while an event loop runs, and without one not at all. One that cannot be written is
    counted, and the service goes on.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._waiting: list[bytes] = []

    def msg(self, line: bytes) -> None:
        self._waiting.append(line)
        if len(self._waiting) == 1:
            try:
                asyncio.get_running_loop().call_later(GATHER_SECONDS, self.drain)
            except RuntimeError:
                self.drain()

    def drain(self) -> None:
        """Writes what waits."""
        lines, self._waiting = self._waiting, []
        try:
            rest = b"".join(line + b"\n" for line in lines)
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            LOG_RECORDS_LOST.inc(len(lines))

    debug = info = warning = error = critical = msg


# One for all, since loggers are kept once they have been used.
_sink = LineSink(1)


def _encode_unknown(value: object) -> str:
    return str(value)


_encode = msgspec.json.Encoder(enc_hook=_encode_unknown).encode


def render(_logger: WrappedLogger, level: str, event: EventDict) -> bytes:
    """The one processor of structlog: the record as JSON text."""
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(_logger, level, event)
    record = {"time": datetime.now(UTC), "level": level, "event": event.pop("event"), **event}
    try:
        return _encode(record)
    except UnicodeEncodeError:  # a lone surrogate in some text
        return json.dumps(record, default=str).encode("ascii")


class _Bridge(logging.Handler):
    """Hands records of the standard library's loggers to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"exc_info": record.exc_info} if record.exc_info else {}
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), logger=record.name, **facts)


def configure_logging(level: str, descriptor: int = 1) -> LineSink:
    """`level` is the name of a level of `logging`. Libraries are heard from WARNING on. Drain the sink at the end."""
    _sink.descriptor = descriptor
    structlog.configure(
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: _sink,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)
    return _sink
