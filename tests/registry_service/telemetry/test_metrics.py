import json
import logging
import os
from datetime import datetime, timedelta
from urllib.request import urlopen

import pytest
import structlog

from naru.environment import Bind
from registry_service.telemetry import metrics as telemetry


@pytest.fixture
def lines():
    """Logs into a pipe; returns a function that reads the records written so far."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    telemetry.configure_logging("INFO").drain()  # what earlier tests have left
    telemetry.configure_logging("INFO", writer)
    yield lambda: [json.loads(line) for line in os.read(reader, 1 << 16).decode().splitlines()]
    os.close(reader)
    os.close(writer)
    structlog.reset_defaults()
    logging.basicConfig(force=True)


def test_a_record_is_one_line_of_json(lines):
    structlog.get_logger().info("사건", text="두\n줄", count=1, missing=None)
    (record,) = lines()
    assert datetime.fromisoformat(record.pop("time")).utcoffset() == timedelta(0)
    assert record == {"level": "info", "event": "사건", "text": "두\n줄", "count": 1, "missing": None}


def test_the_level_is_kept(lines):
    log = structlog.get_logger()
    log.debug("unheard")
    log.warning("heard")
    assert [record["event"] for record in lines()] == ["heard"]


def test_values_that_are_not_json_are_shown_as_text(lines):
    structlog.get_logger().info("odd", value=ValueError("x"), lone="\ud800")
    structlog.get_logger().info("odd", value=ValueError("x"))
    first, second = lines()
    assert (first["value"], first["lone"], second["value"]) == ("x", "\ud800", "x")


def test_an_exception_is_told_with_its_traceback(lines):
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().error("failed", exc_info=True)
    (record,) = lines()
    assert "test_telemetry.py" in record["exception"]
    assert record["exception"].endswith("ValueError: invalid literal for int() with base 10: 'broken'")


def test_libraries_are_heard_in_the_same_form(lines):
    logging.getLogger("some.library").info("unheard")
    logging.getLogger("some.library").warning("heard %s", "it")
    (record,) = lines()
    assert (record["event"], record["logger"], record["level"]) == ("heard it", "some.library", "warning")


def test_a_sink_that_is_gone_does_not_stop_the_service():
    reader, writer = os.pipe()
    os.close(reader)
    before = telemetry.METRICS.get_sample_value("naru_log_records_lost_total") or 0
    telemetry.LineSink(writer).info(b"lost")
    os.close(writer)
    assert telemetry.METRICS.get_sample_value("naru_log_records_lost_total") == before + 1


def test_a_record_longer_than_the_pipe_is_written_whole(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        telemetry.LineSink(file.fileno()).info(b"x" * 300_000)
    assert (tmp_path / "log").read_bytes() == b"x" * 300_000 + b"\n"


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
