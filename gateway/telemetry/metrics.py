"""The metrics of the gateway, for Prometheus, on a bind of their own."""

from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from naru.event_loop import LAG_BUCKETS

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


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
        self.unread_cut = Counter(
            "naru_gateway_unread_cut",
            "Connections cut because nobody read the answer: too slow, or the memory for all of them full.",
            ["why"],
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
