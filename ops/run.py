"""Serves `make run`: the registry, the gateway and the demo tools on this machine, ready to be called.

    python -m examples.run

GATEWAY_BIND, REGISTRY_BIND and DEMO_BIND (host:port, port 0 for a free one) move them, and the rest follows. All state
lies in .naru/ of the current directory: the database, the secrets, the logs, and in demo.credentials the `id:secret` of
an account. Other settings of the services are passed on from the environment.

Ends with 130 after Ctrl-C (a second one hastens), 143 after SIGTERM, 1 if something could not start or ended by itself.
"""

import asyncio
import fcntl
import os
import re
import secrets
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TextIO

import aiohttp
import msgspec

from naru_cli import manifest_file
from naru_cli.access import Access
from naru_cli.call import Gateway, basic, envelope
from naru_cli.failures import CliError
from naru_cli.state import ADMIN_TOKEN_FILE, CREDENTIAL_FILE, RUN_FILE, STATE_DIRECTORY, write_private
from ops.addresses import AddressError, Addresses
from ops.processes import Child, StopSignals, stop
from ops.registration import StartError, apply_manifest, provide_account, renew_secret

START_SECONDS = 60.0
POLL_SECONDS = 0.05
FIRST_ARGUMENTS = '{"text":"안녕하세요"}'
FIRST_CALL = f'{{"name":"text_stats","arguments":{FIRST_ARGUMENTS}}}'
SLOW_CALL = '{"name":"slow_report","arguments":{"seconds":3,"steps":6}}'
# The registry's last words if it cannot read the database file, or if this was filled with another pepper.
DAMAGED = ("file is not a database", "malformed", "this version of Naru does not know", "REGISTRY_PEPPER: the secrets")
# Variables that would lead a service away from this run's own parts.
LEFT_OUT = re.compile(
    r"DATABASE_URL(_FILE)?|REGISTRY_(PEPPER|ADMIN_TOKEN|SERVICE_TOKEN)(_FILE)?|REGISTRY_(SERVICES|TLS_.*)"
    r"|GATEWAY_(EXECUTION|REGISTRY.*)"
)


class State:
    """Names the files in `.naru/`. The directory and all secrets in it are for this user alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self.run = directory / RUN_FILE
        self.credential = directory / CREDENTIAL_FILE
        self.pepper, self.service_token = directory / "pepper", directory / "service.token"
        self.admin_token = directory / ADMIN_TOKEN_FILE

    def make(self) -> None:
        """Raises StartError, OSError."""
        if self.directory.exists() and not self.directory.is_dir():
            raise StartError(f"cannot write {self.directory}/: a file has that name; move it away")
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        for path in (self.pepper, self.service_token, self.admin_token):
            if not path.exists():
                write_private(path, secrets.token_urlsafe(48) + "\n")

    def lock(self) -> TextIO:
        """Keeps a second run out for as long as the file is open; raises StartError."""
        file = (self.directory / "run.lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise StartError(f"another `make run` is using {self.directory}/: stop that one first") from error
        return file

    def holds(self, error: OSError) -> bool:
        """Says if a file of this state is what an error is about."""
        path = Path(error.filename).absolute() if isinstance(error.filename, str | Path) else None
        return path is not None and self.directory.absolute() in (path, *path.parents)


def make_children(state: State, addresses: Addresses, environ: Mapping[str, str]) -> list[Child]:
    """Returns the processes in the order in which they stop: the edge first, so that running calls can end."""
    base = {name: value for name, value in environ.items() if not LEFT_OUT.fullmatch(name)}
    base["PYTHONUNBUFFERED"] = "1"
    gateway = base | {
        "GATEWAY_BIND": str(addresses.gateway),
        "GATEWAY_METRICS_BIND": addresses.gateway_metrics,
        "GATEWAY_REGISTRY": f"dns:///{addresses.registry.reachable()}",
        "GATEWAY_REGISTRY_TOKEN_FILE": str(state.service_token),
    }
    own = base | {
        "REGISTRY_BIND": str(addresses.registry),
        "REGISTRY_METRICS_BIND": addresses.registry_metrics,
        "REGISTRY_PEPPER_FILE": str(state.pepper),
        "REGISTRY_ADMIN_TOKEN_FILE": str(state.admin_token),
        "REGISTRY_SERVICE_TOKEN_FILE": str(state.service_token),
        "REGISTRY_ENDPOINT_NETWORKS": addresses.networks(base.get("REGISTRY_ENDPOINT_NETWORKS", "")),
        "DATABASE_URL": f"sqlite:///{state.directory}/naru.db",
    }
    demo = base | {"DEMO_BIND": str(addresses.demo)}
    return [
        Child("gateway", "gateway", gateway, state.logs / "gateway.log", grace(base, "GATEWAY")),
        Child("registry", "registry_service", own, state.logs / "registry.log", grace(base, "REGISTRY")),
        Child("demo", "examples.demo_tools", demo, state.logs / "demo.log", 5.0),
    ]


def grace(environ: Mapping[str, str], service: str) -> float:
    """Returns what the service allows running calls at its stop; it refuses to start with a value that is no number."""
    with suppress(ValueError):
        return float(environ.get(f"{service}_SHUTDOWN_GRACE_SECONDS") or 20)
    return 20.0


@asynccontextmanager
async def running(children: list[Child], signals: StopSignals) -> AsyncIterator[None]:
    try:
        for child in children:
            await child.start()
        yield
    finally:
        await stop(children, signals.hurry)


async def wait_until_ready(url: str) -> None:
    """Asks until the answer is 200. The caller bounds it."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with client.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(POLL_SECONDS)


