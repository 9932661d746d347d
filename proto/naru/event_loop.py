"""Measures how late an event loop runs, and finds out what held it up. Both services use it.

Everything in a service shares one loop, so that whatever computes for long holds up all the rest.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from threading import Event, Thread, get_ident
from types import FrameType, TracebackType
from typing import Final

import structlog

BEAT_SECONDS: Final = 0.1
# A beat that is so late is reported.
LATE_SECONDS: Final = 0.25
# So many seconds pass between two reports.
QUIET_SECONDS: Final = 10.0
# Buckets for a histogram of lateness in seconds.
LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_MAX_FRAMES: Final = 8

_log = structlog.get_logger()


class LoopWatch:
    """A context manager for use in a running loop, whose beat it measures.

    `observe` gets the lateness of each beat in seconds, ten times a second. What held up the loop is logged, at most
    once in QUIET_SECONDS. While a beat is late, a thread looks at the stack of the loop's thread: at names only, never
    at values.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._due = 0.0
        self._cpu = 0.0
        self._stack: tuple[str, ...] = ()
        self._quiet_until = 0.0
        self._unreported = 0
        self._thread_id = 0
        self._ended = Event()

    def __enter__(self) -> "LoopWatch":
        self._loop = asyncio.get_running_loop()
        self._thread_id = get_ident()
        self._await_beat(time.monotonic())
        self._watcher = Thread(target=self._watch, name="event loop watch", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._ended.set()
        self._watcher.join()

    def _await_beat(self, now: float) -> None:
        self._cpu = time.thread_time()
        self._due = now + BEAT_SECONDS
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        now = time.monotonic()
        late = max(now - self._due, 0.0)
        stack, self._stack = self._stack, ()
        self._observe(late)
        if late > LATE_SECONDS:
            self._note(now, late, stack)
        self._await_beat(now)

    def _note(self, now: float, late: float, stack: tuple[str, ...]) -> None:
        if now < self._quiet_until:
            self._unreported += 1
            return
        _log.warning(
            "event loop held up",
            seconds=round(late, 3),
            # Much less than `seconds` when the machine, or another thread, was what held it up.
            cpu_seconds=round(time.thread_time() - self._cpu, 3),
            stack=stack,
            unreported=self._unreported,
        )
        self._quiet_until = now + QUIET_SECONDS
        self._unreported = 0

    def _watch(self) -> None:
        """Takes the first stack of each time that the loop is late, before it is so late that it is reported."""
        while not self._ended.wait(BEAT_SECONDS):
            if not self._stack and time.monotonic() > self._due + BEAT_SECONDS:
                self._stack = _names(sys._current_frames().get(self._thread_id))


def _names(frame: FrameType | None) -> tuple[str, ...]:
    names: list[str] = []
    while frame is not None and len(names) < _MAX_FRAMES:
        code = frame.f_code
        names.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(names)
