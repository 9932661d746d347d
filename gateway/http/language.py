"""Finds the language in which a client wants its sentences. Pure."""

from functools import lru_cache

from gateway.http.weighted_list import members
from gateway.settings import Locale

# Longer headers are read each time, so that nobody can fill the cache with megabytes.
_CACHED_LENGTH = 256


def preferred_locale(accept_language: str, default: Locale) -> Locale:
    """Picks the language that `Accept-Language` (RFC 9110, 12.5.4) likes best among ours; the first of equals.

    A header that admits neither of ours, or likes any (`*`) best, gets the default.
    """
    read = _preferred if len(accept_language) <= _CACHED_LENGTH else _preferred.__wrapped__
    return read(accept_language, default)


@lru_cache(maxsize=512)
def _preferred(accept_language: str, default: Locale) -> Locale:
    best: Locale = default
    best_quality = 0.0
    for member in members(accept_language):
        primary = member.name.partition("-")[0]
        if member.quality > best_quality and primary in {"ko", "en", "*"}:
            best = "ko" if primary == "ko" else "en" if primary == "en" else default
            best_quality = member.quality
    return best
