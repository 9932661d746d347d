"""A trace goes on to the endpoint under a span of the call; what isn't one is left out."""

import pytest

from registry_service.telemetry.traces import child_of, trace_id_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("version", ["00", "cc"])
def test_a_child_keeps_the_trace_and_its_flags_under_a_new_span(version, flags):
    parts = child_of(f"{version}-{TRACE}-{PARENT}-{flags}").split("-")
    assert (parts[0], parts[1], parts[3]) == ("00", TRACE, flags)
    assert len(parts[2]) == 16
    assert parts[2] not in (PARENT, "0" * 16)
    assert trace_id_of(f"{version}-{TRACE}-{PARENT}-{flags}") == TRACE


def test_a_later_version_may_say_more():
    assert trace_id_of(f"cc-{TRACE}-{PARENT}-01-more") == TRACE


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "00",
        f"00-{TRACE}",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'z' * 32}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_garbage_is_no_trace(garbage):
    assert (child_of(garbage), trace_id_of(garbage)) == ("", "")
