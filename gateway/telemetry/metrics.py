"""What the gateway says about itself: one JSON line a record on stdout, and Prometheus metrics on a bind of their own.

Neither ever holds a credential, an argument or a result.
"""

import asyncio
import logging
import os
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from naru.environment import Bind
from naru.event_loop import LAG_BUCKETS

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)

_GATHER_SECONDS = 0.05

# W3C Trace Context: version, trace id, parent id, flags; later versions may add fields behind.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Trace(NamedTuple):
    """The trace context that goes on with a request: the gateway's own span is the parent of what follows."""

    trace_id: str
    traceparent: str
    tracestate: str = ""


def fresh_ids() -> tuple[str, str, str]:
    """Returns a request id (16 hex digits), a trace id (32) and a span id (16), all random."""
    digits = os.urandom(32).hex()
    return digits[48:], digits[:32], digits[32:48]


def continued_trace(traceparent: str, tracestate: str, span_id: str) -> Trace | None:
    """Continues the caller's trace under a span of ours; None when `traceparent` is absent or not valid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, parent_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    state = tracestate if _TRACESTATE.fullmatch(tracestate) else ""
    return Trace(trace_id, f"00-{trace_id}-{span_id}-{flags}", state)


def new_trace(trace_id: str, span_id: str) -> Trace:
    """Starts a trace. It is marked as sampled: the logs of every hop record its id."""
    return Trace(trace_id, f"00-{trace_id}-{span_id}-01")


def accepted_id(value: str) -> str:
    """Returns an id that a client chose, if it is fit for logs and metadata, else an empty string."""
    return value if _ID.fullmatch(value) else ""


class Metrics:
    """The metrics of one process, in a registry of their own. Labels are bounded: no value comes from a client.

    `open_requests` is asked at each scrape, so that counting them costs the requests nothing.
    """

    def __init__(self, open_requests: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.registry.register(_InFlight(open_requests))
        self._requests = Counter(
            "naru_gateway_requests",
            "Requests answered, by JSON-RPC method, contract, form of the answer and outcome.",
            ["method", "era", "carriage", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "naru_gateway_request_seconds",
            "Time from the request's head to the end of its answer.",
            ["method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._grpc = Counter(
            "naru_gateway_grpc",
            "RPCs to the registry service, by method and status code.",
            ["method", "code"],
            registry=self.registry,
        )
        self.dropped_progress = Counter(
            "naru_gateway_progress_dropped",
            "Progress that did not increase and was not passed on.",
            registry=self.registry,
        )
        self.loop_lag = Histogram(
            "naru_gateway_event_loop_lag_seconds",
            "How late the event loop was, ten times a second.",
            buckets=LAG_BUCKETS,
            registry=self.registry,
        )
        # labels() costs more than the rest of an observation: children are looked up once.
        self._request_children: dict[tuple[str, str, str, str], Any] = {}
        self._second_children: dict[str, Any] = {}
        self._grpc_children: dict[tuple[str, str], Any] = {}

    def request(self, method: str, era: str, carriage: str, outcome: str, seconds: float) -> None:
        """Counts one request. Each label must be one of a fixed set."""
        labels = (method, era, carriage, outcome)
        child = self._request_children.get(labels)
        if child is None:
            child = self._request_children[labels] = self._requests.labels(*labels)
        child.inc()
        timer = self._second_children.get(method)
        if timer is None:
            timer = self._second_children[method] = self._seconds.labels(method)
        timer.observe(seconds)

    def rpc(self, method: str, code: str) -> None:
        """Counts one RPC by its canonical status name."""
        child = self._grpc_children.get((method, code))
        if child is None:
            child = self._grpc_children[method, code] = self._grpc.labels(method, code)
        child.inc()


class _InFlight(Collector):
    def __init__(self, open_requests: Callable[[], int]) -> None:
        self._open_requests = open_requests

    def collect(self) -> list[GaugeMetricFamily]:
        return [
            GaugeMetricFamily("naru_gateway_in_flight", "Requests being answered.", value=float(self._open_requests()))
        ]


def start_metrics(bind: Bind, registry: CollectorRegistry) -> Bind:
    """Serves `/metrics` from a thread and returns the address, with the real port. Raises OSError."""
    server, _ = start_http_server(bind.port, bind.host, registry)
    return Bind(bind.host, server.server_port)


class GatheredLines:
    """Writes lines some at a time: a system call for each would be a tenth of what a request costs.

    A line waits for at most 50 ms while an event loop runs; without one it is written at once.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._waiting: list[bytes] = []

    def write(self, line: bytes) -> int:
        """Takes a line, whole with its end."""
        self._waiting.append(line)
        if len(self._waiting) == 1:
            try:
                asyncio.get_running_loop().call_later(_GATHER_SECONDS, self.drain)
            except RuntimeError:
                self.drain()
        return len(line)

    def flush(self) -> None:
        """Is called after every line; the lines take their time."""

    def drain(self) -> None:
        """Writes what waits."""
        if self._waiting:
            lines, self._waiting = self._waiting, []
            with suppress(OSError):  # nobody hears, or the disk is full: the service goes on
                self._stream.write(b"".join(lines))
                self._stream.flush()


def configure_logs(level: str, stream: BinaryIO | None = None) -> GatheredLines:
    """Sends every record, those of the standard library's loggers too, to the stream as one JSON object a line.

    The lines have to be drained at the end.
    """
    lines = GatheredLines(stream or sys.stdout.buffer)
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _stamp, _render],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.BytesLoggerFactory(cast(BinaryIO, lines)),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[_Forwarder()], force=True)
    # uvicorn tells at `warning` and below what clients do wrong on every connection; our own records tell that.
    for name in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(max(getattr(logging, level.upper()), logging.ERROR))
    return lines


class _Forwarder(logging.Handler):
    """Hands the records of the standard library's loggers to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _stamp(_logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {"time": round(time.time(), 3), "level": method, "service": "gateway", "event": "", **event}


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> bytes:
    return _encode(event)
