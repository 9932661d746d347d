"""What the answers of List methods share (AIP-158), and the time as messages hold it."""

import base64
from typing import NamedTuple

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from registry_service.errors import PageTokenInvalidError, RequestInvalidError

DEFAULT_PAGE = 100
MAX_PAGE = 1000


class _Position(NamedTuple):
    """Where a page ended: the list, and the key of the last item."""

    kind: str
    key: str


_POSITION = msgspec.json.Decoder(_Position)


def page_size(size: int, default: int = DEFAULT_PAGE) -> int:
    """How many items a page may have. Raises RequestInvalidError."""
    if size < 0:
        raise RequestInvalidError("page_size is negative", field="page_size", detail="negative")
    return min(size or default, MAX_PAGE)


def page_token(kind: str, key: str | None) -> str:
    """The token that continues a list after the item of this key; empty for None, the end of the list."""
    return "" if key is None else base64.urlsafe_b64encode(msgspec.json.encode(_Position(kind, key))).decode()


def key_after(kind: str, token: str) -> str:
    """The key of the item that a page continues after. Raises PageTokenInvalidError."""
    try:
        position = _POSITION.decode(base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, msgspec.MsgspecError):
        raise PageTokenInvalidError("the page token is not one that this service issued") from None
    if position.kind != kind or not position.key.isprintable():
        raise PageTokenInvalidError("the page token is not one that this service issued for this list")
    return position.key


def timestamp(micros: int) -> Timestamp:
    """The time of a table, microseconds since the epoch."""
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)