class Demo:
    """Does what is left once the processes are up: tools, account, first call, and the text about it."""

    def __init__(self, state: State, addresses: Addresses, environ: Mapping[str, str]) -> None:
        self.state = state
        self.addresses = addresses
        self.noted = {
            "meta_prefix": environ.get("GATEWAY_META_PREFIX", ""),
            "endpoint_ca": environ.get("REGISTRY_ENDPOINT_CA_FILE", ""),
        }
        paths = environ.get("GATEWAY_MCP_PATHS", "/mcp")
        self.url = addresses.gateway.url() + (paths.split(",")[0].strip().rstrip("/") or "/mcp")

    def access(self) -> Access:
        """Reads what the `naru` command will see from this directory."""
        return Access.from_env({}, Path.cwd())

    async def bring_up(self) -> str:
        """Returns the text to show; raises StartError, CliError."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await wait_until_ready(self.addresses.demo.url() + "/healthz")
                await wait_until_ready(self.addresses.gateway.url() + "/readyz")
        except TimeoutError as error:
            raise StartError(f"not ready after {START_SECONDS:g} seconds: see {self.state.logs}/") from error
        run = {"registry": self.addresses.registry.reachable(), "url": self.url}
        run |= {name: value for name, value in self.noted.items() if value}
        write_private(self.state.run, msgspec.json.encode(run).decode() + "\n")
        access = self.access()
        tools = await asyncio.to_thread(apply_manifest, access, self.addresses.demo.url())
        await asyncio.to_thread(provide_account, access, self.state.credential)
        return self.summary(tools, await self.first_call())

    async def first_call(self) -> str:
        """Returns the answer of text_stats, through everything; gets a new secret if the kept one is refused."""
        try:
            return await self.call()
        except CliError as error:
            if error.reason == "ACCOUNT_SUSPENDED":
                return "refused: the demo account is suspended; `naru account resume CLIENT_ID` ends that"
            if error.reason != "UNAUTHENTICATED":
                raise
        await asyncio.to_thread(renew_secret, self.access(), self.state.credential)
        return await self.call()

    async def call(self) -> str:
        body = envelope("tools/call", FIRST_CALL.encode())
        return (await Gateway(self.access(), "en").exchange(body, {"Accept": "application/json"}, 30.0)).result.decode()

    def curl(self, options: str, accept: str, call: str) -> str:
        credential = f'"$(cat {shlex.quote(str(self.state.credential.absolute()))})"'
        body = envelope("tools/call", call.encode()).decode()
        headers = f"-H 'Content-Type: application/json' -H 'Accept: {accept}'"
        return f"curl {options} -u {credential} {headers} -d {shlex.quote(body)} {self.url}"

    def summary(self, tools: int, answer: str) -> str:
        credential = self.state.credential.read_text().strip()
        naru = Path(sys.executable).with_name("naru")
        naru = naru.relative_to(Path.cwd()) if naru.is_relative_to(Path.cwd()) else naru
        return f"""
