"""W3C Trace Context, as gateways and other clients send it with an RPC."""

import random
import re
from typing import NamedTuple

# Version, trace id, parent id and flags. Later versions may add fields behind.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """A trace that an RPC belongs to."""

    trace_id: str
    flags: str


def parse_traceparent(traceparent: str) -> TraceContext | None:
    """Returns the trace, or None for a text that isn't a `traceparent`."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, parent_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return TraceContext(trace_id, flags)


def trace_id_of(traceparent: str) -> str:
    """Returns the trace's id, or an empty text where there is no trace."""
    trace = parse_traceparent(traceparent)
    return trace.trace_id if trace else ""


def child_of(traceparent: str) -> str:
    """Returns the `traceparent` of a request that is made within the given one; empty where there is no trace."""
    trace = parse_traceparent(traceparent)
    return f"00-{trace.trace_id}-{random.getrandbits(64) or 1:016x}-{trace.flags}" if trace else ""
