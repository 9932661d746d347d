"""Tells who makes the current RPC. `rpc/border.py` sets it before a servicer runs; a servicer reads `CALLER.get()`."""

from contextvars import ContextVar
from typing import NamedTuple

from registry_service.identity.credentials import Credential


class Caller(NamedTuple):
    """`admin` means that the admin token came with the request; the service token may or may not have.

    `credential` is what an account presented, read but not verified: `credentials.authenticate` does that. The three
    strings are metadata as it came, empty where it did not.
    """

    admin: bool
    credential: Credential | None
    request_id: str
    traceparent: str
    tracestate: str


CALLER: ContextVar[Caller] = ContextVar("CALLER")
