"""Answers: a call's messages on their way to the client, until the last, a disconnect or the end of the grace."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final, TypeAlias

from starlette.types import Receive, Scope, Send

from gateway.frame import Frame, Item
from gateway.http.accept import Carriage
from gateway.http.body import CONNECTION
from gateway.http.json_answer import Chosen, JsonAnswer, Observe
from gateway.http.stream_answer import Patience, StreamAnswer

# How long a client that does not read may hold up the last frame once the grace is over.
FAREWELL_SECONDS: Final = 1.0
# A last frame of so many bytes counts while it waits: as the registry's message, as frame, and as written.
_LARGE: Final = 64 << 10
_COPIES: Final = 3


# Makes the last frame of an answer that ends early. It gets None when the grace is over, otherwise the failure.
Ending: TypeAlias = Callable[[Exception | None], Frame]


class _Why(Enum):
    GONE = "the client has gone"
    ENDING = "the grace is over"


class _Hold:
    """The means to interrupt the task that carries an answer, and to tell that from any other cancellation."""

    __slots__ = ("_cancelling", "_task", "why")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an answer is carried by a task")
        self._task = task
        self._cancelling = task.cancelling()
        self.why: _Why | None = None

    def interrupt(self, why: _Why) -> None:
        if self.why is None:
            self.why = why
            self._task.cancel()

    def release(self) -> bool:
        """Takes our own cancellation back; False where somebody else has asked for one too."""
        return self._task.uncancel() <= self._cancelling


def _nothing() -> None:
    pass


def _ignore(_frame: Frame) -> None:
    pass


def _unheard(_carriage: Carriage) -> None:
    pass


class Answers:
    """The answers that this process is carrying, and how patient it is with them.

    `stream_after` and `keepalive` are seconds of silence. `on_drop` hears of each progress value that was dropped
    because it did not rise.
    """

    def __init__(self, *, stream_after: float, keepalive: float, on_drop: Callable[[], None] = _nothing) -> None:
        self.patience = Patience(stream_after, keepalive, on_drop)
        self.holds: set[_Hold] = set()
        self.ended = False

    @property
    def open(self) -> int:
        """Returns the number of answers that are being carried."""
        return len(self.holds)

    def hold(self) -> _Hold:
        """Takes note that the current task carries an answer."""
        hold = _Hold()
        self.holds.add(hold)
        return hold

    def end_all(self) -> None:
        """Ends every answer with its ending, now and from now on: the grace is over."""
        self.ended = True
        for hold in self.holds:
            hold.interrupt(_Why.ENDING)


class Answer:
    """An ASGI response that carries `items`, which end in exactly one last Frame, to the client.

    With `cancel_on_disconnect`, items are cancelled (CancelledError is raised inside) as soon as the client goes;
    without, they run on to their end unheard. They are closed once the last frame was sent. `ending` supplies the last
    frame where items cannot; `observe` hears of each frame, and `chosen` of the form. A first frame with a status of
    400 or more is sent as JSON, whatever the carriage. The request's body must have been read.
    """

    def __init__(
        self,
        answers: Answers,
        items: AsyncGenerator[Item, None],
        carriage: Carriage,
        *,
        cancel_on_disconnect: bool,
        ending: Ending,
        observe: Observe = _ignore,
        chosen: Chosen = _unheard,
    ) -> None:
        self._answers = answers
        self._items = items
        self._carriage = carriage
        self._cancel_on_disconnect = cancel_on_disconnect
        self._ending = ending
        self._observe = observe
        self._chosen = chosen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._carriage is Carriage.JSON:
            page = JsonAnswer(send, self._observe, self._chosen)
        else:
            page = StreamAnswer(send, self._observe, self._chosen, self._carriage, self._answers.patience)
        try:
            last = await self._carry(page, scope, receive)
            if last is not None:
                with _waiting(scope, len(last.body)):
                    await page.finish(last)
        finally:
            page.close()
            await self._items.aclose()

    async def _carry(self, page: JsonAnswer, scope: Scope, receive: Receive) -> Frame | None:
        """Carries all but the last frame, and gives that back; None where nothing is left to be said."""
        if self._answers.ended:
            return self._ending(None)
        hold = self._answers.hold()
        watch = asyncio.create_task(_watch(scope, receive, hold)) if self._cancel_on_disconnect else None
        failure: Exception | None = None
        try:
            last = await page.carry(self._items)
            if hold.why is None:
                return last
        except asyncio.CancelledError:
            if hold.why is None:
                raise
        except Exception as error:  # noqa: BLE001  the outermost border of an answer: `ending` reports it
            failure = error
        finally:
            self._answers.holds.discard(hold)
            if watch is not None:
                watch.cancel()
        if hold.why is None:
            return self._ending(failure)
        await self._interrupted(page, hold)
        return None

    async def _interrupted(self, page: JsonAnswer, hold: _Hold) -> None:
        if not hold.release():
            raise asyncio.CancelledError
        page.close()
        if hold.why is _Why.ENDING:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await page.finish(self._ending(None))


@contextmanager
def _waiting(scope: Scope, size: int) -> Iterator[None]:
    """Makes known how much a large answer holds while the client is not ready to take it."""
    connection = scope.get(CONNECTION) if size >= _LARGE else None
    if connection is not None:
        connection.waiting = _COPIES * size
    try:
        yield
    finally:
        if connection is not None:
            connection.waiting = 0


async def _watch(scope: Scope, receive: Receive, hold: _Hold) -> None:
    if connection := scope.get(CONNECTION):
        connection.expect_departure()
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a body that nobody reads
    hold.interrupt(_Why.GONE)
