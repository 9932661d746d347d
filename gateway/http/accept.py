"""Media types: what a client admits in an answer, and what it may send. Pure (RFC 9110, 12.5.1)."""

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

JSON = "application/json"
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"

# Longer headers are parsed each time, so that nobody can fill the cache with megabytes.
_CACHED_LENGTH = 256
_CACHE_SIZE = 1024

# Possessive throughout: a header is read once from left to right, whatever it holds.
_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_QUOTED = r'"(?:[^"\\]++|\\.)*+"'
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*(?:({_WORD})=({_WORD}|{_QUOTED}))?")
_TYPE = re.compile(rf"[ \t]*({_WORD})/({_WORD})")
_QVALUE = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
# What is left of a malformed member; a quote that is never closed takes the rest.
_SKIP = re.compile(r'(?:"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^,"])*+')
_END = re.compile(r"[ \t]*(?:,|$)")


class Carriage(Enum):
    """How an answer travels. LATE: as JSON if the result comes first, as SSE otherwise."""

    JSON = "json"
    SSE = "sse"
    NDJSON = "ndjson"
    LATE = "late"


class Accept(NamedTuple):
    """What an Accept header admits.

    `carriage` is None where nothing can be produced for it. `json_only`: it names application/json and admits neither
    text/event-stream nor */*, as Agent Builder does. `only_sse`, `only_ndjson`: it admits that form alone.
    """

    carriage: Carriage | None
    json_only: bool = False
    only_sse: bool = False
    only_ndjson: bool = False


class _MediaType(NamedTuple):
    kind: str
    subtype: str
    parameters: dict[str, str]


def accept(header: str | None) -> Accept:
    """Reads an Accept header; the caller joins repeated lines with a comma. Absent or empty admits everything."""
    if header is None:
        return _ANYTHING
    return _cached(header) if len(header) <= _CACHED_LENGTH else _read(header)


def single(carriage: Carriage) -> Carriage:
    """How an answer travels that is one message for certain."""
    return Carriage.JSON if carriage is Carriage.LATE else carriage


def content_type_ok(value: str | None) -> bool:
    """Tells whether a Content-Type says JSON (or JSON-RPC) in UTF-8."""
    if value is None:
        return False
    return _content_type_ok(value) if len(value) <= _CACHED_LENGTH else False


_ANYTHING = Accept(Carriage.JSON)


def _read(header: str) -> Accept:
    ranges = [(f"{media.kind}/{media.subtype}", _quality(media)) for media in _media_types(header)]
    if not ranges and not header.strip(" \t,"):
        return _ANYTHING
    json, sse, ndjson = (_admitted(ranges, of) for of in (JSON, SSE, NDJSON))
    named = {media for media, quality in ranges if quality > 0}
    # A client that merely admits anything has not asked for a stream.
    sse_asked = bool(named & {SSE, "text/*"})
    return Accept(
        carriage=_choose(json, sse, ndjson, sse_asked),
        json_only=JSON in named and not sse and "*/*" not in named,
        only_sse=sse > 0 and not json and not ndjson,
        only_ndjson=ndjson > 0 and not json and not sse,
    )


_cached = lru_cache(_CACHE_SIZE)(_read)


def _choose(json: float, sse: float, ndjson: float, sse_asked: bool) -> Carriage | None:
    best = max(json, sse, ndjson)
    if best == 0:
        return None
    if json == best:
        return Carriage.LATE if sse == best and sse_asked else Carriage.JSON
    return Carriage.SSE if sse == best else Carriage.NDJSON


def _admitted(ranges: list[tuple[str, float]], media: str) -> float:
    """The quality of a media type: that of the most specific range that matches it, 0 where none does."""
    for wanted in (media, media.partition("/")[0] + "/*", "*/*"):
        qualities = [quality for pattern, quality in ranges if pattern == wanted]
        if qualities:
            return max(qualities)
    return 0.0


def _quality(media: _MediaType) -> float:
    value = media.parameters.get("q", "1")
    return float(value) if _QVALUE.fullmatch(value) else 0.0


def _media_types(header: str) -> Iterator[_MediaType]:
    """Reads a list of media types with parameters, in lower case; members that are malformed are passed over."""
    position = 0
    while position < len(header):
        media, end = _media_type(header, position)
        closed = _END.match(header, end)
        if media is not None and closed is not None:
            yield media
            position = closed.end()
        else:
            skipped = _SKIP.match(header, position)
            position = (skipped.end() if skipped else len(header)) + 1


def _media_type(header: str, position: int) -> tuple[_MediaType | None, int]:
    name = _TYPE.match(header, position)
    if name is None:
        return None, position
    parameters: dict[str, str] = {}
    position = name.end()
    while (parameter := _PARAMETER.match(header, position)) is not None:
        if parameter[1]:
            parameters.setdefault(parameter[1].lower(), parameter[2])
        position = parameter.end()
    return _MediaType(name[1].lower(), name[2].lower(), parameters), position


@lru_cache(_CACHE_SIZE)
def _content_type_ok(value: str) -> bool:
    media, end = _media_type(value, 0)
    if media is None or value[end:].strip(" \t"):
        return False
    charset = media.parameters.get("charset", "utf-8").strip('"').lower()
    return media.kind == "application" and media.subtype in {"json", "json-rpc"} and charset in {"utf-8", "utf8"}
