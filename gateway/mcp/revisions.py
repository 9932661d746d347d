"""The contract and the MCP revision that a request speaks. Pure.

Nothing is remembered between requests: everything here follows from the Accept header, the MCP-Protocol-Version header
and `params._meta` of the one request.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from gateway.mcp.params import Meta

LATEST = "2026-07-28"
LATEST_LEGACY = "2025-11-25"
# Headers came with 2025-06-18, so a client that sends none is taken to speak the revision before.
ASSUMED = "2025-03-26"
LEGACY = (LATEST_LEGACY, "2025-06-18", ASSUMED, "2024-11-05")
SUPPORTED = (LATEST, *LEGACY)


class Era(Enum):
    """Whose rules a request follows."""

    AGENT_BUILDER = "agent-builder"
    LEGACY = "legacy"
    MODERN = "modern"


class Dialect(NamedTuple):
    """The contract and revision of a request. `named` says that its own header named the revision."""

    era: Era
    revision: str
    named: bool = False


_AGENT_BUILDER = Dialect(Era.AGENT_BUILDER, LATEST_LEGACY)
_UNNAMED = Dialect(Era.LEGACY, ASSUMED)
_MODERN = Dialect(Era.MODERN, LATEST, named=True)
_NAMED: Mapping[str, Dialect] = {
    revision: Dialect(Era.LEGACY, max(revision, ASSUMED), named=True) for revision in LEGACY
}


def identify(versions: Sequence[str], meta: Meta, method: str = "", *, json_only: bool) -> Dialect:
    """Finds out what a request speaks.

    `json_only` says that its client admits `application/json` and no stream; `versions` holds every value of its
    MCP-Protocol-Version header. MODERN means that it has to pass `mirrored_headers.check_modern`, which refuses
    versions that nobody serves, and any contradiction between header and `_meta`.
    """
    if json_only and not meta.claims_version:
        return _AGENT_BUILDER
    if not versions:
        return _MODERN if meta.claims_version else _UNNAMED
    named = _NAMED.get(versions[0])
    if named is None and method == "initialize" and versions[0] != LATEST and not meta.claims_version:
        return _UNNAMED  # the handshake negotiates in its body, whatever revision the client hopes for
    if named is None or len(set(versions)) > 1:
        return _MODERN
    if meta.claims_version and meta.protocol_version not in _NAMED:
        return _MODERN
    return named


def arguments_are_protocol_errors(dialect: Dialect) -> bool:
    """Says whether arguments that violate the schema are a JSON-RPC error (−32602) rather than an `isError` result.

    MCP made them results with 2025-11-25 (SEP-1303). A client that names no revision gets what models can read.
    """
    if dialect.era is Era.AGENT_BUILDER:
        return True
    return dialect.era is Era.LEGACY and dialect.named and dialect.revision < LATEST_LEGACY


def progress_token(dialect: Dialect, meta: Meta, request_id: bytes, *, negotiated: bool) -> bytes | None:
    """Returns the token (JSON text) under which a call reports progress on a stream; None: it reports none.

    A client that negotiated a stream gets progress without asking for it (the xData contract), unless it is modern.
    """
    if meta.progress_token is None and negotiated and dialect.era is not Era.MODERN:
        return request_id
    return meta.progress_token
