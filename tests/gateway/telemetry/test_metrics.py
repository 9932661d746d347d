"""Trace context, request ids, logs and metrics."""

import asyncio
import io
import json
import logging

import pytest
import structlog

from gateway.telemetry.metrics import (
    GatheredLines,
    Metrics,
    accepted_id,
    configure_logs,
    continued_trace,
    fresh_ids,
    new_trace,
    start_metrics,
)
from naru.environment import Bind

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "00f067aa0ba902b7"
SPAN = "b7ad6b7169203331"


class TestTrace:
    def test_it_goes_on_under_a_span_of_ours(self):
        trace = continued_trace(f"00-{TRACE}-{PARENT}-01", "vendor=1", SPAN)
        assert trace is not None
        assert trace.trace_id == TRACE
        assert trace.traceparent == f"00-{TRACE}-{SPAN}-01"
        assert trace.tracestate == "vendor=1"

    def test_the_sampling_decision_is_kept(self):
        trace = continued_trace(f"00-{TRACE}-{PARENT}-00", "", SPAN)
        assert trace is not None
        assert trace.traceparent.endswith("-00")

    def test_a_later_version_may_say_more(self):
        trace = continued_trace(f"cc-{TRACE}-{PARENT}-01-more", "", SPAN)
        assert trace is not None
        assert trace.traceparent == f"00-{TRACE}-{SPAN}-01"

    @pytest.mark.parametrize(
        "garbage",
        [
            "",
            "00",
            f"00-{TRACE}-{PARENT}",
            f"00-{TRACE.upper()}-{PARENT}-01",
            f"00-{'0' * 32}-{PARENT}-01",
            f"00-{TRACE}-{'0' * 16}-01",
            f"ff-{TRACE}-{PARENT}-01",
            f"00-{TRACE}-{PARENT}-01-more",
            f"00-{TRACE}-{PARENT}-01\r\nx: y",
            f" 00-{TRACE}-{PARENT}-01",
        ],
    )
    def test_garbage_is_no_trace(self, garbage):
        assert continued_trace(garbage, "", SPAN) is None

    @pytest.mark.parametrize("state", ["가=1", "x" * 513, "a=1\r\n"])
    def test_a_bad_tracestate_is_left_out(self, state):
        trace = continued_trace(f"00-{TRACE}-{PARENT}-01", state, SPAN)
        assert trace is not None
        assert trace.tracestate == ""

    def test_a_new_root(self):
        request_id, trace_id, span_id = fresh_ids()
        assert (len(request_id), len(trace_id), len(span_id)) == (16, 32, 16)
        assert fresh_ids() != (request_id, trace_id, span_id)
        assert new_trace(trace_id, span_id).traceparent == f"00-{trace_id}-{span_id}-01"


@pytest.mark.parametrize("value", ["abc", "550e8400-e29b-41d4-a716-446655440000", "a" * 128])
def test_a_sane_request_id_is_taken(value):
    assert accepted_id(value) == value


@pytest.mark.parametrize("value", ["", "a" * 129, "a b", "a\r\nb", "아이디", "a,b", '"'])
def test_any_other_is_not(value):
    assert accepted_id(value) == ""


class TestLogs:
    @pytest.fixture
    def lines(self):
        stream = io.BytesIO()
        configure_logs("info", stream)
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
        structlog.reset_defaults()
        logging.basicConfig(force=True)

    def test_a_record_is_one_line(self, lines):
        structlog.get_logger().info("hello", text="두 줄\n입니다", nothing=None)
        (record,) = lines()
        assert record.items() >= {"event": "hello", "level": "info", "text": "두 줄\n입니다"}.items()
        assert record["time"] > 1.7e9

    def test_levels_below_the_setting_are_left_out(self, lines):
        structlog.get_logger().debug("quiet")
        assert lines() == []

    def test_an_exception_is_told_in_the_record(self, lines):
        structlog.get_logger().error("failed", exc_info=KeyError("lost"))
        (record,) = lines()
        assert "KeyError: 'lost'" in record["exception"]

    def test_the_standard_librarys_loggers_write_the_same(self, lines):
        logging.getLogger("some.library").warning("careful with %s", "that")
        (record,) = lines()
        assert record.items() >= {"event": "careful with that", "level": "warning", "logger": "some.library"}.items()

    def test_uvicorn_does_not_tell_of_every_bad_request(self, lines):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        assert lines() == []


class TestGatheredLines:
    async def test_a_line_waits_for_others_but_not_for_long(self):
        stream = io.BytesIO()
        lines = GatheredLines(stream)
        lines.write(b"one\n")
        lines.write(b"two\n")
        assert stream.getvalue() == b""
        async with asyncio.timeout(2):
            while stream.getvalue() != b"one\ntwo\n":
                await asyncio.sleep(0)

    async def test_what_waits_can_be_drained(self):
        stream = io.BytesIO()
        lines = GatheredLines(stream)
        lines.write(b"last words\n")
        lines.drain()
        assert stream.getvalue() == b"last words\n"

    def test_without_a_loop_nothing_waits(self):
        stream = io.BytesIO()
        GatheredLines(stream).write(b"at once\n")
        assert stream.getvalue() == b"at once\n"


class TestMetrics:
    async def scraped(self, metrics: Metrics) -> str:
        bound = start_metrics(Bind("127.0.0.1", 0), metrics.registry)
        reader, writer = await asyncio.open_connection(bound.host, bound.port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(5):
            text = (await reader.read()).decode()
        writer.close()
        return text

    async def test_they_are_served_on_a_bind_of_their_own(self):
        metrics = Metrics(lambda: 3)
        for _ in range(2):
            metrics.request("tools/call", "legacy", "json", "ok", 0.004)
        metrics.rpc("CallTool", "OK")
        metrics.dropped_progress.inc()
        text = await self.scraped(metrics)
        labels = 'carriage="json",era="legacy",method="tools/call",outcome="ok"'
        assert f"naru_gateway_requests_total{{{labels}}} 2.0" in text
        assert 'naru_gateway_request_seconds_bucket{le="0.005",method="tools/call"} 2.0' in text
        assert 'naru_gateway_request_seconds_bucket{le="0.0025",method="tools/call"} 0.0' in text
        assert "naru_gateway_in_flight 3.0" in text
        assert 'naru_gateway_grpc_total{code="OK",method="CallTool"} 1.0' in text
        assert "naru_gateway_progress_dropped_total 1.0" in text
        assert "process_resident_memory_bytes" in text

    def test_two_gateways_do_not_share_them(self):
        first, second = Metrics(lambda: 0), Metrics(lambda: 0)
        first.rpc("CallTool", "OK")
        assert second.registry.get_sample_value("naru_gateway_grpc_total", {"method": "CallTool", "code": "OK"}) is None

    def test_an_address_in_use_is_an_error(self):
        metrics = Metrics(lambda: 0)
        bound = start_metrics(Bind("127.0.0.1", 0), metrics.registry)
        with pytest.raises(OSError, match="in use"):
            start_metrics(bound, metrics.registry)
