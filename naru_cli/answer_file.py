"""Keeps the file that `naru call --output` names: known to be writable before there is an answer to lose."""

import os
from pathlib import Path

from naru_cli.failures import CliError, Exit


def check(path: Path) -> None:
    """Raises CliError (USAGE) for a path that cannot be written."""
    if path.is_dir():
        raise CliError(f"--output: {path} is a directory: name a file", Exit.USAGE)
    if not path.parent.is_dir():
        raise CliError(f"--output: {path.parent} isn't a directory that exists", Exit.USAGE)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise CliError(f"--output: cannot write {path}: permission denied", Exit.USAGE)


def names(path: Path, count: int) -> list[Path]:
    """Returns a path for each part of an answer: `code.png`, then `code.2.png` and so on, which replace no file."""
    found = [path]
    number = 1
    while len(found) < count:
        number += 1
        further = path.with_name(f"{path.stem}.{number}{path.suffix}")
        if not os.path.lexists(further):
            found.append(further)
    return found[:count]
