"""Defines an upstream, which performs calls: what every kind of it does, and what it hears of a call."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from registry_service.tools.active_tool import ActiveTool
from registry_service.upstreams.answer import Answer

# Takes `progress`, `total` (None where unknown) and `message` (empty where there is none).
OnProgress: TypeAlias = Callable[[float, float | None, str], None]


class Context(NamedTuple):
    """Holds what an upstream hears of the call. `seconds` are left for the answer. A text that nobody sent is empty."""

    call_id: str
    seconds: float
    request_id: str = ""
    traceparent: str = ""
    tracestate: str = ""


class Attempt:
    """Records what has happened to a call at its upstream."""

    __slots__ = ("connected", "status")

    def __init__(self) -> None:
        # A connection was there, so that some of the request may have been sent.
        self.connected = False
        # The HTTP status of the answer; 0 before there was one.
        self.status = 0


class Prepared(Protocol):
    """A call that is mapped to what its upstream gets; nothing has been sent."""

    @property
    def idempotent(self) -> bool: ...


P = TypeVar("P", bound=Prepared)


class Upstream(Protocol[P]):
    """Performs calls by one protocol."""

    def prepare(self, tool: ActiveTool, lane: str, arguments: bytes) -> P:
        """Maps the arguments of a call; nothing is sent.

        Raises ArgumentsInvalidError for values that the tool cannot be sent, ToolFailedError where something is not
        there that the call needs.
        """
        ...

    async def call(self, prepared: P, context: Context, attempt: Attempt, on_progress: OnProgress | None) -> Answer:
        """Sends the request and maps the answer. Cancelling it ends the call at the upstream.

        `attempt` says afterwards whether anything may have been sent. Raises subclasses of ToolFailedError, with the
        fact `safe_to_retry` where that does not depend on the tool alone.
        """
        ...
