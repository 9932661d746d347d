"""Processes with a ledger, for tests that kill them."""

import asyncio
from collections.abc import Awaitable, Callable


class LedgerProcess:
    """ledger_process.py, and what it has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.admitted: set[str] = set()
        self.settled: set[str] = set()
        self.executor = ""

    async def told(self) -> str:
        """Reads one line and returns its first word; empty at the end."""
        assert self._process.stdout is not None
        word, _, value = (await self._process.stdout.readline()).decode().strip().partition(" ")
        if word == "executor":
            self.executor = value
        elif word in ("admitted", "settled"):
            getattr(self, word).add(value)
        return word

    async def kill(self) -> None:
        """With SIGKILL. Then reads all that it had told before."""
        self._process.kill()
        while await self.told():
            pass
        await self._process.wait()


async def holding(start_process: Callable[[str], Awaitable[LedgerProcess]]) -> LedgerProcess:
    """A process with calls that run."""
    process: LedgerProcess = await start_process("hold")
    async with asyncio.timeout(20):
        while await process.told() != "holding":
            pass
    return process
