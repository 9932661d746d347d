"""The sentences that people and their agents read: their shape, and how facts get into them.

A sentence is a list of templates, the fullest first: the first one whose facts are all known is used. A `retry` action
replaces the ordinary one where the identical request may be sent again, and `mend` where only an operator can help.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import NamedTuple

_MAX_FACT_LENGTH = 120


class HttpAdvice(NamedTuple):
    """Advice on an HTTP error of a tool's endpoint, where it follows from the status."""

    redirect: str
    wait: tuple[str, ...]
    missing: str
    smaller: str
    broken: str


class Sentences(NamedTuple):
    """The sentences of a reason. `http` takes the place of `do` for those statuses that say more."""

    says: tuple[str, ...]
    do: str
    retry: str = ""
    mend: str = ""
    http: HttpAdvice | None = None


def sentence(sentences: Sentences, facts: Mapping[str, object]) -> str:
    """Says what happened, in one line. Facts that are too long for a line are cut."""
    return _filled(sentences.says, facts)


def _filled(templates: Sequence[str], facts: Mapping[str, object]) -> str:
    for template in templates:
        fields = _fields(template)
        if all(field in facts for field in fields):
            return template.format_map({field: _shown(facts[field]) for field in fields})
    raise LookupError(f"{templates[0]!r} has no sentence beside it that needs no facts")


# Details of the registry that say that nothing was sent, and nothing ever will be.
_MISCONFIGURED = frozenset({"address not allowed", "secret not available", "certificate not trusted", "no TLS"})


# The endpoint has done nothing yet, and says so.
_WAIT = frozenset({408, 425, 429})
_MISSING = frozenset({404, 405, 410, 501})
_SMALLER = frozenset({413, 414, 431})


def next_action(sentences: Sentences, facts: Mapping[str, object], *, safe_to_retry: bool) -> str:
    """Says what the caller can do about it."""
    if sentences.mend and facts.get("detail") in _MISCONFIGURED:
        return sentences.mend
    status = facts.get("http_status")
    if sentences.http is not None and isinstance(status, int):
        advice = _http_action(sentences.http, status, facts, safe_to_retry=safe_to_retry)
        if advice:
            return advice
    return sentences.retry if safe_to_retry and sentences.retry else sentences.do


def _http_action(advice: HttpAdvice, status: int, facts: Mapping[str, object], *, safe_to_retry: bool) -> str:
    """Returns what follows from the status; empty where the ordinary action fits."""
    if status < 400:
        return advice.redirect
    if status in _WAIT or (status == 503 and "retry_after_seconds" in facts):
        return _filled(advice.wait, facts)
    if safe_to_retry:
        return ""
    if status in _MISSING:
        return advice.missing
    if status in _SMALLER:
        return advice.smaller
    return advice.broken if status >= 500 else ""


@lru_cache(maxsize=512)
def _fields(template: str) -> Sequence[str]:
    return [field for _, field, _, _ in Formatter().parse(template) if field]


def _shown(fact: object) -> str:
    if isinstance(fact, list):
        text = ", ".join(str(item) for item in fact)
    elif isinstance(fact, float) and fact.is_integer():
        text = str(int(fact))
    else:
        text = str(fact)
    return text if len(text) <= _MAX_FACT_LENGTH else f"{text[:_MAX_FACT_LENGTH]}…"
