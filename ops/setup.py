"""Does what `docker compose up` needs once, before and after the services start.

    python -m ops.setup secrets     makes the secrets, into the volumes of those who need them
    python -m ops.setup register    applies the demo manifest, and makes a demo account

Both leave alone what is there already. `register` reads NARU_REGISTRY, NARU_ADMIN_TOKEN_FILE and DEMO_URL. It waits for
a registry that starts at the same time, as after `docker compose restart`.
"""

import os
import secrets
import sys
import time
from pathlib import Path

from naru_cli import manifest_file
from naru_cli.access import Access
from naru_cli.failures import CliError, Exit
from naru_cli.state import write_private
from ops.registration import StartError, apply_manifest, provide_account

ROOT = Path("/run/naru")
CREDENTIALS = ROOT / "demo" / "credentials"
# The official image reads its password as a user of its own, from a volume that nobody else mounts but this script.
READABLE = 0o444
# How long a registry may be out of reach, and how often it is asked.
PATIENCE_SECONDS = 120.0
PAUSE_SECONDS = 1.0


def make_secrets(root: Path = ROOT) -> None:
    """Writes whatever secret is missing. The last file of each is written last, so that a crash leaves nothing half."""
    password = kept(root / "database" / "password", READABLE)
    service_token = kept(root / "gateway" / "service_token")
    kept(root / "registry" / "pepper")
    kept(root / "admin" / "token")
    for path, text in {
        root / "registry" / "service_token": service_token,
        root / "registry" / "database_url": f"postgresql://naru:{password}@postgres/naru",
    }.items():
        write_private(path, text + "\n")


def kept(path: Path, mode: int = 0o600) -> str:
    """Returns the secret in the file, which is made if need be."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(48) + "\n", mode)
    return path.read_text().strip()


def register() -> None:
    # The credential of the environment is the one that is made here.
    environ = {name: value for name, value in os.environ.items() if name != "NARU_CREDENTIALS"}
    access = Access.from_env(environ, Path("/"))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            tools = apply_manifest(access, os.environ["DEMO_URL"])
            provide_account(access, CREDENTIALS)
            break
        except CliError as error:
            if error.code is not Exit.UNREACHABLE or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)
    print(f"{tools} demo tools are registered; the credential of the demo account lies in {CREDENTIALS}", flush=True)


def main() -> int:
    steps = {"secrets": make_secrets, "register": register}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        sys.stderr.write(f"usage: python -m ops.setup {'|'.join(steps)}\n")
        return 2
    try:
        steps[sys.argv[1]]()
    except (StartError, CliError, manifest_file.ManifestError) as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
