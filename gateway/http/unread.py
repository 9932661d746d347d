"""Answers that nobody takes: how long they may wait, and how much memory all of them may hold.

A transport asks its protocol to pause when more is written than the client reads. From then on the connection is
watched, until the client has read nearly all. Connections that are read cost nothing here.
"""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Final, Protocol

# A client has to read this much in `seconds`: one that takes a byte now and then is as bad as one that takes none.
PROGRESS_BYTES: Final = 32 << 10
# How often the connections are looked at, at most this many seconds apart.
_SWEEP_SECONDS: Final = 1.0
# Whoever has read within this time is spared when the memory is full, but not when it is full twice over.
_SPARED_SECONDS: Final = 2.0


class Connection(Protocol):
    """A connection: its transport, and the bytes of an answer that waits until it may be written."""

    transport: asyncio.Transport
    waiting: int


class _Mark:
    """When a connection was last seen to be read, and how much was left then."""

    __slots__ = ("left", "since")

    def __init__(self, since: float, left: int) -> None:
        self.since = since
        self.left = left


# Hears of each connection that is cut, with the bytes that it held and why: "slow" or "full".
OnCut = Callable[[Connection, int, str], None]


def _ignored(_connection: Connection, _held: int, _why: str) -> None:
    pass


class UnreadAnswers:
    """The connections of one process whose clients are behind.

    One that reads less than PROGRESS_BYTES in `seconds` is cut. While all together hold more than `max_bytes`, those
    that nobody has read for a moment are cut, and beyond twice as much whoever has read least recently.
    """

    def __init__(self, seconds: float = 60.0, max_bytes: int = 128 << 20, on_cut: OnCut = _ignored) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._on_cut = on_cut
        self._marks: dict[Connection, _Mark] = {}
        # As of the last look, and what came since.
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._marks)

    def watch(self, connection: Connection) -> None:
        """Watches a connection from now on."""
        held = _held(connection)
        loop = asyncio.get_running_loop()
        self._marks.setdefault(connection, _Mark(loop.time(), held + _in_kernel(connection)))
        self._held += held
        if self._held > self._max_bytes:
            self._look(loop.time())
        self._arm(loop)

    def forget(self, connection: Connection) -> None:
        """Stops watching a connection: it is read, or gone."""
        self._marks.pop(connection, None)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._marks:
            self._timer = loop.call_later(min(_SWEEP_SECONDS, self._seconds / 4), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        self._look(loop.time())
        self._arm(loop)

    def _look(self, now: float) -> None:
        """Takes note of who has read, and cuts who has not."""
        self._held = 0
        for connection, mark in list(self._marks.items()):
            held = _held(connection)
            left = held + _in_kernel(connection)
            if not held:
                self.forget(connection)
            elif left <= mark.left - PROGRESS_BYTES:
                mark.since, mark.left = now, left
            elif now - mark.since >= self._seconds:
                self._cut(connection, held, "slow")
                continue
            else:
                mark.left = max(mark.left, left)
            self._held += held
        if self._held > self._max_bytes:
            self._make_room(now)

    def _make_room(self, now: float) -> None:
        for connection, mark in sorted(self._marks.items(), key=lambda item: item[1].since):
            spared = now - mark.since < _SPARED_SECONDS
            if self._held <= (2 * self._max_bytes if spared else self._max_bytes):
                return
            held = _held(connection)
            self._held -= held
            self._cut(connection, held, "full")

    def _cut(self, connection: Connection, held: int, why: str) -> None:
        """Drops a connection with what is unread: closing it in order would wait for the client for ever."""
        self.forget(connection)
        connection.transport.abort()
        self._on_cut(connection, held, why)


def _held(connection: Connection) -> int:
    return max(connection.transport.get_write_buffer_size(), connection.waiting)


def _in_kernel(connection: Connection) -> int:
    """Returns how many bytes the kernel has for the client. It takes more from us only when a third of them is read."""
    try:
        answer = fcntl.ioctl(connection.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # not every system tells, and it may be closed by now
        return 0
    return int(struct.unpack("i", answer)[0])
