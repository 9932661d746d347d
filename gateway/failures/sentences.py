"""The sentences that people and their agents read: their shape, and how facts get into them.

A sentence is a list of templates, the fullest first: the first one whose facts are all known is used. A `retry` action
replaces the ordinary one where the identical request may be sent again, and `mend` where only an operator can help.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import NamedTuple

_MAX_FACT_LENGTH = 120


class Sentences(NamedTuple):
    says: tuple[str, ...]
    do: str
    retry: str = ""
    mend: str = ""


def sentence(sentences: Sentences, facts: Mapping[str, object]) -> str:
    """Says what happened, in one line. Facts that are too long for a line are cut."""
    for template in sentences.says:
        fields = _fields(template)
        if all(field in facts for field in fields):
            return template.format_map({field: _shown(facts[field]) for field in fields})
    raise LookupError(f"{sentences.says[0]!r} has no sentence beside it that needs no facts")


# Details of the registry that say that nothing was sent, and nothing ever will be.
_MISCONFIGURED = frozenset({"address not allowed", "secret not available"})


def next_action(sentences: Sentences, *, safe_to_retry: bool, detail: object = None) -> str:
    """Says what the caller can do about it. `detail` is the fact of that name."""
    if sentences.mend and detail in _MISCONFIGURED:
        return sentences.mend
    return sentences.retry if safe_to_retry and sentences.retry else sentences.do


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
