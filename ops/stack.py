"""Runs the pair as processes on free ports, for tests, the conformance suite and the bench: start, wait, stop, kill.

Everything listens on a free port of 127.0.0.1, which its `… ready` log line names, and keeps its files in a directory
of the caller's. Every wait is bounded; what a failure says holds the end of the process's log.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ops.admin import Admin

ROOT = Path(__file__).resolve().parents[1]
READY_SECONDS = 30.0
# Above the grace that the services get here, so that only a process that hangs is killed.
STOP_SECONDS = 20.0
GRACE_SECONDS = 10
_POLL_SECONDS = 0.02
_OWN_SETTINGS = ("GATEWAY_", "REGISTRY_", "NARU_", "DEMO_", "DATABASE_URL", "PYTHONPATH")

T = TypeVar("T")


class ProcessError(Exception):
    """Says that a process did not start, stop or answer as it must; the text holds the end of its log."""


def wait_for(condition: Callable[[], T | None], seconds: float, what: str) -> T:
    """Asks again and again until the answer is true, and returns it. Raises ProcessError when the time is over."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            raise ProcessError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(_POLL_SECONDS)
    return answer


class Process:
    """Watches one running process. Its output, both streams, is the file `log`."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.address = ""
        with self.log.open("ab") as log:
            self._start = log.tell()
            self.popen = subprocess.Popen(  # noqa: S603 -- modules of this project
                command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def records(self) -> list[dict[str, Any]]:
        """Returns the JSON log lines so far. The last line may still be on its way, and is then left out."""
        with self.log.open("rb") as log:
            log.seek(self._start)
            lines = log.read().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def tail(self, lines: int = 40) -> str:
        """Returns the end of the log, for the text of a failure."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_ready(self, seconds: float = READY_SECONDS) -> str:
        """Waits for the log line `<anything> ready`, keeps its address and returns it."""
        self.address = self._wait(self._ready_address, seconds, "its ready line")
        return self.address

    def wait_exit(self, seconds: float = STOP_SECONDS) -> int:
        """Waits for the end of the process and returns its exit code (negative: the signal's number)."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.name} did not end within {seconds:g} s\n{self.tail()}") from None

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Sends SIGTERM and returns the exit code. A process that does not obey is killed, and reported."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.wait_exit(seconds)
        except ProcessError:
            self.kill()
            raise

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self.popen.kill()
        self.wait_exit()

    def _ready_address(self) -> str | None:
        for record in self.records():
            if str(record.get("event", "")).endswith(" ready") and "address" in record:
                return str(record["address"])
        return None

    def _wait(self, condition: Callable[[], T | None], seconds: float, what: str) -> T:
        def checked() -> T | None:
            ended = self.popen.poll() is not None
            answer = condition()
            if not answer and ended:
                raise ProcessError(f"{self.name} ended with {self.popen.returncode} before {what}\n{self.tail()}")
            return answer

        try:
            return wait_for(checked, seconds, f"{self.name}: {what}")
        except ProcessError as error:
            if self.popen.poll() is not None:
                raise
            raise ProcessError(f"{error}\n{self.tail()}") from None


class Stack:
    """Runs the pair, of as many processes as a test starts, over one database. A context manager, which stops them all.

    `database_url` is an SQLite file in `directory` unless one is given. The secrets are new for each stack.
    """

    def __init__(self, directory: Path, database_url: str = "") -> None:
        self.directory = directory
        self.database_url = database_url or f"sqlite:///{directory / 'naru.db'}"
        self.admin_token = secrets.token_urlsafe(32)
        self.service_token = secrets.token_urlsafe(32)
        self.pepper = secrets.token_urlsafe(48)
        self.processes: list[Process] = []
        self.registries: list[Process] = []
        self.gateways: list[Process] = []
        self._admins: list[Admin] = []

    def __enter__(self) -> "Stack":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, module: str, *arguments: str, name: str = "", settings: Mapping[str, str] | None = None) -> Process:
        """Starts `python -m module` and returns at once. Settings of the surrounding environment do not reach it."""
        name = f"{name or module}-{len(self.processes)}"
        command = [sys.executable, "-m", module, *arguments]
        process = Process(name, command, {**_clean_environment(), **(settings or {})}, self.directory)
        self.processes.append(process)
        return process

    def start(self, module: str, *arguments: str, settings: Mapping[str, str] | None = None) -> Process:
        """Starts `python -m module` and waits until it is ready."""
        process = self.run(module, *arguments, settings=settings)
        process.wait_ready()
        return process

    def run_registry(self, **settings: str) -> Process:
        """Starts a registry service and returns at once. Settings are environment variables that add or replace."""
        registry = self.run("registry_service", name="registry", settings={**self.registry_settings(), **settings})
        self.registries.append(registry)
        return registry

    def registry(self, **settings: str) -> Process:
        """Starts a registry service and waits until it is ready."""
        registry = self.run_registry(**settings)
        registry.wait_ready()
        return registry

    def gateway(self, *registries: Process, **settings: str) -> Process:
        """Starts a gateway in front of these registries (all that run, if none is named); waits until it is ready."""
        targets = registries or [registry for registry in self.registries if registry.popen.poll() is None]
        environment = {**self.gateway_settings([registry.address for registry in targets]), **settings}
        gateway = self.run("gateway", name="gateway", settings=environment)
        self.gateways.append(gateway)
        gateway.wait_ready()
        return gateway

    def registry_settings(self) -> dict[str, str]:
        return {
            "REGISTRY_BIND": "127.0.0.1:0",
            "REGISTRY_METRICS_BIND": "127.0.0.1:0",
            "DATABASE_URL": self.database_url,
            "REGISTRY_PEPPER": self.pepper,
            "REGISTRY_ADMIN_TOKEN": self.admin_token,
            "REGISTRY_SERVICE_TOKEN": self.service_token,
            "REGISTRY_ENDPOINT_NETWORKS": "127.0.0.0/8",
            "REGISTRY_SHUTDOWN_GRACE_SECONDS": str(GRACE_SECONDS),
        }

    def gateway_settings(self, registries: list[str]) -> dict[str, str]:
        return {
            "GATEWAY_BIND": "127.0.0.1:0",
            "GATEWAY_METRICS_BIND": "127.0.0.1:0",
            "GATEWAY_REGISTRY": f"ipv4:{','.join(registries)}",
            "GATEWAY_REGISTRY_TOKEN": self.service_token,
            "GATEWAY_SHUTDOWN_GRACE_SECONDS": str(GRACE_SECONDS),
        }

    def admin(self, registry: Process | None = None) -> Admin:
        """Returns an admin client of one registry, the first that runs unless it is named; closed with the stack."""
        registry = registry or next(process for process in self.registries if process.popen.poll() is None)
        admin = Admin(registry.address, self.admin_token)
        self._admins.append(admin)
        return admin

    def close(self) -> None:
        """Stops what runs: all but registries at once, then these. Raises ProcessError for what had to be killed."""
        for admin in self._admins:
            admin.close()
        others = [process for process in self.processes if process not in self.registries]
        faults = [*_stop_all(others), *_stop_all(self.registries)]
        if faults:
            raise ProcessError("\n".join(faults))


def _stop_all(processes: list[Process]) -> Iterator[str]:
    """Tells all of them, then waits for each; yields what was wrong."""
    running = [process for process in processes if process.popen.poll() is None]
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            process.popen.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait_exit()
        except ProcessError as error:
            process.kill()
            yield str(error)


def _clean_environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_SETTINGS)}
    # This checkout's code, wherever an editable install points to.
    return {**inherited, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto"))), "PYTHONUNBUFFERED": "1"}
