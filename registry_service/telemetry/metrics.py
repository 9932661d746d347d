"""The metrics of this process, for Prometheus, on a bind of their own."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from naru.event_loop import LAG_BUCKETS

disable_created_metrics()  # type: ignore[no-untyped-call]
METRICS = CollectorRegistry()
ProcessCollector(registry=METRICS)
PlatformCollector(registry=METRICS)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

# As many time series may be of calls, and a tenth as many histograms: versions come and go, and stay in memory here.
CALL_SERIES = 5000
# Stands for the tools that came too late for a series of their own; no tool can have this name.
OTHER_TOOLS = "(others)"
# `outcome` is the name of a call's state in the ledger, in small letters; `reason` that of the failure, or empty.
CALLS = Counter(
    "naru_calls", "Calls that have ended", ["tool", "version", "lane", "outcome", "reason"], registry=METRICS
)
CALL_SECONDS = Histogram(
    "naru_call_seconds", "From admission to settlement", ["tool", "lane"], buckets=_SECONDS, registry=METRICS
)
PROGRESS_DROPPED = Counter(
    "naru_progress_dropped", "Progress of endpoints that did not rise, or that a slow client did not fetch in time",
    registry=METRICS,
)  # fmt: skip
FRAMES_PASSED_OVER = Counter(
    "naru_frames_passed_over", "Lines and events in streams of endpoints that were not frames", registry=METRICS
)
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

# `labels()` takes a lock and builds a key each time.
_call_counters: dict[tuple[str, str, str, str, str], Counter] = {}
_call_timers: dict[tuple[str, str], Histogram] = {}


def observe_call(tool: str, version: str, lane: str, outcome: str, reason: str, seconds: float) -> None:
    """Counts one call that has ended, and its time. Tools beyond CALL_SERIES are counted together."""
    counter = _call_counters.get((tool, version, lane, outcome, reason))
    if counter is None:
        if len(_call_counters) >= CALL_SERIES:
            tool, version = OTHER_TOOLS, ""
        labels = tool, version, lane, outcome, reason
        counter = _call_counters[labels] = CALLS.labels(*labels)
    timer = _call_timers.get((tool, lane))
    if timer is None:
        if len(_call_timers) >= CALL_SERIES // 10:
            tool = OTHER_TOOLS
        timer = _call_timers[tool, lane] = CALL_SECONDS.labels(tool, lane)
    counter.inc()
    timer.observe(seconds)
