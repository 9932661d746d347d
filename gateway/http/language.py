"""Which language a client wants its sentences in. Pure."""

from functools import lru_cache

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
    for item in accept_language.lower().split(","):
        tag, _, parameters = item.partition(";")
        quality = _quality(parameters)
        primary = tag.strip().partition("-")[0]
        if quality > best_quality and primary in {"ko", "en", "*"}:
            best = "ko" if primary == "ko" else "en" if primary == "en" else default
            best_quality = quality
    return best


def _quality(parameters: str) -> float:
    """Returns the weight of a range: 1 without one, 0 (not wanted) for one that cannot be read."""
    name, separator, value = parameters.partition("=")
    if not separator or name.strip() != "q":
        return 1.0
    try:
        quality = float(value)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
