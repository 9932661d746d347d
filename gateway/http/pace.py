"""Paces progress: it is strictly increasing, and sent no faster than clients want to hear of it. Pure."""

import math

from gateway.frame import Progress

BURST = 20
PER_SECOND = 10.0

# Seconds by which timers may fire too early.
EARLY = 0.002


class Pace:
    """Decides when progress may be sent: a burst of 20, then 10 a second, where the latest replaces what waits.

    Times are seconds of any monotonic clock, given by the caller.
    """

    __slots__ = ("_as_of", "_highest", "_tokens", "_waiting")

    def __init__(self, now: float) -> None:
        self._tokens = float(BURST)
        self._as_of = now
        self._highest = -math.inf
        self._waiting: Progress | None = None

    def rises(self, progress: Progress) -> bool:
        """Takes note of a value; False where it does not exceed all before it, and has to be dropped."""
        if not self._highest < progress.value < math.inf:
            return False
        self._highest = progress.value
        return True

    def offer(self, progress: Progress, now: float) -> Progress | None:
        """Gives back what may be sent now; None where it has to wait, see `due`."""
        self._refill(now)
        if self._tokens < 1:
            self._waiting = progress
            return None
        self._tokens -= 1
        self._waiting = None
        return progress

    def due(self) -> float:
        """When what waits may be sent; infinity where nothing waits."""
        return math.inf if self._waiting is None else self._as_of + (1 - self._tokens) / PER_SECOND

    def take(self, now: float) -> Progress | None:
        """Gives back what waits, if its time has come."""
        if self._waiting is None or now + EARLY < self.due():
            return None
        self._refill(now)
        self._tokens -= 1
        return self.flush()

    def flush(self) -> Progress | None:
        """Gives back what waits, whatever its time."""
        waiting, self._waiting = self._waiting, None
        return waiting

    def _refill(self, now: float) -> None:
        self._tokens = min(BURST, self._tokens + (now - self._as_of) * PER_SECOND)
        self._as_of = now
