"""`Authorization` → the credential that travels to the registry, and the challenges of a 401.

The registry alone decides whether a credential is right. What is done here is what needs no lookup: one header, one of
the two schemes, sound base64, and one form (`Basic`, the standard alphabet, padded) whatever the client's spelling.
"""

import base64
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gateway.failures.table import Failure

MAX_AUTHORIZATION_BYTES = 4096

# RFC 7235 token68; what has the other shape is a damaged header, what has this one may be somebody else's token.
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_URL_SAFE = str.maketrans("-_", "+/")


class Credential(NamedTuple):
    """A credential as the registry takes it: the value of its `authorization` metadata.

    `basic` says that the client tried Basic, and so may be challenged for it.
    """

    metadata: str
    basic: bool

    def __repr__(self) -> str:
        return f"Credential(metadata=…, basic={self.basic})"


class Unauthenticated(Failure):
    """Failure UNAUTHENTICATED: no credential, or one that cannot be right. `basic` and `tried` shape the challenge."""

    def __init__(self, *, basic: bool = False, tried: bool = True) -> None:
        super().__init__("UNAUTHENTICATED")
        self.basic = basic
        self.tried = tried


def credential_of(values: Sequence[str]) -> Credential:
    """Returns the credential in the values of all `Authorization` headers (Latin-1, as they came).

    Raises Failure: UNAUTHENTICATED (as Unauthenticated), AUTHORIZATION_MALFORMED, AUTHORIZATION_TOO_LARGE.
    """
    if len(values) == 1:
        return _credential(values[0])
    if values:
        raise _malformed("more than one Authorization header")
    raise Unauthenticated(tried=False)


def challenges(values: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Returns the `WWW-Authenticate` lines of a 401 to these `Authorization` headers, Bearer first.

    Some clients look no further than the first word. A browser shows its own password box when it sees Basic, so that
    is only offered to those who tried it.
    """
    tried, basic = True, False
    try:
        basic = credential_of(values).basic
    except Unauthenticated as failure:
        tried, basic = failure.tried, failure.basic
    lines = [(b"www-authenticate", b'Bearer error="invalid_token"' if tried else b"Bearer")]
    if basic:
        lines.append((b"www-authenticate", b'Basic realm="mcp", charset="UTF-8"'))
    return lines


@lru_cache(maxsize=1024)
def _credential(value: str) -> Credential:
    """Reads one header. Failures are not cached, so that nobody can fill the cache with them."""
    if len(value) > MAX_AUTHORIZATION_BYTES:
        raise Failure("AUTHORIZATION_TOO_LARGE", {"limit_bytes": MAX_AUTHORIZATION_BYTES})
    if not value.isascii() or not value.isprintable():
        raise _malformed("it holds characters that are not visible ASCII")
    scheme, _, rest = value.strip(" ").partition(" ")
    encoded = rest.strip(" ")
    basic = scheme.lower() == "basic"
    if not basic and scheme.lower() != "bearer":
        raise Unauthenticated(tried=False)
    decoded = _decoded(encoded, basic=basic)
    _check_credentials(decoded, basic=basic)
    return Credential(f"Basic {base64.b64encode(decoded).decode()}", basic)


def _decoded(encoded: str, *, basic: bool) -> bytes:
    if not encoded:
        raise _malformed("the credential is missing")
    if not _BASE64.fullmatch(encoded):
        if not basic and _TOKEN68.fullmatch(encoded):
            raise Unauthenticated  # a JWT, say: well formed, and nothing that we issued
        raise _malformed("the credential is not base64")
    if ("+" in encoded or "/" in encoded) and ("-" in encoded or "_" in encoded):
        raise _malformed("the credential mixes two base64 alphabets")
    digits = encoded.rstrip("=").translate(_URL_SAFE)
    padding = "=" * (-len(digits) % 4)
    given = encoded[len(digits) :]
    if len(padding) == 3 or given not in {"", padding}:
        raise _malformed("the credential is not base64")
    return base64.b64decode(digits + padding, validate=True)


def _check_credentials(decoded: bytes, *, basic: bool) -> None:
    """Refuses what no account can have: RFC 7617 wants UTF-8, a colon, and no control characters."""
    try:
        client_id, colon, secret = decoded.decode().partition(":")
    except UnicodeDecodeError as error:
        raise Unauthenticated(basic=basic) from error
    if not (client_id and colon and secret) or any(ord(c) < 0x20 or ord(c) == 0x7F for c in client_id + secret):
        raise Unauthenticated(basic=basic)


def _malformed(detail: str) -> Failure:
    return Failure("AUTHORIZATION_MALFORMED", {"detail": detail})
