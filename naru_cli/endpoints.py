"""Looks, for `naru doctor`, at where the active versions lead: servers of endpoints, and secrets."""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from naru.v1 import registry_pb2, registry_pb2_grpc
from naru_cli.access import Access
from naru_cli.command import connected
from naru_cli.failures import CliError, Exit
from naru_cli.finding import Finding, State

CONNECT_SECONDS = 3.0
SECRET = re.compile(r"\$\{secret:[^}]+\}")
URL = "the endpoint's url in the manifest"
# What OpenSSL says of a chain that ends in an authority which isn't known here; the registry may know it.
UNKNOWN_AUTHORITY = frozenset([2, 18, 19, 20, 21])


class Server(NamedTuple):
    host: str
    port: int
    tls: bool


@dataclass
class Use:
    """Holds a server's URL and the tools that use it. `obstacle` is why the registry may not call it, if it may not."""

    url: str
    tools: list[str] = field(default_factory=list)
    obstacle: str = ""


class Uses:
    """Holds which tools use a server or lack a secret, in the order in which they were met."""

    def __init__(self) -> None:
        self.servers: dict[Server, Use] = {}
        self.secrets: dict[str, list[str]] = {}
        self.lacking: dict[str, list[str]] = {}

    def add(self, tool: str, definition: dict[str, Any]) -> None:
        for lane in definition.get("endpoint", {}).values():
            url = urlsplit(lane["url"])
            tls = url.scheme == "https"
            server = Server(url.hostname or "", url.port or (443 if tls else 80), tls)
            add_to(self.servers.setdefault(server, Use(lane["url"])).tools, tool)
            for secret in secrets_of(lane):
                add_to(self.secrets.setdefault(secret, []), tool)


def add_to(users: list[str], tool: str) -> None:
    if tool not in users:
        users.append(tool)


def secrets_of(lane: dict[str, Any]) -> Iterator[str]:
    for text in (lane["url"], *lane.get("headers", {}).values()):
        yield from SECRET.findall(text)


def used_by(tools: list[str]) -> str:
    return f"used by {', '.join(tools[:5])}{' …' if len(tools) > 5 else ''}"


async def endpoint_findings(access: Access, tools: list[registry_pb2.Tool]) -> list[Finding]:
    uses, trouble = await asyncio.to_thread(look_up, access, tools)
    looks = (endpoint_finding(access, server, use) for server, use in uses.servers.items())
    return [*trouble, *await asyncio.gather(*looks), *map(secret_finding, uses.lacking, uses.lacking.values())]


def look_up(access: Access, tools: list[registry_pb2.Tool]) -> tuple[Uses, list[Finding]]:
    """Returns what the active versions use and what the registry says of it, as far as they could be read."""
    uses = Uses()
    try:
        with connected(registry_pb2_grpc.RegistryStub, access) as ask:
            for tool in tools:
                for version in tool.active_versions:
                    found = ask("GetToolVersion", registry_pb2.GetToolVersionRequest(tool=tool.name, version=version))
                    uses.add(tool.name, msgspec.json.decode(found.definition))
            for use in uses.servers.values():
                use.obstacle = ask("CheckEndpoint", registry_pb2.CheckEndpointRequest(url=use.url)).detail
            # A secret of a header is asked for in the query of a URL: the registry looks no further than for its name.
            for secret, users in uses.secrets.items():
                request = registry_pb2.CheckEndpointRequest(url=f"http://localhost/?{secret}")
                for name in ask("CheckEndpoint", request).unknown_secrets:
                    uses.lacking[name] = users
    except CliError as error:
        return uses, [Finding("endpoints", State.WARNING, f"not all could be looked at: {error}")]
    return uses, []


def secret_finding(name: str, users: list[str]) -> Finding:
    message = f"the registry does not have it; {used_by(users)}"
    return Finding(f"secret {name}", State.WRONG, message, "REGISTRY_SECRETS_DIR", f"it must hold a file {name}")


def is_local(target: str) -> bool:
    """Says if the registry runs on this machine, so that it sees what the doctor sees."""
    host = target.rpartition("/")[2].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return target.startswith("unix:")


async def endpoint_finding(access: Access, server: Server, use: Use) -> Finding:
    """Says if something listens at a server that the registry may call; asks nothing that it may not."""
    check = f"endpoint {server.host}:{server.port}"
    used = used_by(use.tools)
    if use.obstacle:
        setting = "REGISTRY_ENDPOINT_NETWORKS" if "REGISTRY_ENDPOINT_NETWORKS" in use.obstacle else URL
        remedy = (
            "name another server" if setting == URL else "set it for the registry, to networks that hold the address"
        )
        return Finding(check, State.WRONG, f"not called: {use.obstacle}; {used}", setting, remedy)
    local = is_local(access.registry.address)
    elsewhere = "" if local else " from this machine; the registry runs on another and may see more"
    trouble = await connection_trouble(server, access.endpoint_ca)
    if trouble is None:
        return Finding(check, State.OK, f"reachable, {used}")
    message = f"{trouble.what}{elsewhere}; {used}"
    return Finding(check, State.WRONG if local else State.WARNING, message, trouble.setting, trouble.remedy)


class Trouble(NamedTuple):
    what: str
    setting: str
    remedy: str


async def connection_trouble(server: Server, authorities: str) -> Trouble | None:
    """Connects, and with `https` shakes hands; returns what went wrong. `authorities` names a file of private ones."""
    tls = trusting(authorities) if server.tls else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(server.host, server.port, ssl=tls)
    except socket.gaierror:
        return Trouble(f"{server.host} does not resolve", URL, "correct the host name, or the name server")
    except ssl.SSLCertVerificationError as error:
        return certificate_trouble(error)
    except ssl.SSLError as error:
        return Trouble(f"no TLS is spoken there ({error.reason})", URL, "does the server speak https on this port?")
    except (OSError, TimeoutError):
        return Trouble("nothing listens", URL, "is the tool's server running?")
    writer.close()
    return None


def trusting(authorities: str) -> ssl.SSLContext:
    """Returns what trusts the system's authorities and those of the file. Raises CliError (USAGE)."""
    context = ssl.create_default_context()
    if authorities:
        try:
            context.load_verify_locations(authorities)
        except OSError as error:
            message = f"NARU_ENDPOINT_CA_FILE: cannot read {authorities}: {error.strerror or error}"
            raise CliError(message, Exit.USAGE) from error
    return context


def certificate_trouble(error: ssl.SSLCertVerificationError) -> Trouble:
    what = f"its certificate isn't trusted ({error.verify_message})"
    if error.verify_code in UNKNOWN_AUTHORITY:
        remedy = "it must hold the authority's certificate, if that is a private one"
        return Trouble(what, "REGISTRY_ENDPOINT_CA_FILE", remedy)
    return Trouble(what, URL, "the server needs a valid certificate for its name")
