"""Writes logs: one JSON object a line on standard output, in one form for both services.

Each record begins with `time` (ISO 8601, UTC), `level`, `service` and `event`; facts follow. What libraries send to
`logging` comes out in the same form, from WARNING on. No record ever holds a secret, a token, an argument or a result.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

GATHER_SECONDS: Final = 0.05

# C1 controls, separators of lines, and what turns the direction of text: a terminal would obey them.
_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_encode = msgspec.json.Encoder(enc_hook=str).encode


class LineSink:
    """Writes records, some at a time: a system call for each would be a tenth of what a call costs.

    A record waits for at most 50 ms while an event loop runs, and without one not at all. One that cannot be written is
    lost: `on_lost` is called with how many were, and the service goes on.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.on_lost: Callable[[int], None] | None = None
        self._waiting: list[bytes] = []

    def msg(self, line: bytes) -> None:
        """Takes a record, without its line end."""
        self._waiting.append(line)
        if len(self._waiting) == 1:
            try:
                asyncio.get_running_loop().call_later(GATHER_SECONDS, self.drain)
            except RuntimeError:
                self.drain()

    def drain(self) -> None:
        """Writes what waits."""
        lines, self._waiting = self._waiting, []
        try:
            rest = b"".join(line + b"\n" for line in lines)
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            if self.on_lost is not None:
                self.on_lost(len(lines))

    debug = info = warning = error = critical = msg


# One for all, since loggers are kept once they have been used.
_sink = LineSink(1)


def configure(service: str, level: str, *, descriptor: int = 1, quiet: Iterable[str] = ()) -> LineSink:
    """Sends all records to the descriptor; drain the sink at the end.

    `level` is a level's name. `quiet` are names of loggers of libraries that are heard from ERROR on.
    """
    _sink.descriptor = descriptor
    structlog.configure(
        processors=[_renderer(service)],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: _sink,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)
    for name in quiet:
        logging.getLogger(name).setLevel(logging.ERROR)
    return _sink


def _renderer(service: str) -> Callable[[WrappedLogger, str, EventDict], bytes]:
    def render(logger: WrappedLogger, level: str, event: EventDict) -> bytes:
        if "exc_info" in event:
            event = structlog.processors.format_exc_info(logger, level, event)
        record = {
            "time": datetime.now(UTC),
            "level": level,
            "service": service,
            "event": event.pop("event", ""),
            **event,
        }
        try:
            line = _encode(record)
        except UnicodeEncodeError:  # a lone surrogate in some text
            return json.dumps(record, default=_text).encode("ascii")
        return line if line.isascii() and b"\x7f" not in line else _CONTROL.sub(_escaped, line.decode()).encode()

    return render


def _text(value: object) -> str:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)


def _escaped(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


class _Bridge(logging.Handler):
    """Hands records of the standard library's loggers to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one record on."""
        facts = {"exc_info": record.exc_info} if record.exc_info else {}
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), logger=record.name, **facts)
