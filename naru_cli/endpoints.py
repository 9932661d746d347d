"""`naru doctor` on where the active versions lead: their endpoints' servers, and the secrets that they name."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from naru.v1 import registry_pb2, registry_pb2_grpc
from naru_cli.access import Access, CliError
from naru_cli.command import connected
from naru_cli.finding import Finding, State
from registry_service.upstreams.egress import Guard, Network

CONNECT_SECONDS = 3.0
SECRET = re.compile(r"\$\{secret:([^}]+)\}")
URL = "the endpoint's url in the manifest"
PUBLIC = Guard(())
# Whatever REGISTRY_ENDPOINT_NETWORKS may say: what even this refuses is never called.
ANY = Guard((ipaddress.IPv4Network("0.0.0.0/0"), ipaddress.IPv6Network("::/0")))


class Server(NamedTuple):
    host: str
    port: int


class Uses:
    """Which tools use a server or a secret, in the order in which they were met."""

    def __init__(self) -> None:
        self.servers: dict[Server, list[str]] = {}
        self.secrets: dict[str, list[str]] = {}

    def add(self, tool: str, definition: dict[str, Any]) -> None:
        for lane in definition.get("endpoint", {}).values():
            url = urlsplit(lane["url"])
            server = Server(url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
            add_to(self.servers.setdefault(server, []), tool)
            for secret in secrets_of(lane):
                add_to(self.secrets.setdefault(secret, []), tool)


def add_to(users: list[str], tool: str) -> None:
    if tool not in users:
        users.append(tool)


def secrets_of(lane: dict[str, Any]) -> Iterator[str]:
    for value in lane.get("headers", {}).values():
        yield from SECRET.findall(value)


def used_by(tools: list[str]) -> str:
    return f"used by {', '.join(tools[:5])}{' …' if len(tools) > 5 else ''}"


async def endpoint_findings(access: Access, tools: list[registry_pb2.Tool]) -> list[Finding]:
    uses, trouble = await asyncio.to_thread(look_up, access, tools)
    looks = (endpoint_finding(access, server, users) for server, users in uses.servers.items())
    return [*trouble, *await asyncio.gather(*looks), *map(secret_finding, uses.secrets, uses.secrets.values())]


def look_up(access: Access, tools: list[registry_pb2.Tool]) -> tuple[Uses, list[Finding]]:
    """What the active versions use, as far as they could be read; over one connection."""
    uses = Uses()
    try:
        with connected(registry_pb2_grpc.RegistryStub, access) as ask:
            for tool in tools:
                for version in tool.active_versions:
                    found = ask("GetToolVersion", registry_pb2.GetToolVersionRequest(tool=tool.name, version=version))
                    uses.add(tool.name, msgspec.json.decode(found.definition))
    except CliError as error:
        return uses, [Finding("endpoints", State.WARNING, f"not all could be looked at: {error}")]
    return uses, []


def secret_finding(name: str, users: list[str]) -> Finding:
    message = f"cannot be looked at from here; {used_by(users)}"
    return Finding(f"secret {name}", State.WARNING, message, "REGISTRY_SECRETS_DIR", f"it must hold a file {name}")


def is_local(target: str) -> bool:
    """Whether the registry runs on this machine, so that it sees what the doctor sees."""
    host = target.rpartition("/")[2].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return target.startswith("unix:")


async def endpoint_finding(access: Access, server: Server, users: list[str]) -> Finding:
    """Whether the registry may call the server, and whether something listens there; asks nothing that it may not."""
    check = f"endpoint {server.host}:{server.port}"
    used = used_by(users)
    local = is_local(access.registry.address)
    trouble = State.WRONG if local else State.WARNING
    elsewhere = "" if local else " from this machine; the registry runs on another and may see more"
    try:
        addresses = await resolved(server)
    except (socket.gaierror, TimeoutError):
        remedy = "correct the host name, or the name server"
        return Finding(check, trouble, f"{server.host} does not resolve{elsewhere}; {used}", URL, remedy)
    if not any(map(ANY.allows, addresses)):
        message = f"{', '.join(addresses)} is never called, as link-local and metadata addresses are; {used}"
        return Finding(check, State.WRONG, message, URL, "name another server")
    if not await listens(server):
        remedy = "is the tool's server running?"
        return Finding(check, trouble, f"nothing listens{elsewhere}; {used}", URL, remedy)
    return guarded(check, access, addresses, used)


async def resolved(server: Server) -> list[str]:
    """The addresses of a server, each once; raises socket.gaierror, TimeoutError."""
    async with asyncio.timeout(CONNECT_SECONDS):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


async def listens(server: Server) -> bool:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(server.host, server.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def guarded(check: str, access: Access, addresses: list[str], used: str) -> Finding:
    """A server that is reachable: whether the registry's guard lets it be called, too."""
    if any(map(PUBLIC.allows, addresses)):
        return Finding(check, State.OK, f"reachable, {used}")
    setting, shown = "REGISTRY_ENDPOINT_NETWORKS", ", ".join(addresses)
    if access.networks is None:
        message = f"reachable from here, but called only if REGISTRY_ENDPOINT_NETWORKS admits {shown}; {used}"
        return Finding(check, State.WARNING, message, setting, f"look whether the registry's holds {shown}")
    if any(map(Guard(networks(access.networks)).allows, addresses)):
        return Finding(check, State.OK, f"reachable, {used}")
    message = f"reachable, but not called: {shown} is in none of {access.networks}; {used}"
    return Finding(check, State.WRONG, message, setting, "set it for `make run`, to networks that hold the address")


def networks(text: str) -> list[Network]:
    """What a `make run` noted of its registry's REGISTRY_ENDPOINT_NETWORKS, which that registry has accepted."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]
