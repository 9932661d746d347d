"""Secrets that endpoints' headers and queries name as `${secret:name}`.

Each is a file in one directory, as Docker and Kubernetes mount them. They are never in the database, in a log or in a
failure.
"""

import html
import json
import os
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, quote_plus

from registry_service.errors import ToolUnreachableError

_MAX_BYTES = 16 * 1024
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class SecretFiles:
    """Reads secrets; a file that changed is read again, so that rotation needs no restart."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}

    def read(self, name: str) -> str:
        """Returns a secret without the line ends that editors add.

        Raises ToolUnreachableError (never safe to retry, since the same would happen) when there is no such file, or
        when its content cannot stand in a header.
        """
        if self._directory is None:
            raise _missing(name, "is wanted, and REGISTRY_SECRETS_DIR is not set")
        path = self._directory / name
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            known = self._known.get(name)
            if known is None or known[0] != stamp:
                known = self._known[name] = (stamp, _load(path))
        except OSError as error:
            raise _missing(name, f"cannot be read: {os.strerror(error.errno or 0)}") from None
        return known[1]


def _load(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    try:
        text = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise _missing(path.name, "is not UTF-8") from None
    if not text or len(raw) > _MAX_BYTES or _FORBIDDEN.search(text):
        raise _missing(path.name, "is empty, too long or holds control characters")
    return text


def _missing(name: str, what: str) -> ToolUnreachableError:
    """Names the secret to the caller as well: the first who meets it can say to the operator what is absent."""
    return ToolUnreachableError(
        f"secret {name} {what}", detail="secret not available", secret=name, safe_to_retry=False
    )


# A shorter secret is not hidden: texts hold it by chance.
_SHORTEST = 4
HIDDEN = "***"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Hides secrets in a text, also as they look percent-encoded, escaped or in Base64 with something before them."""
    for secret in secrets:
        text = _forms(secret).sub(HIDDEN, text)
    return text


@lru_cache(maxsize=256)
def _forms(secret: str) -> re.Pattern[str]:
    if len(secret) < _SHORTEST:
        return re.compile(r"(?!)")
    forms = {secret, html.escape(secret), html.escape(secret, quote=False), *_json(secret), *_base64(secret.encode())}
    encoded = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    longest = sorted(map(re.escape, forms), key=len, reverse=True)
    # The digits of percent-encoding come in either case.
    either_case = (re.sub(r"%([0-9A-F]{2})", _either_case, re.escape(form)) for form in encoded)
    return re.compile("|".join((*longest, *either_case)))


def _either_case(match: re.Match[str]) -> str:
    return "%" + "".join(f"[{digit}{digit.lower()}]" for digit in match[1])


def _json(secret: str) -> Iterator[str]:
    for ascii_only in (True, False):
        text = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield text
        yield text.replace("/", "\\/")


def _base64(secret: bytes) -> Iterator[str]:
    """Yields what of the Base64 of a text depends on the secret in it alone, for each place that it may have there."""
    for before in range(3):
        # Bytes before it change the first characters; what follows changes the last ones.
        start = -(-before * 8 // 6)
        end = (before + len(secret)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(b"\0" * before + secret)[start:end].decode()
