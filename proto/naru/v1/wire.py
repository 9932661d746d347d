"""Defines what both sides write and read beside the messages of the contract: metadata keys, and failures in trailers.

A failed RPC carries `google.rpc.Status` with one `google.rpc.ErrorInfo`. Its `reason` is a name of `Reason`, its
`domain` is DOMAIN, and each value of its `metadata` is a fact as JSON text, so that numbers and lists keep their types.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "naru"
# Metadata of requests.
AUTHORIZATION_KEY = "authorization"
SERVICE_TOKEN_KEY = "x-naru-token"  # noqa: S105 -- a metadata key
ADMIN_TOKEN_KEY = "x-naru-admin-token"  # noqa: S105 -- a metadata key
REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"
TRACESTATE_KEY = "tracestate"
# Metadata of answers.
CALL_ID_KEY = "x-naru-call-id"
STATUS_KEY = "grpc-status-details-bin"
# Why a service says NOT_SERVING of itself, in the trailers of a health check: a word such as `disk_full`.
CAUSE_KEY = "x-naru-cause"

Fact: TypeAlias = object

# Clients of gRPC refuse, by chance, trailers between 8 and 16 KiB, and base64 makes three bytes four.
_FACTS_LIMIT = 5 * 1024


class ErrorInfo(NamedTuple):
    """Holds a failure as a peer named it. `reason` may be a name that only a newer peer knows."""

    reason: str
    facts: dict[str, Fact]


def pack_facts(facts: Mapping[str, Fact]) -> dict[str, str]:
    """Returns the facts as the contract carries them: each value as JSON text."""
    return {name: msgspec.json.encode(value).decode() for name, value in facts.items()}


def unpack_facts(facts: Mapping[str, str]) -> dict[str, Fact]:
    """Reads facts as the contract carries them. Leaves out a value that isn't JSON text."""
    read = {}
    for name, text in facts.items():
        try:
            read[name] = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError):
            continue
    return read


def pack_status(code: int, message: str, reason: str, facts: Mapping[str, Fact]) -> bytes:
    """Returns a serialized `google.rpc.Status` with one ErrorInfo, for the trailer STATUS_KEY.

    `code` is a gRPC status number. The largest facts are dropped until the rest fits into trailers.
    """
    texts = {name: msgspec.json.encode(value) for name, value in facts.items()}
    while sum(map(len, texts.values())) > _FACTS_LIMIT:
        del texts[max(texts, key=lambda name: len(texts[name]))]
    status = status_pb2.Status(code=code, message=message)
    metadata = {name: text.decode() for name, text in texts.items()}
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata))
    return bytes(status.SerializeToString())


def unpack_status(trailers: Iterable[Any] | None) -> ErrorInfo | None:
    """Reads the ErrorInfo of a failed RPC; returns None where a proxy or gRPC itself failed it.

    `trailers` are pairs of a key and a `str` or `bytes`, for which grpc and grpc.aio have types of their own.
    """
    for key, value in trailers or ():
        if key == STATUS_KEY and isinstance(value, bytes):
            return _error_info(value)
    return None


def _error_info(text: bytes) -> ErrorInfo | None:
    info = error_details_pb2.ErrorInfo()
    try:
        status = status_pb2.Status.FromString(text)
        found = any(detail.Unpack(info) for detail in status.details if detail.Is(info.DESCRIPTOR))
    except DecodeError:
        return None
    return ErrorInfo(info.reason, unpack_facts(info.metadata)) if found and info.domain == DOMAIN else None
