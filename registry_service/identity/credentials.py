"""Credentials of accounts: how they look, how they are kept, how they are verified.

A client id is `nrci_` and 21 characters, a secret is `nrcs_`, 43 characters (256 bits) and 6 characters of CRC32, all
of them of `[A-Za-z0-9]`: base64 of such text never holds `+` or `/`, and a scanner finds the encoded form as well. A
secret is kept as HMAC-SHA-256 under the pepper. It is random and long, so that a slow hash would add nothing but load.
"""

import binascii
import hmac
import os
import re
import secrets
import string
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from naru.v1 import accounts_pb2
from registry_service.errors import AccountSuspendedError, UnauthenticatedError
from registry_service.identity.plans import Plan

CLIENT_ID_PREFIX = "nrci_"
SECRET_PREFIX = "nrcs_"  # noqa: S105 -- a prefix
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
LIVE_SECRETS = 2
CLIENT_ID = re.compile(rf"{CLIENT_ID_PREFIX}[A-Za-z0-9]{{21}}")

# Stand in for the digests that an unknown client, or one with a single secret, does not have.
_NO_DIGESTS = (os.urandom(32), os.urandom(32))


class Credential(NamedTuple):
    client_id: str
    secret: str

    @property
    def shown_id(self) -> str:
        """The client id for a log; empty for what has not its form, as a secret that stands in its place."""
        return self.client_id if CLIENT_ID.fullmatch(self.client_id) else ""

    def __repr__(self) -> str:
        return f"Credential(client_id={self.shown_id!r}, secret=…)"


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """`state` is a value of the contract's `Account.State`; `secrets` are digests, at most two, oldest first."""

    client_id: str
    plan: Plan
    state: int
    secrets: tuple[bytes, ...]


def new_client_id() -> str:
    return CLIENT_ID_PREFIX + _random(21)


def new_secret() -> str:
    """Returns a secret. It ends in the CRC32 of all that precedes it, so that a typo can be told without the server."""
    body = SECRET_PREFIX + _random(43)
    return body + checksum(body)


def checksum(text: str) -> str:
    """Returns the CRC32 of ASCII text as 6 characters in base 62: digits, capitals, small letters; highest first."""
    number = zlib.crc32(text.encode("ascii"))
    digits = ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits = ALPHABET[digit] + digits
    return digits


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def pepper_mark(pepper: bytes) -> bytes:
    """Returns what tells one pepper from another, and nothing of it: 32 bytes."""
    return hmac.digest(pepper, b"the mark of a pepper", "sha256")


def digest(pepper: bytes, secret: str) -> bytes:
    """Returns what is stored of a secret: 32 bytes."""
    return hmac.digest(pepper, secret.encode(), "sha256")


def parse_basic(value: str) -> Credential:
    """Reads `Basic base64(id:secret)` as the gateway normalises it: UTF-8, padded, the standard alphabet.

    Raises UnauthenticatedError for anything else.
    """
    scheme, _, token = value.partition(" ")
    if scheme.lower() != "basic":
        raise UnauthenticatedError("the authorization is not of the Basic scheme")
    try:
        text = binascii.a2b_base64(token, strict_mode=True).decode()
    except ValueError:  # binascii.Error and UnicodeDecodeError are of it, and so is a token beyond ASCII
        raise UnauthenticatedError("the credential is not base64 of UTF-8 text") from None
    client_id, _, secret = text.partition(":")
    if not client_id or not secret:
        raise UnauthenticatedError("the credential is not an id, a colon and a secret")
    return Credential(client_id, secret)


def authenticate(accounts: Mapping[str, AccountEntry], pepper: bytes, credential: Credential | None) -> AccountEntry:
    """Returns the account whose live secret the credential holds.

    Raises UnauthenticatedError, with one text for an unknown client and a wrong secret, after the same work;
    AccountSuspendedError only to one who knows the secret.
    """
    if credential is None:
        raise UnauthenticatedError("no credential came with the request")
    entry = accounts.get(credential.client_id)
    presented = digest(pepper, credential.secret)
    first, second = ((entry.secrets if entry else ()) + _NO_DIGESTS)[:LIVE_SECRETS]
    known = hmac.compare_digest(first, presented) | hmac.compare_digest(second, presented)
    if entry is None or not known:
        raise UnauthenticatedError("the credential is wrong")
    if entry.state != accounts_pb2.Account.ACTIVE:
        raise AccountSuspendedError("the account is suspended")
    return entry
