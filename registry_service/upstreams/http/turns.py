"""Keeps one answer from taking the event loop from all others.

An answer costs work: framing, decompression, cutting to frames. Most cost a millisecond and are never held up. One
that costs much more (an endpoint that sends without end, or makes every byte expensive) goes on in turns: one such
answer at a time, for a slice each, with a rest between two slices.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

# How long an answer may work before the event loop sees to others.
SLICE_SECONDS = 0.001
# An answer may cost so much before it has to wait for turns. A large one may cost more: so much for each MiB.
# With time, a part of each second is forgiven.
ALLOWANCE_SECONDS = 0.005
MEBIBYTE_SECONDS = 0.016
FORGIVEN = 0.01
# Between two turns, for each second that the first has taken: all answers that wait for turns get a fifth of the event
# loop together.
REST = 4


class Turns:
    """Calls back those who wait, one at a time and in order."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._rest_until = float("-inf")

    def ask(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` once, when it is its turn; never before this returns."""
        self._waiting.append(go_on)
        self._arrange()

    async def wait(self) -> None:
        """Returns when it is the caller's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ask(lambda: None if turn.done() else turn.set_result(None))
        await turn

    def charge(self, seconds: float) -> None:
        """Counts what was done in a turn: the next one begins so much later."""
        self._rest_until = max(self._rest_until, asyncio.get_running_loop().time()) + REST * seconds

    def _arrange(self) -> None:
        if self._timer is None and self._waiting:
            loop = asyncio.get_running_loop()
            # At least a slice later: what a turn has cost is known only when it is over.
            self._timer = loop.call_at(max(loop.time() + SLICE_SECONDS, self._rest_until), self._next)

    def _next(self) -> None:
        self._timer = None
        if self._rest_until <= asyncio.get_running_loop().time():
            self._waiting.popleft()()
        self._arrange()


class Effort:
    """Counts how much time of the event loop one answer has taken so far."""

    __slots__ = ("_at", "_spent")

    def __init__(self) -> None:
        self._spent = 0.0
        self._at = perf_counter()

    def add(self, seconds: float, turns: Turns) -> None:
        """Counts work that was just done, against the turns too once there was too much of it."""
        now = perf_counter()
        if self._spent > 0:
            self._spent = max(0.0, self._spent - (now - self._at) * FORGIVEN)
        self._spent += seconds
        self._at = now
        if self.is_great:
            turns.charge(seconds)

    def credit(self, size: int) -> None:
        """Allows what it takes to bring so many bytes of content."""
        self._spent -= size * (MEBIBYTE_SECONDS / (1 << 20))

    @property
    def is_great(self) -> bool:
        return self._spent > ALLOWANCE_SECONDS


class Pace:
    """Says for one answer when others go first."""

    def __init__(self, effort: Effort, turns: Turns) -> None:
        self._effort = effort
        self._turns = turns
        self._since = perf_counter()
        self._at_a_stretch = 0.0

    def waited(self) -> None:
        """Says that others have had their turn, while there was nothing to do."""
        self._at_a_stretch = 0.0
        self._since = perf_counter()

    async def rest(self) -> None:
        """Counts the work since the last rest or wait. Lets others go first, once it was enough for that."""
        now = perf_counter()
        worked = now - self._since
        self._since = now
        self._effort.add(worked, self._turns)
        self._at_a_stretch += worked
        if self._at_a_stretch < SLICE_SECONDS:
            return
        if self._effort.is_great:
            await self._turns.wait()
        else:
            await asyncio.sleep(0)
        self.waited()

    def credit(self, size: int) -> None:
        """Says that so many bytes of content have come."""
        self._effort.credit(size)

    @property
    def in_turns(self) -> bool:
        """True once the answer has to wait for turns."""
        return self._effort.is_great
