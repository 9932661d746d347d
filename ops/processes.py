"""Runs child processes that start together, are watched, and stop in order with the time that they need."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
# Past the grace that a process was given, for closing what it has open.
PATIENCE_SECONDS = 10.0
# The first signal begins a graceful stop, the second one ends it; after that there is no more asking.
HURRY_SECONDS = (1.0, 5.0)
TAIL_LINES = 15


class StopSignals:
    """Hears SIGINT, SIGTERM and SIGHUP: the first asks for a stop, any further one for haste."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.hurry = asyncio.Event()
        self.exit_code = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.heard, number)

    def heard(self, number: signal.Signals) -> None:
        if self.first.is_set():
            self.hurry.set()
            return
        # As a shell reports a process that a signal ended: 130 for Ctrl-C.
        self.exit_code = 128 + number
        self.first.set()


def die_with_parent() -> Callable[[], None] | None:
    """Returns what a child does first: on Linux, ask for SIGTERM when this process is killed. Elsewhere nothing."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Child:
    """Runs `python -m module`, with its output in the file `log`. `grace` in seconds is what it may take to stop."""

    name: str
    module: str
    environ: Mapping[str, str]
    log: Path
    grace: float = 0.0
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    async def start(self) -> None:
        with self.log.open("wb") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self.environ,
                # Out of the terminal's process group: Ctrl-C is for this process, which then stops them in order.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    async def ended(self) -> "Child":
        assert self.process is not None, "not started"  # noqa: S101
        await self.process.wait()
        return self

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            # It may end between the two.
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def obituary(self) -> str:
        """Says why it ended, as far as its exit code and the end of its log show."""
        code = self.process.returncode if self.process else None
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"the {self.name} ended ({how}). The end of {os.path.relpath(self.log)}:", *lines])


async def stop(children: list[Child], hurry: asyncio.Event) -> None:
    """Stops them one after the other, each with its grace; all at once when `hurry` is set. None is left behind."""
    started = [child for child in children if child.process is not None]
    in_order = asyncio.create_task(stop_in_order(started))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({in_order, hurried}, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not in_order.done():
        in_order.cancel()
        await end_all(started)


async def stop_in_order(children: list[Child]) -> None:
    for child in children:
        child.signal(signal.SIGTERM)
        await asyncio.wait({asyncio.create_task(child.ended())}, timeout=child.grace + PATIENCE_SECONDS)
        child.signal(signal.SIGKILL)
        await child.ended()


async def end_all(children: list[Child]) -> None:
    slow = {asyncio.create_task(child.ended()) for child in children}
    for seconds in HURRY_SECONDS:
        for child in children:
            child.signal(signal.SIGTERM)
        _, slow = await asyncio.wait(slow, timeout=seconds)
        if not slow:
            return
    for child in children:
        child.signal(signal.SIGKILL)
    await asyncio.wait(slow)
