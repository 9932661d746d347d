from urllib.request import urlopen

from naru.environment import Bind
from naru.metrics_server import MetricsServer
from registry_service.telemetry import metrics as telemetry


def test_metrics_are_served_on_a_free_port():
    telemetry.observe_call("echo", "1.0.0", "production", "failed", "TOOL_TIMED_OUT", 0.02)
    telemetry.observe_call("echo", "1.0.0", "production", "failed", "TOOL_TIMED_OUT", 0.02)
    server = MetricsServer(Bind("127.0.0.1", 0), telemetry.METRICS)
    try:
        with urlopen(f"http://{server.bind}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    labels = 'lane="production",outcome="failed",reason="TOOL_TIMED_OUT",tool="echo",version="1.0.0"'
    assert f"naru_calls_total{{{labels}}} 2.0" in text
    assert 'naru_call_seconds_bucket{lane="production",le="0.025",tool="echo"} 2.0' in text
    for name in ("naru_calls_running", "naru_ledger_commit_seconds_bucket", "naru_ledger_group_size_bucket"):
        assert f"\n{name}" in text
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_calls_of_tools_without_end_do_not_make_time_series_without_end(monkeypatch):
    monkeypatch.setattr(telemetry, "CALL_SERIES", 20)
    monkeypatch.setattr(telemetry, "_call_counters", {})
    monkeypatch.setattr(telemetry, "_call_timers", {})

    def samples(name):
        (family,) = [family for family in telemetry.METRICS.collect() if family.name == name]
        return {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}

    before = samples("naru_calls"), samples("naru_call_seconds")
    for number in range(100):
        telemetry.observe_call(f"many_{number}", "1.0.0", "production", "succeeded", "", 0.02)
    new = [
        samples(name).items() - then.items()
        for name, then in zip(("naru_calls", "naru_call_seconds"), before, strict=True)
    ]
    assert len(new[0]) == 21
    assert sum(value for _, value in new[0]) == 100
    assert {dict(labels)["tool"] for labels, _ in new[1]} == {"many_0", "many_1", telemetry.OTHER_TOOLS}
