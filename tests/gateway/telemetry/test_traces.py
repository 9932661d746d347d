"""Trace context and request ids."""

import pytest

from gateway.telemetry.traces import accepted_id, continued_trace, fresh_ids, new_trace

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
