"""`naru doctor`: looks at every link from here to the tools' endpoints, and names the setting that is wrong."""

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import grpc
import msgspec
import typer

from naru.v1 import registry_pb2
from registry_service.cli.access import Access, CliError, open_channel, serving
from registry_service.cli.call import Gateway, cause
from registry_service.cli.command import pages, registry

CONNECT_SECONDS = 3.0


class State(StrEnum):
    OK = "ok"
    # Something could not be looked at, or may be meant so.
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look told. `setting` names what to change, `remedy` says how."""

    check: str
    state: State
    message: str
    setting: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class Server(NamedTuple):
    host: str
    port: int


async def examine(access: Access) -> list[Finding]:
    """Looks at the registry, its tools, their endpoints, the gateway and the credential."""
    reached = await asyncio.to_thread(registry_finding, access)
    found = [reached]
    if reached.state is State.OK:
        token, tools = await asyncio.to_thread(list_tools, access)
        found.append(token)
        found += [finding for tool in tools if (finding := activity(tool))]
        found += await endpoint_findings(access, tools)
    return found + await gateway_findings(access)


def registry_finding(access: Access) -> Finding:
    """Whether something answers as a registry service; whether it can serve is told by the next look."""
    where = f"{access.registry} ({access.registry_from})"
    remedy = "is the registry running, and is its REGISTRY_BIND this address?"
    try:
        with open_channel(access) as channel:
            ready = answers(channel)
    except CliError as error:
        return Finding("registry", State.WRONG, str(error), "NARU_REGISTRY", remedy)
    if ready is None:
        return Finding("registry", State.WRONG, f"nothing answers at {where}", "NARU_REGISTRY", remedy)
    state = "serving" if ready else "up, but not serving"
    return Finding("registry", State.OK, f"{where} is {state}")


def answers(channel: grpc.Channel) -> bool | None:
    """Whether the registry serves; None when no connection was made in time."""
    try:
        return serving(channel, CONNECT_SECONDS)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return None
        raise


def list_tools(access: Access) -> tuple[Finding, list[registry_pb2.Tool]]:
    if access.admin_token is None:
        message = "NARU_ADMIN_TOKEN is not set: tools and endpoints are not looked at"
        return Finding("admin token", State.WARNING, message, "NARU_ADMIN_TOKEN"), []
    try:
        tools = list(pages(registry, "ListTools", registry_pb2.ListToolsRequest(), "tools", access))
    except CliError as error:
        return refusal(access, error), []
    return Finding("admin token", State.OK, f"accepted ({access.admin_token_from}); {len(tools)} tools"), tools


def refusal(access: Access, error: CliError) -> Finding:
    cause = error.facts.get("cause")
    if error.reason == "TOKEN_INVALID":
        remedy = "take the value of the registry's REGISTRY_ADMIN_TOKEN"
        return Finding("admin token", State.WRONG, str(error), access.admin_token_from, remedy)
    if cause == "database_not_migrated":
        remedy = "start the registry with REGISTRY_AUTO_MIGRATE=true, or migrate the database with Alembic"
        return Finding(
            "database", State.WRONG, "the registry's database is not migrated", "REGISTRY_AUTO_MIGRATE", remedy
        )
    if cause == "database_unreachable":
        remedy = "is the database of the registry's DATABASE_URL running, and its password right?"
        return Finding("database", State.WRONG, "the registry cannot reach its database", "DATABASE_URL", remedy)
    return Finding("registry", State.WRONG, str(error), "NARU_REGISTRY")


def activity(tool: registry_pb2.Tool) -> Finding | None:
    check = f"tool {tool.name}"
    versions = ", ".join(tool.active_versions)
    if len(tool.active_versions) > 1:
        remedy = f"naru tool activate {tool.name} {tool.active_versions[0]} (or another of them)"
        message = f"is ambiguous: {versions} are all active, so that every call is refused"
        return Finding(check, State.WRONG, message, "active versions", remedy)
    if not tool.active_versions:
        return Finding(check, State.WARNING, "has no active version", "active versions", f"naru tool show {tool.name}")
    return None


async def endpoint_findings(access: Access, tools: list[registry_pb2.Tool]) -> list[Finding]:
    servers: dict[Server, list[str]] = {}
    for name, server in await asyncio.to_thread(lambda: list(endpoints(access, tools))):
        users = servers.setdefault(server, [])
        if name not in users:
            users.append(name)
    trouble = State.WRONG if is_local(access.registry) else State.WARNING
    return list(await asyncio.gather(*(endpoint_finding(server, users, trouble) for server, users in servers.items())))


def endpoints(access: Access, tools: list[registry_pb2.Tool]) -> Iterator[tuple[str, Server]]:
    """Each active version's tool with the server of each of its lanes."""
    for tool in tools:
        for version in tool.active_versions:
            request = registry_pb2.GetToolVersionRequest(tool=tool.name, version=version)
            definition: dict[str, Any] = msgspec.json.decode(registry("GetToolVersion", request, access).definition)
            for lane in definition.get("endpoint", {}).values():
                url = urlsplit(lane["url"])
                yield tool.name, Server(url.hostname or "", url.port or (443 if url.scheme == "https" else 80))


def is_local(target: str) -> bool:
    """Whether the registry runs on this machine, so that it sees what the doctor sees."""
    host = target.rpartition("/")[2].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return target.startswith("unix:")