Naru is up, with {tools} demo tools.

  MCP        {self.url}
  registry   {self.addresses.registry.reachable()}   ({naru} tool list · {naru} call … · {naru} doctor)
  demo       {self.addresses.demo.url()}
  metrics    gateway {self.addresses.gateway_metrics} · registry {self.addresses.registry_metrics}
  logs       {self.state.logs}/
  credential {self.state.credential} (id:secret)

The first call: text_stats {FIRST_ARGUMENTS}
  {answer}

Call it yourself:
{self.curl("-sS", "application/json", FIRST_CALL)}

With progress, as server-sent events:
{self.curl("-sSN", "text/event-stream", SLOW_CALL)}

For the MCP Inspector and the SDKs (Streamable HTTP):
  URL     {self.url}
  Header  Authorization: Bearer {basic(credential).removeprefix("Basic ")}

Ctrl-C stops everything."""


async def until_the_end(children: list[Child], signals: StopSignals, demo: Demo) -> int:
    """Brings the demo up, and returns the exit code when it is over; raises StartError, CliError."""
    stopped = asyncio.create_task(signals.first.wait())
    deaths = {asyncio.create_task(child.ended()) for child in children}
    coming_up = asyncio.create_task(demo.bring_up())
    try:
        await asyncio.wait({stopped, *deaths, coming_up}, return_when=asyncio.FIRST_COMPLETED)
        if coming_up.done():
            say(coming_up.result())
            say("ready")
            await asyncio.wait({stopped, *deaths}, return_when=asyncio.FIRST_COMPLETED)
        for death in deaths:
            if death.done() and not signals.first.is_set():
                raise StartError(obituary(death.result(), demo.state))
    finally:
        for task in (stopped, *deaths, coming_up):
            task.cancel()
    say("\nstopping; running calls may finish (Ctrl-C again to stop at once)")
    return signals.exit_code


def obituary(child: Child, state: State) -> str:
    """Says why a process ended, and what to do if it is the database that keeps it from starting."""
    told = child.obituary()
    if child.name != "registry" or not any(words in told for words in DAMAGED):
        return told
    return f"{told}\n{state.directory}/naru.db cannot be used. {anew(state)}"


def anew(state: State) -> str:
    return f"Removing {state.directory}/ and a new `make run` start anew: its tools, accounts and calls are lost."


def say(text: str) -> None:
    print(text, flush=True)


async def run(state: State) -> int:
    signals = StopSignals()
    state.make()
    with state.lock():
        addresses = Addresses.from_env(os.environ)
        for notice in addresses.notices:
            say(notice)
        children = make_children(state, addresses, os.environ)
        demo = Demo(state, addresses, os.environ)
        say(f"starting; logs in {state.logs}/")
        async with running(children, signals):
            code = await until_the_end(children, signals, demo)
        say("stopped")
    return code


def main() -> int:
    state = State(Path(STATE_DIRECTORY))
    try:
        return asyncio.run(run(state))
    except (StartError, AddressError, CliError, manifest_file.ManifestError) as error:
        sys.stderr.write(f"make run: {error}\n")
    except OSError as error:
        if not state.holds(error):
            raise
        sys.stderr.write(f"make run: cannot write {state.directory}/: {error.filename}: {error.strerror}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
