"""Runs a `make run` of its own for tests: on free ports, with its state in a directory of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

READY_SECONDS = 60.0
STOP_SECONDS = 60.0
_OWN_SETTINGS = ("GATEWAY_", "REGISTRY_", "NARU_", "DEMO_", "DATABASE_URL")
BINDS = ("GATEWAY_BIND", "REGISTRY_BIND", "DEMO_BIND", "GATEWAY_METRICS_BIND", "REGISTRY_METRICS_BIND")
FREE_PORTS = dict.fromkeys(BINDS, "127.0.0.1:0")


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without Naru's settings, with those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_SETTINGS)}
    return {**kept, **settings}


class Run:
    """Runs `python -m ops.run` in `directory`; a context manager that waits for `ready`, and stops it.

    It leads a process group, as `make run` does at a terminal. `settings` are environment variables.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] = FREE_PORTS) -> None:
        self.directory = directory
        self.output = directory / "run.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ops.run"],
                cwd=directory,
                env=environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def __enter__(self) -> "Run":
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_ready(self) -> None:
        self.wait_line("ready")

    def wait_line(self, line: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while line not in self.text.splitlines():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text}"
            assert time.monotonic() < deadline, f"no line {line!r}:\n{self.text}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
