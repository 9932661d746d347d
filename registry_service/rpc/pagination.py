"""Pages through lists (AIP-158), and writes times as messages hold them."""

import base64
import hmac

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from registry_service.errors import PageTokenInvalidError, RequestInvalidError

DEFAULT_PAGE = 100
MAX_PAGE = 1000
# The length of the HMAC that marks a token as ours.
_MARK_BYTES = 16


def page_size(size: int, default: int = DEFAULT_PAGE) -> int:
    """Returns how many items a page may have. Raises RequestInvalidError."""
    if size < 0:
        raise RequestInvalidError("page_size is negative", field="page_size", detail="negative")
    return min(size or default, MAX_PAGE)


class PageTokens:
    """Issues page tokens and reads them. A token is bound to its list, and nobody else can make one.

    A list is named by its kind and by whatever chooses its items: the account and the lane, the filters.
    """

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.digest(pepper, b"page tokens", "sha256")

    def issue(self, kind: str, key: str | None) -> str:
        """Returns the token that continues a list after the item of this key; empty for None, the end of the list."""
        return "" if key is None else base64.urlsafe_b64encode(self._mark(kind, key) + key.encode()).decode()

    def key_after(self, kind: str, token: str) -> str:
        """Returns the key of the item that a page continues after. Raises PageTokenInvalidError."""
        try:
            raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
            key = raw[_MARK_BYTES:].decode()
        except ValueError:
            raise PageTokenInvalidError("the page token is not one that this service issued") from None
        if not hmac.compare_digest(raw[:_MARK_BYTES], self._mark(kind, key)):
            raise PageTokenInvalidError("the page token is not one that this service issued for this list")
        return key

    def _mark(self, kind: str, key: str) -> bytes:
        return hmac.digest(self._key, f"{len(kind)}:{kind}{key}".encode(), "sha256")[:_MARK_BYTES]


def duration(micros: int) -> Duration:
    """Returns a duration of a table, microseconds."""
    return Duration(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


def timestamp(micros: int) -> Timestamp:
    """Returns the time of a table, microseconds since the epoch."""
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)
