"""Keeps the file that `--save` names: known to be writable before there is a credential to lose."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from naru_cli.failures import CliError, Exit

# Writes the credential, for this user alone, and takes its place in one step. Raises OSError.
Write = Callable[[str], None]


@contextmanager
def reserved(path: Path, *, replace: bool) -> Iterator[Write]:
    """Keeps room for a credential at `path`; what is not used is given up at the end. Raises CliError (USAGE)."""
    check(path, replace=replace)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise CliError(f"--save: cannot write {path}: {error.strerror}", Exit.USAGE) from error
    room = Path(name)

    def write(credential: str) -> None:
        os.write(descriptor, f"{credential}\n".encode())
        os.fsync(descriptor)
        if not replace and os.path.lexists(path):
            raise FileExistsError(None, "it is there by now", str(path))
        room.replace(path)

    try:
        yield write
    finally:
        os.close(descriptor)
        with suppress(OSError):
            room.unlink(missing_ok=True)


def check(path: Path, *, replace: bool) -> None:
    if path.is_dir():
        raise CliError(f"--save: {path} is a directory: name a file", Exit.USAGE)
    if not os.path.lexists(path):
        return
    if not replace:
        told = "may hold the credential of another account: name another file, or pass --force to replace it"
        raise CliError(f"--save: {path} exists, and {told}", Exit.USAGE)
    if path.exists() and not path.is_file():
        raise CliError(f"--save: {path} is not a file: leave --save out to see the credential", Exit.USAGE)
