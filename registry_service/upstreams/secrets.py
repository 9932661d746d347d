"""Secrets that endpoints' headers name as `${secret:name}`: one file each in one directory, as Docker and Kubernetes
mount them. They are never in the database, in a log or in a failure."""

import os
import re
from pathlib import Path

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
