"""The record of one request, for logs and metrics."""

from gateway.frame import Frame


class Record:
    """Fills while a request is answered. `outcome` is "ok", "tool_error", "cancelled" or the reason of a failure."""

    __slots__ = ("call_id", "carriage", "outcome", "status", "tool")

    def __init__(self) -> None:
        self.call_id = ""
        self.carriage = "json"
        self.outcome = "ok"
        self.status = 0
        self.tool = ""

    def handled(self, tool: str) -> None:
        """Notes that the messages of the answer come now. Until its last one has, the request may be cancelled."""
        self.tool = tool
        self.outcome = "cancelled"

    def sent(self, frame: Frame) -> None:
        """Notes a frame that is sent, or would be if anybody still read it."""
        if frame.call_id:
            self.call_id = frame.call_id
        if frame.last:
            self.outcome = frame.outcome