async def endpoint_finding(server: Server, users: list[str], trouble: State) -> Finding:
    check = f"endpoint {server.host}:{server.port}"
    setting = "the endpoint's url in the manifest"
    used = f"used by {', '.join(users[:5])}{' …' if len(users) > 5 else ''}"
    elsewhere = "" if trouble is State.WRONG else " from this machine; the registry runs on another and may see more"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
            _, writer = await asyncio.open_connection(server.host, server.port)
            writer.close()
    except socket.gaierror:
        remedy = "correct the host name, or the name server"
        return Finding(check, trouble, f"{server.host} does not resolve{elsewhere}; {used}", setting, remedy)
    except (OSError, TimeoutError):
        remedy = "is the tool's server running?"
        return Finding(check, trouble, f"nothing listens{elsewhere}; {used}", setting, remedy)
    private = any(not ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_global for address in found)
    guard = "; it is a private address, which REGISTRY_ENDPOINT_NETWORKS must admit" if private else ""
    return Finding(check, State.OK, f"reachable, {used}{guard}")


async def gateway_findings(access: Access) -> list[Finding]:
    where = f"{access.url} ({access.url_from})"
    remedy = "is the gateway running, and is its GATEWAY_BIND this address?"
    try:
        alive, _ = await get(access, "/healthz")
        ready, detail = await get(access, "/readyz")
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return [Finding("gateway", State.WRONG, f"nothing answers at {where}: {cause(error)}", "NARU_URL", remedy)]
    if alive != 200:
        message = f"what answers at {where} is not Naru's gateway (HTTP {alive} for /healthz)"
        return [Finding("gateway", State.WRONG, message, "NARU_URL", remedy)]
    if ready != 200:
        return [unready(where, detail)]
    return [Finding("gateway", State.OK, f"{where} is ready"), await credential_finding(access)]


class Readiness(msgspec.Struct):
    """The body of /readyz."""

    status: str = ""
    troubles: list[str] = []


def unready(where: str, body: str) -> Finding:
    try:
        readiness = msgspec.json.decode(body, type=Readiness)
    except msgspec.DecodeError:
        readiness = Readiness()
    told = "; ".join(readiness.troubles) or readiness.status or "it does not say why"
    message = f"the gateway at {where} is not ready: {told}"
    if "GATEWAY_REGISTRY_TOKEN" in told:
        remedy = "take the value of the registry's REGISTRY_SERVICE_TOKEN"
        return Finding("gateway", State.WRONG, message, "GATEWAY_REGISTRY_TOKEN", remedy)
    return Finding("gateway", State.WRONG, message, "GATEWAY_REGISTRY", "does it lead to a registry that serves?")


async def get(access: Access, path: str) -> tuple[int, str]:
    """Status and the beginning of the body of a path beside the MCP path."""
    url = urlunsplit((*urlsplit(access.url)[:2], path, "", ""))
    timeout = aiohttp.ClientTimeout(total=2 * CONNECT_SECONDS, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as client, client.get(url, allow_redirects=False) as response:
        return response.status, (await response.content.read(4096)).decode(errors="replace").strip()


async def credential_finding(access: Access) -> Finding:
    check = "credential"
    if access.credential is None:
        return Finding(check, State.WARNING, "NARU_CREDENTIALS is not set: no call was tried", "NARU_CREDENTIALS")
    try:
        await Gateway(access, language="en").request("ping")
    except CliError as error:
        return credential_trouble(access, error)
    return Finding(check, State.OK, f"accepted ({access.credential_from})")


def credential_trouble(access: Access, error: CliError) -> Finding:
    settings = {
        "UNAUTHENTICATED": (access.credential_from, "`naru account rotate CLIENT_ID` shows a new secret"),
        "ACCOUNT_SUSPENDED": (access.credential_from, "`naru account resume CLIENT_ID` ends the suspension"),
        "AUTHORIZATION_MALFORMED": (access.credential_from, "it is id:secret, in one line"),
        "PATH_NOT_FOUND": ("NARU_URL", "its path must be one of the gateway's GATEWAY_MCP_PATHS"),
        "HOST_NOT_ALLOWED": ("GATEWAY_ALLOWED_HOSTS", "add the host of NARU_URL to it"),
        "TOKEN_INVALID": ("GATEWAY_REGISTRY_TOKEN", "take the value of the registry's REGISTRY_SERVICE_TOKEN"),
        "SERVICE_UNAVAILABLE": ("GATEWAY_REGISTRY", "does it lead to a registry that serves?"),
    }
    setting, remedy = settings.get(error.reason, ("NARU_URL", ""))
    return Finding("credential", State.WRONG, str(error), setting, remedy)


MARKS = {
    State.OK: ("ok     ", typer.colors.GREEN),
    State.WARNING: ("warning", typer.colors.YELLOW),
    State.WRONG: ("WRONG  ", typer.colors.RED),
}


def show(findings: list[Finding]) -> None:
    for finding in findings:
        mark, color = MARKS[finding.state]
        typer.secho(mark, fg=color, nl=False)
        typer.echo(f"  {finding.check}: {finding.message}")
        if finding.state is not State.OK and finding.setting:
            typer.echo(f"         → {finding.setting}{': ' + finding.remedy if finding.remedy else ''}")


def is_ill(findings: list[Finding]) -> bool:
    return any(finding.state is State.WRONG for finding in findings)
