"""The messages that pass from the MCP side of an answer to its HTTP side."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

NO_HEADERS: Mapping[str, str] = {}


class Frame(NamedTuple):
    """One JSON-RPC message, as JSON text; `status` and `headers` matter while nothing has been sent.

    A frame without a body that is not the last says that the call was admitted: it opens an SSE stream, and everywhere
    its headers are added to those of the answer. A last frame without a body ends a stream without a message.
    `outcome` ("ok", "tool_error" or the reason of a failure) and `call_id` are for logs and metrics.
    """

    body: bytes
    last: bool = True
    status: int = 200
    headers: Mapping[str, str] = NO_HEADERS
    outcome: str = "ok"
    call_id: str = ""


class Progress(NamedTuple):
    """One progress value of a call. `message` writes its notification, for those values that are sent."""

    value: float
    message: Callable[[], bytes]


Item: TypeAlias = Frame | Progress
