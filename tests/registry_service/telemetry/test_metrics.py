from urllib.request import urlopen

import pytest

from naru.environment import Bind
from registry_service.telemetry import metrics as telemetry


def test_metrics_are_served_on_a_free_port():
    telemetry.observe_call("echo", "production", "succeeded", 0.02)
    telemetry.observe_call("echo", "production", "succeeded", 0.02)
    server = telemetry.start_metrics(Bind("127.0.0.1", 0))
    try:
        with urlopen(f"http://{server.address}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    assert 'naru_calls_total{lane="production",outcome="succeeded",tool="echo"} 2.0' in text
    assert 'naru_call_seconds_bucket{lane="production",le="0.025",tool="echo"} 2.0' in text
    for name in ("naru_calls_running", "naru_ledger_commit_seconds_bucket", "naru_ledger_group_size_bucket"):
        assert f"\n{name}" in text
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_a_metrics_port_in_use_is_an_error():
    server = telemetry.start_metrics(Bind("127.0.0.1", 0))
    try:
        with pytest.raises(OSError, match="in use"):
            telemetry.start_metrics(Bind("127.0.0.1", server.server.server_port))
    finally:
        server.close()
