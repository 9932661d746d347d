"""Serves `naru doctor`: looks at every link from here to the tools' endpoints, and names the setting that is wrong."""

import asyncio
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import grpc
import msgspec
import typer

from naru.v1 import execution_pb2, registry_pb2
from naru_cli import output as out
from naru_cli.access import Access, Target
from naru_cli.call import Gateway, cause
from naru_cli.channel import open_channel, serving
from naru_cli.command import execution, pages, registry
from naru_cli.endpoints import CONNECT_SECONDS, endpoint_findings
from naru_cli.failures import CliError
from naru_cli.finding import Finding, State
from naru_cli.state import ADMIN_TOKEN_FILE, CREDENTIAL_FILE

EXECUTION = "naru.v1.Execution"
# No tool has such a name: a call of it gets all the way to the process that runs calls, and runs nothing.
NO_TOOL = b'{"name":"naru doctor","arguments":{}}'
NO_CALL = "naru-doctor"


async def examine(access: Access) -> list[Finding]:
    """Looks at the registry, its tools, their endpoints, who runs calls, the gateway and the credential."""
    reached = await asyncio.to_thread(registry_finding, access)
    found = [reached]
    if reached.state is State.OK:
        token, tools = await asyncio.to_thread(list_tools, access)
        found.append(token)
        found += [finding for tool in tools if (finding := activity(tool))]
        found += await endpoint_findings(access, tools)
    found += await asyncio.to_thread(execution_findings, access)
    return found + await gateway_findings(access)


def registry_finding(access: Access) -> Finding:
    remedy = "is the registry running, and is its REGISTRY_BIND this address?"
    return reach(access, access.registry, "registry", "NARU_REGISTRY", remedy)


def execution_findings(access: Access) -> list[Finding]:
    """Looks at the process that runs calls, where it is another one than the registry."""
    if access.execution is access.registry:
        return []
    remedy = "is the process running that runs the calls, and is its REGISTRY_BIND this address?"
    reached = reach(access, access.execution, "execution", "NARU_EXECUTION", remedy, EXECUTION)
    if reached.state is not State.OK or access.execution.token is None:
        return [reached]
    try:
        execution("GetCall", execution_pb2.GetCallRequest(call_id=NO_CALL), access)
    except CliError as error:
        if error.reason != "CALL_NOT_FOUND":
            return [reached, refusal(access.execution, error, "execution", "NARU_EXECUTION")]
    return [reached, Finding("admin token of execution", State.OK, f"accepted ({access.execution.token_from})")]


def reach(access: Access, target: Target, check: str, setting: str, remedy: str, service: str = "") -> Finding:
    """Says if something answers there as a part of Naru; the next look shows if it can serve."""
    try:
        with open_channel(access, target) as channel:
            ready = answers(channel, service)
    except CliError as error:
        return Finding(check, State.WRONG, str(error), setting, remedy)
    if ready is None:
        return Finding(check, State.WRONG, f"nothing answers at {target}", setting, remedy)
    return Finding(check, State.OK, f"{target} is {'serving' if ready else 'up, but not serving'}")


def answers(channel: grpc.Channel, service: str) -> bool | None:
    """Says if the service serves; None when no connection was made in time."""
    try:
        return serving(channel, CONNECT_SECONDS, service)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return None
        raise


def list_tools(access: Access) -> tuple[Finding, list[registry_pb2.Tool]]:
    if access.registry.token is None:
        absent = access.absent("NARU_ADMIN_TOKEN", ADMIN_TOKEN_FILE, access.registry.setting)
        message = f"{absent}: tools and endpoints are not looked at"
        return Finding("admin token", State.WARNING, message, "NARU_ADMIN_TOKEN"), []
    try:
        tools = list(pages(registry, "ListTools", registry_pb2.ListToolsRequest(), "tools", access))
    except CliError as error:
        return refusal(access.registry, error, "registry", "NARU_REGISTRY"), []
    return Finding("admin token", State.OK, f"accepted ({access.registry.token_from}); {len(tools)} tools"), tools


# What is wrong with the registry's database, the setting or place to look at, and what to do, by the fact `cause`.
DATABASE_TROUBLES = {
    "database_unreachable": (
        "the registry cannot reach its database",
        "DATABASE_URL",
        "is the database of the registry's DATABASE_URL running, and its password right?",
    ),
    "database_replaced": (
        "the file of the registry's database was removed or replaced",
        "DATABASE_URL",
        "put it back, or stop the registry, restore the file and start again",
    ),
    "database_read_only": (
        "the registry may not write to its database",
        "DATABASE_URL",
        "is the file or its directory read-only, or is the server a standby?",
    ),
    "database_locked": (
        "another process holds the lock of the registry's database",
        "DATABASE_URL",
        "end what else writes to that file",
    ),
    "database_corrupt": ("the registry's database is damaged", "DATABASE_URL", "restore it from a backup"),
    "disk_full": ("the disk of the registry's database is full", "DATABASE_URL", "make room: it goes on by itself"),
    "disk_error": ("the disk of the registry's database fails", "DATABASE_URL", "look at the registry's log"),
}


