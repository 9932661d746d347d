"""Progress of one call, as `notifications/progress`. Pure."""

import math
from functools import partial

from gateway.frame import Progress
from gateway.mcp.jsonrpc import notification, obj, text

# Beyond this, `repr` writes floats with an exponent, and nothing below it loses a digit as an integer.
_EXACT = 1e16


def progress_of(token: bytes, value: float, total: float | None, message: str) -> Progress:
    """Returns progress under the client's progress token (JSON text)."""
    return Progress(value, partial(progress_message, token, value, total, message))


def progress_message(token: bytes, value: float, total: float | None = None, message: str = "") -> bytes:
    """Builds the `notifications/progress` message."""
    params = obj(
        {
            "progressToken": token,
            "progress": number(value),
            "total": number(total) if total is not None and math.isfinite(total) else b"",
            "message": text(message) if message else b"",
        }
    )
    return notification("notifications/progress", params)


def number(value: float) -> bytes:
    """Writes a finite number as JSON: an int with all its digits, an integral float without `.0`."""
    if isinstance(value, int):
        return b"%d" % value
    if abs(value) < _EXACT and value == int(value):
        return b"%d" % value
    return repr(value).encode()
