"""Reads the `.naru/` that a `make run` leaves in its directory: where its processes listen, and its secrets."""

import os
from pathlib import Path

import msgspec

from naru_cli.failures import CliError, Exit

STATE_DIRECTORY = ".naru"
RUN_FILE, ADMIN_TOKEN_FILE, CREDENTIAL_FILE = "run.json", "admin.token", "demo.credentials"
FROM_RUN = f"{STATE_DIRECTORY}/{RUN_FILE}"
ANEW = f"removing {STATE_DIRECTORY}/ and a new `make run` start anew"


def read_run(state: Path) -> dict[str, str]:
    """Returns where the processes of the last `make run` listen: `registry` and `url`; nothing when there was none.

    `endpoint_ca` is its registry's REGISTRY_ENDPOINT_CA_FILE, `meta_prefix` its gateway's GATEWAY_META_PREFIX.
    """
    try:
        return msgspec.json.decode((state / RUN_FILE).read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CliError(f"cannot read {state / RUN_FILE}: {error.strerror}", Exit.USAGE) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{state / RUN_FILE} is damaged ({error}): {ANEW}", Exit.USAGE) from error


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replaces a file, in one step, by one that nobody else may read. Raises OSError."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)


def read_text(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        if path.parent.name == STATE_DIRECTORY:
            reason = f"{reason}; {ANEW}"
        raise CliError(f"{setting}: cannot read {path}: {reason}", Exit.USAGE) from error
