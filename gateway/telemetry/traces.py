"""W3C Trace Context, and the ids that lead from one log to another."""

import os
import re
from typing import NamedTuple

# W3C Trace Context: version, trace id, parent id, flags; later versions may add fields behind.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


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
