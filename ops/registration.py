"""Makes what the demo leaves in a registry: its tools, and an account whose credential lies in a file."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from naru.v1 import accounts_pb2, registry_pb2
from naru_cli import manifest_file
from naru_cli.access import Access
from naru_cli.command import accounts, registry
from naru_cli.failures import CliError, Exit
from naru_cli.state import write_private
from ops.addresses import Addresses

MANIFEST = Path(__file__).parents[1] / "examples" / "tools.yaml"
# Where the manifest's versions are at home; see `labelled`.
HOMES = (Addresses.DEMO_URL, "http://demo:9000")


class StartError(Exception):
    """Says what keeps the demo from running, in words for the person at the terminal."""


def apply_manifest(access: Access, demo_url: str) -> int:
    """Registers and activates the tools of the manifest; returns how many. Raises StartError, CliError."""
    text = labelled(manifest_file.read(MANIFEST, {"DEMO_URL": demo_url}).text, demo_url)
    answer = registry("ApplyManifest", registry_pb2.ApplyManifestRequest(manifest=text), access)
    if answer.faults:
        faults = "\n".join(f"  {fault.pointer} {fault.tool}: {fault.message}" for fault in answer.faults)
        raise StartError(f"{MANIFEST.name} was refused:\n{faults}")
    return len(answer.changes)


def labelled(manifest: bytes, demo_url: str) -> bytes:
    """Gives tools at another address than the usual ones versions of their own (1.0.0+127.0.0.1.9100).

    A version is immutable, its endpoint too. So a moved demo is another version, and moving back is a switch back.
    """
    if demo_url in HOMES:
        return manifest
    label = re.sub(r"[^a-z0-9]+", ".", urlsplit(demo_url).netloc.lower()).strip(".")
    content = msgspec.json.decode(manifest)
    for tool in content["tools"]:
        tool["version"] += f"+{label}"
    return msgspec.json.encode(content)


def provide_account(access: Access, credential: Path) -> None:
    """Keeps the account whose `id:secret` lies in the file, if the registry still knows it; else makes one."""
    if credential.exists():
        client_id = credential.read_text(errors="replace").partition(":")[0].strip()
        try:
            accounts("GetAccount", accounts_pb2.GetAccountRequest(client_id=client_id), access)
        except CliError as error:
            # INVALID: the file is damaged, and the registry says that this is no client id.
            if error.code not in (Exit.NOT_FOUND, Exit.INVALID):
                raise
        else:
            return
    save(
        accounts("CreateAccount", accounts_pb2.CreateAccountRequest(display_name="demo", plan="standard"), access),
        credential,
    )


def renew_secret(access: Access, credential: Path) -> None:
    """Gives the account of the file a new secret."""
    client_id = credential.read_text().partition(":")[0]
    save(accounts("RotateSecret", accounts_pb2.RotateSecretRequest(client_id=client_id), access), credential)


def save(answer: accounts_pb2.CreateAccountResponse | accounts_pb2.RotateSecretResponse, credential: Path) -> None:
    write_private(credential, f"{answer.account.client_id}:{answer.secret}\n")
