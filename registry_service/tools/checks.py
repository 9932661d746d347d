"""Runs checks of JSON against schemas: on the event loop, or in processes of their own.

The library that checks holds the interpreter's lock, so that a thread would hold up the event loop as well.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator

import msgspec
import structlog

from registry_service.errors import ServiceUnavailableError
from registry_service.tools.check_process import ANSWER, CHECK_SECONDS, REQUEST, main, violations_of
from registry_service.tools.schema_check import SchemaCheck
from registry_service.tools.violation import Violation

# The number of checks that run at once, and how long one may wait for its turn and its end.
PROCESSES = 2
WAIT_SECONDS = 60.0
# The number of checks of one owner that may run and wait: each holds a value of up to 4 MiB.
WAITING = 16
# A process may be killed from outside, for want of memory for instance.
_ATTEMPTS = 2

_TOO_SLOW = f"takes more than {CHECK_SECONDS:.0f} s to check: send shorter texts or fewer elements"
TOO_SLOW = Violation("", _TOO_SLOW, "tooSlow", {"seconds": CHECK_SECONDS})

_decode_violations = msgspec.json.Decoder(list[Violation]).decode
_log = structlog.get_logger()


class _Turn:
    """Holds the lock of an owner, and the number of its checks that hold it or wait for it."""

    __slots__ = ("lock", "wanted")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


class Checks:
    """Starts its processes when they are needed first, and keeps them. An owner gets one of them at a time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(PROCESSES)
        self._idle: list[Process] = []
        self._turns: dict[str, _Turn] = {}

    async def violations(self, check: SchemaCheck, raw: bytes, owner: str) -> list[Violation]:
        """Returns how JSON text breaks a schema. `owner` is who made it large: others don't queue behind him.

        Raises ServiceUnavailableError where no process gets to it in time.
        """
        if check.needs_compiling:
            await asyncio.to_thread(check.compile)
        if check.is_light(raw):
            return violations_of(check, raw)
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._turn(owner), self._free:
                for _ in range(_ATTEMPTS):
                    violations = await self._check(check.schema_json, raw)
                    if violations is not None:
                        return violations
        except TimeoutError:
            pass
        raise ServiceUnavailableError("no process was free to check a large value", cause="checks_busy")

    async def close(self) -> None:
        """Ends the processes. No check may run any more."""
        while self._idle:
            await _kill(self._idle.pop())

    @contextlib.asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(owner, _Turn())
        if turn.wanted == WAITING:
            raise TimeoutError
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[owner]

    async def _check(self, schema: bytes, raw: bytes) -> list[Violation] | None:
        """Returns None when the process died of something else than this check."""
        process = self._idle.pop() if self._idle else await _start()
        try:
            answer = await _ask(process, schema, raw)
        except (asyncio.IncompleteReadError, OSError):
            ended = await process.wait()
            if ended == -signal.SIGPROF:
                return [TOO_SLOW]
            _log.warning("check process died", returncode=ended)
            return None
        except BaseException:
            await _kill(process)
            raise
        self._idle.append(process)
        return _decode_violations(answer)


async def _start() -> Process:
    """Starts a process, without the service's environment: there are secrets in it.

    A signal to the service's group, such as Ctrl-C, doesn't reach it: it ends when its input does.
    """
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    module = main.__module__
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True
    )


async def _ask(process: Process, schema: bytes, raw: bytes) -> bytes:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a process without pipes")
    process.stdin.write(REQUEST.pack(len(schema), len(raw)))
    process.stdin.write(schema)
    process.stdin.write(raw)
    await process.stdin.drain()
    (size,) = ANSWER.unpack(await process.stdout.readexactly(ANSWER.size))
    return await process.stdout.readexactly(size)


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
