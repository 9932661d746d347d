"""Scans of large bodies, in processes of their own: a thread would hold the interpreter's lock for 100 ms and more."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator

from gateway.failures.table import Failure
from gateway.mcp.jsonrpc import Message, ProtocolError, Response, decode
from gateway.mcp.scan_process import SIZE, main
from gateway.mcp.strict_json import LARGE

# The number of scans that run at once, and how long a body may wait for its turn and its end.
PROCESSES = 2
WAIT_SECONDS = 15.0
# A process may be killed from outside, for want of memory for instance.
_ATTEMPTS = 2


class _Turn:
    """The lock of an owner, and how many bodies of theirs hold it or wait for it."""

    __slots__ = ("lock", "wanted")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


class Scans:
    """Starts its processes when they are needed first, and keeps them. An owner gets one of them at a time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(PROCESSES)
        self._idle: list[Process] = []
        self._turns: dict[str, _Turn] = {}

    async def decode(self, body: bytes, owner: str) -> Message | Response:
        """Decodes a body as `jsonrpc.decode` does. `owner` is who sent it: others do not queue behind them.

        Raises Failure SERVICE_UNAVAILABLE where no process gets to it in time.
        """
        if fault := await self._fault(body, owner):
            raise ProtocolError("PARSE_ERROR", fault)
        return decode(body, scanned=True)

    async def close(self) -> None:
        """Ends the processes."""
        while self._idle:
            await _kill(self._idle.pop())

    async def _fault(self, body: bytes, owner: str) -> str:
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._turn(owner), self._free:
                for _ in range(_ATTEMPTS):
                    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                        return await self._scan(body)
        except TimeoutError:
            pass
        raise Failure("SERVICE_UNAVAILABLE")

    @contextlib.asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(owner, _Turn())
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[owner]

    async def _scan(self, body: bytes) -> str:
        process = self._idle.pop() if self._idle else await _start()
        try:
            fault = await _ask(process, body)
        except BaseException:
            await _kill(process)
            raise
        self._idle.append(process)
        return fault


def is_large(body: bytes) -> bool:
    """Says whether the scan of a body would hold up others."""
    return len(body) > LARGE


async def _start() -> Process:
    """Starts a process, without the service's environment: there are secrets in it.

    A signal to the service's group, such as Ctrl-C, doesn't reach it: it ends when its input does.
    """
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", main.__module__,
        stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True,
    )  # fmt: skip


async def _ask(process: Process, body: bytes) -> str:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a process without pipes")
    process.stdin.write(SIZE.pack(len(body)))
    process.stdin.write(body)
    await process.stdin.drain()
    (size,) = SIZE.unpack(await process.stdout.readexactly(SIZE.size))
    return (await process.stdout.readexactly(size)).decode()


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