def refusal(target: Target, error: CliError, check: str, setting: str) -> Finding:
    cause = error.facts.get("cause")
    if error.reason == "TOKEN_INVALID":
        remedy = "take the value of the registry's REGISTRY_ADMIN_TOKEN"
        token = "admin token" if check == "registry" else f"admin token of {check}"
        return Finding(token, State.WRONG, str(error), target.token_from, remedy)
    if cause == "database_not_migrated":
        remedy = "start one registry process with REGISTRY_AUTO_MIGRATE=true (the default)"
        return Finding(
            "database", State.WRONG, "the registry's database is not migrated", "REGISTRY_AUTO_MIGRATE", remedy
        )
    if isinstance(cause, str) and cause in DATABASE_TROUBLES:
        return Finding("database", State.WRONG, *DATABASE_TROUBLES[cause])
    return Finding(check, State.WRONG, str(error), setting)


def activity(tool: registry_pb2.Tool) -> Finding | None:
    check = f"tool {tool.name}"
    versions = ", ".join(tool.active_versions)
    if len(tool.active_versions) > 1:
        remedy = f"naru tool activate {tool.name} {tool.active_versions[0]} (or another of them)"
        message = f"is ambiguous: {versions} are all active, so that every call is refused"
        return Finding(check, State.WRONG, message, "active versions", remedy)
    if not tool.active_versions:
        remedy = f"naru tool activate {tool.name} VERSION (naru tool show {tool.name} lists them)"
        return Finding(check, State.WARNING, "has no active version", "active versions", remedy)
    return None


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
    readiness = readiness_of(detail)
    if ready != 200:
        return [unready(f"the gateway at {where} is not ready", readiness)]
    if readiness.troubles:
        degraded = unready(f"the gateway at {where} runs calls and nothing else", readiness)
        return [degraded, *await credential_findings(access)]
    return [Finding("gateway", State.OK, f"{where} is ready"), *await credential_findings(access)]


class Readiness(msgspec.Struct):
    """Holds the body of /readyz."""

    status: str = ""
    troubles: list[str] = []


def readiness_of(body: str) -> Readiness:
    try:
        return msgspec.json.decode(body, type=Readiness)
    except msgspec.DecodeError:
        return Readiness()


def unready(what: str, readiness: Readiness) -> Finding:
    told = "; ".join(readiness.troubles) or readiness.status or "it does not say why"
    message = f"{what}: {told}"
    if "GATEWAY_REGISTRY_TOKEN" in told:
        remedy = "take the value of the registry's REGISTRY_SERVICE_TOKEN"
        return Finding("gateway", State.WRONG, message, "GATEWAY_REGISTRY_TOKEN", remedy)
    remedy = "does it (and GATEWAY_EXECUTION, if execution is a process of its own) lead to one that serves?"
    return Finding("gateway", State.WRONG, message, "GATEWAY_REGISTRY", remedy)


async def get(access: Access, path: str) -> tuple[int, str]:
    """Status and the beginning of the body of a path beside the MCP path."""
    url = urlunsplit((*urlsplit(access.url)[:2], path, "", ""))
    timeout = aiohttp.ClientTimeout(total=2 * CONNECT_SECONDS, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as client, client.get(url, allow_redirects=False) as response:
        return response.status, (await response.content.read(4096)).decode(errors="replace").strip()


async def credential_findings(access: Access) -> list[Finding]:
    check = "credential"
    if access.credential is None:
        absent = access.absent("NARU_CREDENTIALS", CREDENTIAL_FILE, access.url_from)
        return [Finding(check, State.WARNING, f"{absent}: no call was tried", "NARU_CREDENTIALS")]
    try:
        await Gateway(access, language="en").request("ping")
    except CliError as error:
        return [credential_trouble(access, error)]
    return [Finding(check, State.OK, f"accepted ({access.credential_from})"), await call_finding(access)]


async def call_finding(access: Access) -> Finding:
    """Says if calls get from the gateway to the process that runs them: it has an address and a token of its own."""
    try:
        await Gateway(access, language="en").request("tools/call", NO_TOOL)
    except CliError as error:
        if error.reason != "TOOL_NOT_FOUND":
            remedy = "do it (else GATEWAY_REGISTRY) and GATEWAY_REGISTRY_TOKEN fit the process that runs calls?"
            return Finding("calls", State.WRONG, f"do not get to where they run: {error}", "GATEWAY_EXECUTION", remedy)
    return Finding("calls", State.OK, "get from the gateway to where they run")


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
        out.show(f"  {finding.check}: {finding.message}")
        if finding.state is not State.OK and finding.setting:
            out.show(f"         → {finding.setting}{': ' + finding.remedy if finding.remedy else ''}")


def is_ill(findings: list[Finding]) -> bool:
    return any(finding.state is State.WRONG for finding in findings)
