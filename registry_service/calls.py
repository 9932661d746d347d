"""One call: admission, the endpoint, settlement. Runs as a task of the process, whatever becomes of the RPC."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import structlog
from naru.v1 import errors_pb2, execution_pb2

from registry_service.answers import Answer
from registry_service.caller import Caller
from registry_service.catalog import AccountEntry, ToolEntry
from registry_service.egress import Attempt
from registry_service.endpoint import EndpointClient
from registry_service.errors import (
    CallOutcomeUnknownError,
    Fact,
    NaruError,
    ToolFailedError,
    ToolTimedOutError,
)
from registry_service.ledger import Admission, Ledger
from registry_service.models import now_micros
from registry_service.requests import Request
from registry_service.telemetry import CALLS_RUNNING, observe_call

# How long an outcome may take to be recorded before the client hears that it is not known.
SETTLE_SECONDS = 10.0
# Progress that a slow client has not fetched yet; the oldest goes first.
PROGRESS_KEPT = 64

_State = execution_pb2.Call.State
_OUTCOMES = {number: name.lower() for name, number in _State.items()}

_log = structlog.get_logger()


class Limit(NamedTuple):
    """The time limit that fires first. `name` is `tool`, `client` or `server`; `at` is of the event loop's clock."""

    name: str
    seconds: float
    at: float


class Ready(NamedTuple):
    """A call that nothing but its admission keeps from running."""

    revision: int
    account: AccountEntry
    lane: str
    tool: ToolEntry
    request: Request


class Call:
    """The state of one call that its RPC watches: progress, and whether it was admitted.

    `client_deadline` is of the event loop's clock, None where the client set none.
    """

    __slots__ = (
        "_progressed",
        "admitted",
        "caller",
        "changed",
        "client_deadline",
        "client_seconds",
        "cut",
        "call_id",
        "progress",
        "rpc",
        "started",
    )

    def __init__(self, rpc: execution_pb2.CallToolRequest, caller: Caller, client_seconds: float | None) -> None:
        self.call_id = new_call_id()
        self.rpc = rpc
        self.caller = caller
        self.client_seconds = client_seconds
        self.started = asyncio.get_running_loop().time()
        self.client_deadline = None if client_seconds is None else self.started + client_seconds
        self.admitted: Ready | None = None
        # Set when the process stops before the call has ended.
        self.cut = False
        self.progress: deque[execution_pb2.CallToolEvent.Progress] = deque(maxlen=PROGRESS_KEPT)
        self.changed = asyncio.Event()
        self._progressed = float("-inf")

    def report(self, progress: float, total: float | None, message: str) -> None:
        """Keeps an endpoint's progress for the RPC, if it is progress: the contract promises that it grows."""
        if progress <= self._progressed:
            return
        self._progressed = progress
        self.progress.append(
            execution_pb2.CallToolEvent.Progress(progress=progress, total=total, message=message)
        )
        self.changed.set()


def new_call_id() -> str:
    """32 hexadecimal digits that begin with the time in milliseconds, so that the ledger's index grows at its end."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
