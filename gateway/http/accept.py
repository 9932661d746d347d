"""Media types: what a client admits in an answer, and what it may send. Pure (RFC 9110, 12.5.1)."""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from gateway.http.weighted_list import members, only_member

JSON = "application/json"
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"

# Other names of what we send. Whoever asks by such a name alone is answered under it.
_JSON_NAMES = (JSON, "application/json-rpc")
_NDJSON_NAMES = (NDJSON, "application/ndjson", "application/jsonl")

# Longer headers are parsed each time, so that nobody can fill the cache with megabytes.
_CACHED_LENGTH = 256
_CACHE_SIZE = 1024

_AS_IS: Mapping[bytes, bytes] = MappingProxyType({})


class Carriage(Enum):
    """Lists the ways in which an answer travels. LATE: as JSON if the result comes first, as SSE otherwise."""

    JSON = "json"
    SSE = "sse"
    NDJSON = "ndjson"
    LATE = "late"


class Accept(NamedTuple):
    """Describes what an Accept header admits.

    `carriage` is None where nothing can be produced for it. `json_only`: it names application/json and admits neither
    text/event-stream nor */*, as Agent Builder does. `both`: it admits JSON and SSE, as MCP demands. `renamed` maps our
    media types to the names under which the client knows them.
    """

    carriage: Carriage | None
    json_only: bool = False
    both: bool = True
    renamed: Mapping[bytes, bytes] = _AS_IS


def accept(header: str | None) -> Accept:
    """Reads an Accept header; the caller joins repeated lines with a comma. Absent or empty admits everything."""
    if header is None:
        return _ANYTHING
    return _cached(header) if len(header) <= _CACHED_LENGTH else _read(header)


def single(carriage: Carriage) -> Carriage:
    """Returns how an answer travels that is one message for certain."""
    return Carriage.JSON if carriage is Carriage.LATE else carriage


def content_type_ok(value: str | None) -> bool:
    """Tells whether a Content-Type says JSON (or JSON-RPC) in UTF-8."""
    if value is None:
        return False
    return _content_type_ok(value) if len(value) <= _CACHED_LENGTH else False


_ANYTHING = Accept(Carriage.JSON)


class _Range(NamedTuple):
    name: str
    quality: float


class _Offer(NamedTuple):
    """Holds how much a client wants one of our media types, and the name that the client uses for it."""

    quality: float
    name: str


def _read(header: str) -> Accept:
    ranges = [_Range(member.name, member.quality) for member in members(header) if "/" in member.name]
    if not ranges and not header.strip(" \t,"):
        return _ANYTHING
    json, sse, ndjson = (_offer(ranges, names) for names in (_JSON_NAMES, (SSE,), _NDJSON_NAMES))
    named = {name for name, quality in ranges if quality > 0}
    # A client that merely admits anything has not asked for a stream.
    sse_asked = bool(named & {SSE, "text/*"})
    renamed = {ours.encode(): offer.name.encode() for ours, offer in ((JSON, json), (NDJSON, ndjson))}
    return Accept(
        carriage=_choose(json.quality, sse.quality, ndjson.quality, sse_asked),
        json_only=JSON in named and not sse.quality and "*/*" not in named,
        both=json.quality > 0 and sse.quality > 0,
        renamed={ours: theirs for ours, theirs in renamed.items() if ours != theirs} or _AS_IS,
    )


_cached = lru_cache(_CACHE_SIZE)(_read)


def _choose(json: float, sse: float, ndjson: float, sse_asked: bool) -> Carriage | None:
    best = max(json, sse, ndjson)
    if best == 0:
        return None
    if json == best:
        return Carriage.LATE if sse == best and sse_asked else Carriage.JSON
    return Carriage.SSE if sse == best else Carriage.NDJSON


def _offer(ranges: Sequence[_Range], names: Sequence[str]) -> _Offer:
    """Returns the best of a media type's names; the first, which is the usual one, of equals.

    Another name counts only where it is named: whoever admits anything of a kind means the usual one.
    """
    usual, *others = names
    offers = [_Offer(_admitted(ranges, usual), usual)]
    offers += [_Offer(_named(ranges, (name,)), name) for name in others]
    return max(offers, key=lambda offer: offer.quality)


def _admitted(ranges: Sequence[_Range], media: str) -> float:
    """Returns the quality of a media type: that of the most specific range that matches it, 0 where none does."""
    return _named(ranges, (media, media.partition("/")[0] + "/*", "*/*"))


def _named(ranges: Sequence[_Range], patterns: Sequence[str]) -> float:
    for wanted in patterns:
        qualities = [quality for pattern, quality in ranges if pattern == wanted]
        if qualities:
            return max(qualities)
    return 0.0


@lru_cache(_CACHE_SIZE)
def _content_type_ok(value: str) -> bool:
    media = only_member(value)
    if media is None:
        return False
    charset = media.parameters.get("charset", "utf-8").strip('"').lower()
    return media.name in _JSON_NAMES and charset in {"utf-8", "utf8"}
