"""Tells operators what this service may call and which secrets it has, before a call needs them."""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from registry_service.errors import RequestInvalidError, ToolUnreachableError
from registry_service.tools.http_endpoint import SECRET
from registry_service.upstreams.egress import Guard, Network
from registry_service.upstreams.secrets import SecretFiles

RESOLVE_SECONDS = 3.0
# Whatever the settings may say: what even this refuses is never called.
_ANY = Guard((ip_network("0.0.0.0/0"), ip_network("::/0")))


class Reach:
    """Answers for the process that it is part of. In a split deployment both need the same settings."""

    def __init__(self, networks: Sequence[Network], secrets_dir: Path | None) -> None:
        self._guard = Guard(networks)
        self._secrets = SecretFiles(secrets_dir)

    async def obstacle(self, url: str) -> str:
        """Returns in English why the URL's host may not be called; empty if one of its addresses may.

        Nothing is connected to. Raises RequestInvalidError for what isn't a URL with a host.
        """
        host, port = _server(url)
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError):
            return f"{host} does not resolve"
        addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
        if any(map(self._guard.allows, addresses)):
            return ""
        shown = ", ".join(addresses)
        if not any(map(_ANY.allows, addresses)):
            return f"{shown} is never called, as link-local and metadata addresses are"
        return f"REGISTRY_ENDPOINT_NETWORKS does not admit {shown}"

    def unknown_secrets(self, texts: Iterable[str]) -> list[str]:
        """Returns the names of the secrets in texts of a definition which this service lacks, each once."""
        names = dict.fromkeys(name for text in texts for name in SECRET.findall(text))
        return [name for name in names if not self.has_secret(name)]

    def has_secret(self, name: str) -> bool:
        """Returns whether a call of this process gets a secret of this name."""
        try:
            self._secrets.read(name)
        except ToolUnreachableError:
            return False
        return True


def _server(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or parts.scheme not in ("http", "https"):
        raise RequestInvalidError("url is not one of http or https with a host", field="url", detail="wanted: a URL")
    return host, port or (443 if parts.scheme == "https" else 80)
