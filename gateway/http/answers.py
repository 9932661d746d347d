"""Answers: a call's messages as JSON, SSE or NDJSON, with late commit, keep-alive and disconnect.

One answer is carried by the task of its request. It reads messages and writes frames in turn; no task is made for a
read, so nothing but a disconnect or the end of the grace can ever cancel one. What has to be said while the read is
pending (a keep-alive, progress that had to wait) is said by a timer's
helper, which is the only other writer: the two take turns.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from starlette.types import Receive, Scope, Send

from gateway.frame import Frame, Item, Progress
from gateway.http.accept import Carriage
from gateway.http.body import CONNECTION
from gateway.http.pace import EARLY, Pace

# How long a client that does not read may hold up the last frame once the grace is over.
FAREWELL_SECONDS: Final = 1.0
# A last frame of so many bytes counts while it waits: as the registry's message, as frame, and as written.
_LARGE: Final = 64 << 10
_COPIES: Final = 3


# What ends an answer early: None, the grace is over; otherwise what the messages failed with.
Ending: TypeAlias = Callable[[Exception | None], Frame]
# Hears of each Frame that is about to be sent, whether or not anybody still reads it.
Observe: TypeAlias = Callable[[Frame], None]


class _Form(NamedTuple):
    """How messages are written on a stream."""

    headers: tuple[tuple[bytes, bytes], ...]
    before: bytes
    after: bytes
    silence: bytes


def _stream_headers(media_type: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"content-type", media_type),
        (b"cache-control", b"no-cache, no-transform"),
        (b"x-accel-buffering", b"no"),
    )


_SSE = _Form(_stream_headers(b"text/event-stream"), b"event: message\ndata: ", b"\n\n", b": keep-alive\n\n")
_NDJSON = _Form(_stream_headers(b"application/x-ndjson"), b"", b"\n", b"\n")

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def one_line(message: bytes) -> bytes:
    """Writes JSON text so that no reader, however it splits lines, finds a line end in it. The value stays the same."""
    if b"\n" in message or b"\r" in message:  # never inside strings, where JSON forbids them
        message = message.translate(_LINE_ENDS)
    if message.isascii():
        return message
    return (
        message.replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
        .replace(b"\xc2\x85", b"\\u0085")
    )


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


class Answers:
    """The answers that this process is carrying, and how patient it is with them.

    `stream_after` and `keepalive` are seconds of silence. `on_drop` hears of each progress value that was dropped
    because it did not rise.
    """

    def __init__(self, *, stream_after: float, keepalive: float, on_drop: Callable[[], None] = _nothing) -> None:
        self.stream_after = stream_after
        self.keepalive = keepalive
        self.on_drop = on_drop
        self.holds: set[_Hold] = set()
        self.ended = False

    @property
    def open(self) -> int:
        """How many answers are being carried."""
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
    frame where items cannot, and `observe` hears of each frame. A first frame with a status of 400 or more is sent as
    JSON, whatever the carriage. The request's body must have been read.
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
    ) -> None:
        self._answers = answers
        self._items = items
        self._carriage = carriage
        self._cancel_on_disconnect = cancel_on_disconnect
        self._ending = ending
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._carriage is Carriage.JSON:
            page = _Page(send, self._observe)
        else:
            page = _Stream(send, self._observe, self._carriage, self._answers)
        try:
            last = await self._carry(page, scope, receive)
            if last is not None:
                with _waiting(scope, len(last.body)):
                    await page.finish(last)
        finally:
            page.close()
            await self._items.aclose()

    async def _carry(self, page: "_Page", scope: Scope, receive: Receive) -> Frame | None:
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

    async def _interrupted(self, page: "_Page", hold: _Hold) -> None:
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


class _Page:
    """One JSON object: everything but the last frame is passed over."""

    def __init__(self, send: Send, observe: Observe) -> None:
        self._send = send
        self._observe = observe
        self._headers: dict[str, str] = {}

    async def carry(self, items: AsyncGenerator[Item, None]) -> Frame:
        """Writes what comes before the last frame, and gives that back."""
        async for item in items:
            if isinstance(item, Frame):
                if item.last:
                    return item
                self._observe(item)
                self._headers.update(item.headers)
        raise RuntimeError("the messages of an answer ended without a last frame")

    async def finish(self, last: Frame) -> None:
        """Writes the last frame and ends the answer."""
        self._observe(last)
        self._headers.update(last.headers)
        length = b"%d" % len(last.body)
        with suppress(OSError):  # some servers tell so that the client has gone
            await self._open(last.status, ((b"content-type", b"application/json"), (b"content-length", length)))
            await self._send({"type": "http.response.body", "body": last.body})

    def close(self) -> None:
        """Writes nothing of its own accord from now on."""

    async def _open(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        more = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})


class _Stream(_Page):
    """A stream of frames; with late commit, only if something has to be said before the last frame.

    Two write: the task of the request, and after some silence a helper that the timer makes. `_busy` tells that one of
    them is writing; the timer leaves the task alone while it does, and the task waits for the helper.
    """

    def __init__(self, send: Send, observe: Observe, carriage: Carriage, answers: Answers) -> None:
        super().__init__(send, observe)
        self._form = _NDJSON if carriage is Carriage.NDJSON else _SSE
        self._late = carriage is Carriage.LATE
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._began = self._wrote = self._loop.time()
        self._pace = Pace(self._began)
        self._started = self._gone = self._busy = self._closed = False
        self._helper: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._arm()

    async def carry(self, items: AsyncGenerator[Item, None]) -> Frame:
        async for item in items:
            if isinstance(item, Progress):
                await self._report(item)
                continue
            if item.last:
                return item
            self._observe(item)
            self._headers.update(item.headers)
            if item.body:
                await self._write(self._framed(item.body))
            elif self._form is _SSE and not self._late:
                await self._write(b"")
        raise RuntimeError("the messages of an answer ended without a last frame")

    async def finish(self, last: Frame) -> None:
        self._hush()
        await self._alone()
        if not self._started and (self._late or last.status >= 400):
            await super().finish(last)
            return
        self._observe(last)
        self._headers.update(last.headers)
        waiting = self._pace.flush()
        data = self._framed(waiting.message()) if waiting else b""
        if last.body:
            data += self._framed(last.body)
        await self._put(data, more=False, status=last.status)

    def close(self) -> None:
        self._hush()
        if self._helper is not None:
            self._helper.cancel()
            self._helper = None

    def _hush(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _report(self, progress: Progress) -> None:
        if not self._pace.rises(progress):
            self._answers.on_drop()
            return
        ready = self._pace.offer(progress, self._loop.time())
        if ready is None:
            self._arm()
        else:
            await self._write(self._framed(ready.message()))

    def _framed(self, message: bytes) -> bytes:
        return b"".join((self._form.before, one_line(message), self._form.after))

    async def _write(self, data: bytes) -> None:
        await self._alone()
        self._busy = True
        try:
            await self._put(data)
        finally:
            self._busy = False
        self._arm()

    async def _alone(self) -> None:
        """Waits until the helper has written."""
        while self._helper is not None:
            await self._helper

    async def _put(self, data: bytes, *, more: bool = True, status: int = 200) -> None:
        if self._gone:
            return
        try:
            if not self._started:
                await self._open(status, self._form.headers)
                self._started = True
            if data or not more:
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except OSError:  # some servers tell so that the client has gone
            self._gone = True
        self._wrote = self._loop.time()

    def _due(self) -> float:
        """When something has to be said even if the messages stay silent."""
        if self._started:
            return min(self._wrote + self._answers.keepalive, self._pace.due())
        return self._began + self._answers.stream_after if self._late else math.inf

    def _arm(self) -> None:
        due = self._due()
        if self._closed or self._gone or due == math.inf:
            return
        if self._timer is not None:
            if self._timer_due <= due:
                return  # it will look again when it fires
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._busy:
            return  # whoever is writing sets the timer again
        if self._loop.time() + EARLY < self._due():
            self._arm()
            return
        self._busy = True
        self._helper = self._loop.create_task(self._speak())

    async def _speak(self) -> None:
        try:
            waiting = self._pace.take(self._loop.time())
            await self._put(self._framed(waiting.message()) if waiting else self._form.silence)
        finally:
            self._busy = False
            self._helper = None
        self._arm()
