"""Streaming answers of endpoints: NDJSON and Server-Sent Events.

A frame is a JSON object: `{"progress": n, "total"?: n, "message"?: text}` any number of times, then `{"result": …}` or
`{"error": …}`. Whatever else is sent, a line of a log or an event that keeps the connection alive, is passed over and
counted. Pure: bytes are fed in chunks that may be cut anywhere, within a character or between CR and LF.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError
from registry_service.upstreams import strict_json
from registry_service.upstreams.http.media_type import Kind, Media, decode_text
from registry_service.upstreams.upstream import OnProgress

# A whole stream may hold so many results of the greatest size: progress adds up over an hour.
STREAM_FACTOR = 8


class _Frame(msgspec.Struct):
    progress: int | float | None = None
    total: int | float | None = None
    message: str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class Final(NamedTuple):
    """The frame that ends a stream: the JSON text of the result or of the error."""

    text: str
    is_error: bool


# As the text of an `error` that there is none of.
_NOTHING = (b"", b"null")
_decode_frame = msgspec.json.Decoder(_Frame).decode


class StreamedAnswer:
    """Reads one streaming answer. `limit` bounds one frame, and STREAM_FACTOR times that the whole, in bytes."""

    def __init__(self, media: Media, limit: int, on_progress: OnProgress | None) -> None:
        """Raises ToolResponseInvalidError for a charset that nobody knows."""
        # The encoding of an event stream is UTF-8, whatever its label says.
        self._charset = media.charset if media.kind is Kind.NDJSON else ""
        decode_text(b"", self._charset)
        self._frames = _Ndjson(limit) if media.kind is Kind.NDJSON else _Events(limit)
        self._limit = limit
        self._rest = limit * STREAM_FACTOR
        self._on_progress = on_progress
        # The number of events that were no frame, and of progress frames that were not passed on.
        self.passed_over = 0
        self.spared = 0

    def feed(self, chunk: bytes, *, sparing: bool = False) -> Final | None:
        """Takes the next bytes and returns the last frame once it is there.

        Of the progress in them only the last is passed on if `sparing`. Raises ToolResponseInvalidError for a last
        frame that can be read in two ways, ResultTooLargeError.
        """
        self._rest -= len(chunk)
        if self._rest < 0:
            raise ResultTooLargeError(limit_bytes=self._limit * STREAM_FACTOR)
        return self._first_final(self._frames.feed(chunk), sparing=sparing)

    def finish(self) -> Final:
        """Says that no bytes follow. Raises ToolResponseInvalidError where there was no result."""
        final = self._first_final(self._frames.finish())
        if final is None:
            passed_over = f"{self.passed_over} lines or events were not frames"
            raise ToolResponseInvalidError(passed_over, detail="the stream ended without a result")
        return final

    def _first_final(self, frames: Iterable[bytes], *, sparing: bool = False) -> Final | None:
        last: _Frame | None = None
        final = None
        for raw in frames:
            frame = self._read(raw)
            if isinstance(frame, Final):
                final = frame
                break
            if frame is None or frame.progress is None:
                continue
            if not sparing:
                self._report(frame)
                continue
            self.spared += last is not None
            last = frame
        if last is not None:
            self._report(last)
        return final

    def _read(self, raw: bytes) -> _Frame | Final | None:
        text = self._text(raw)
        try:
            frame = None if text is None else _decode_frame(text)
        except msgspec.ValidationError:
            pass  # may be a result beside something else
        except (msgspec.DecodeError, RecursionError):
            frame = text = None
        else:
            if frame is not None and not bytes(frame.result) and bytes(frame.error) in _NOTHING:
                return frame
        final = None if text is None else _final(text)
        self.passed_over += final is None
        return final

    def _text(self, raw: bytes) -> bytes | None:
        try:
            return strict_json.without_lone_surrogates(decode_text(raw, self._charset)).encode()
        except ToolResponseInvalidError:
            return None

    def _report(self, frame: _Frame) -> None:
        if frame.progress is not None and self._on_progress is not None:
            self._on_progress(frame.progress, frame.total, frame.message or "")


def _final(text: bytes) -> Final | None:
    try:
        members = strict_json.members(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if (error := members.get("error", b"")) not in _NOTHING:
        return Final(error.decode(), is_error=True)
    return Final(members["result"].decode(), is_error=False) if "result" in members else None


class _Lines:
    """Cuts chunks to lines. Linear, however many chunks a line comes in."""

    def __init__(self, ends: re.Pattern[bytes], limit: int) -> None:
        self._split = ends.split
        self._limit = limit
        # One buffer, not a list: of a line in tiny chunks, each would cost many times its size.
        self._partial = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        *whole, partial = self._split(chunk)
        if whole and self._partial:
            self._partial += whole[0]
            whole[0] = bytes(self._partial)
            self._partial.clear()
        self._partial += partial
        if len(self._partial) > self._limit or any(len(line) > self._limit for line in whole):
            raise ResultTooLargeError(limit_bytes=self._limit)
        return whole

    def finish(self) -> bytes:
        return bytes(self._partial)


class _Ndjson:
    def __init__(self, limit: int) -> None:
        # A CR is white space in JSON, and so needs no care.
        self._lines = _Lines(re.compile(rb"\n"), limit)

    def feed(self, chunk: bytes) -> list[bytes]:
        return [line for line in self._lines.feed(chunk) if line.strip()]

    def finish(self) -> list[bytes]:
        last = self._lines.finish()
        return [last] if last.strip() else []


class _Events:
    """Events of a `text/event-stream`, their data only."""

    def __init__(self, limit: int) -> None:
        self._lines = _Lines(re.compile(rb"\r\n|\r|\n"), limit)
        self._limit = limit
        self._after_cr = False
        self._begun = False
        self._data = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk.startswith(b"\n"):
            # The other half of a CRLF whose CR has ended a line already.
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        return self._dispatch(self._lines.feed(chunk))

    def finish(self) -> list[bytes]:
        """A last event without its blank line counts: whether it is whole, its JSON tells."""
        return self._dispatch((self._lines.finish(), b""))

    def _dispatch(self, lines: Iterable[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if not self._begun:
                self._begun = True
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line:
                event = bytes(self._data[:-1])
                self._data.clear()
                if event.strip():
                    events.append(event)
            elif line.startswith(b"data:"):
                self._add(line[5:].removeprefix(b" "))
        return events

    def _add(self, data: bytes) -> None:
        self._data += data
        self._data += b"\n"
        if len(self._data) > self._limit:
            raise ResultTooLargeError(limit_bytes=self._limit)
