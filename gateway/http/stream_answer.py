"""An answer that is a stream of messages, as SSE or NDJSON, with late commit and keep-alive.

Its task reads messages and writes frames in turn; no task is made for a read, so nothing but a disconnect or the end of
the grace can ever cancel one. What has to be said while the read is pending (a keep-alive, progress that had to wait)
is said by a timer's helper, which is the only other writer: the two take turns.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from starlette.types import Send

from gateway.frame import Frame, Item, Progress
from gateway.http.accept import Carriage
from gateway.http.json_answer import Chosen, JsonAnswer, Observe
from gateway.http.pace import EARLY, Pace


class Patience(NamedTuple):
    """Seconds of silence: before an answer that may be either becomes a stream, and between signs of life of one.

    `on_drop` hears of each progress value that was dropped because it did not rise.
    """

    stream_after: float
    keepalive: float
    on_drop: Callable[[], None]


class _Form(NamedTuple):
    """Describes how messages are written on a stream."""

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


class StreamAnswer(JsonAnswer):
    """A stream of frames; with late commit, only if something has to be said before the last frame.

    Two write: the task of the request, and after some silence a helper that the timer makes. `_busy` tells that one of
    them is writing; the timer leaves the task alone while it does, and the task waits for the helper.
    """

    def __init__(self, send: Send, observe: Observe, chosen: Chosen, carriage: Carriage, patience: Patience) -> None:
        super().__init__(send, observe, chosen)
        self._form = _NDJSON if carriage is Carriage.NDJSON else _SSE
        self._late = carriage is Carriage.LATE
        self._patience = patience
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
            self._patience.on_drop()
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
                self._chosen(Carriage.NDJSON if self._form is _NDJSON else Carriage.SSE)
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
            return min(self._wrote + self._patience.keepalive, self._pace.due())
        return self._began + self._patience.stream_after if self._late else math.inf

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
