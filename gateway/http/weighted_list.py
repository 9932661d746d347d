"""Lists of names with parameters and weights, as Accept, Accept-Language and Content-Type have them. Pure.

RFC 9110, 5.6 and 12.4.2. Members that are malformed are passed over.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Possessive throughout: a header is read once from left to right, whatever it holds.
_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_QUOTED = r'"(?:[^"\\]++|\\.)*+"'
_NAME = re.compile(rf"[ \t]*({_WORD}(?:/{_WORD})?+)")
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*(?:({_WORD})=({_WORD}|{_QUOTED}))?")
_QVALUE = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
# What is left of a malformed member; a quote that is never closed takes the rest.
_SKIP = re.compile(r'(?:"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^,"])*+')
_END = re.compile(r"[ \t]*(?:,|$)")


class Member(NamedTuple):
    """A name in lower case, with its parameters."""

    name: str
    parameters: dict[str, str]

    @property
    def quality(self) -> float:
        """Returns the weight of the member: 1 if none is given, 0 (not wanted) if it cannot be read."""
        value = self.parameters.get("q", "1")
        return float(value) if _QVALUE.fullmatch(value) else 0.0


def members(header: str) -> Iterator[Member]:
    """Reads a list, in order."""
    position = 0
    while position < len(header):
        member, end = _member(header, position)
        closed = _END.match(header, end)
        if member is not None and closed is not None:
            yield member
            position = closed.end()
        else:
            skipped = _SKIP.match(header, position)
            position = (skipped.end() if skipped else len(header)) + 1


def only_member(header: str) -> Member | None:
    """Reads a header that holds one member, and nothing else."""
    member, end = _member(header, 0)
    return None if header[end:].strip(" \t") else member


def _member(header: str, position: int) -> tuple[Member | None, int]:
    name = _NAME.match(header, position)
    if name is None:
        return None, position
    parameters: dict[str, str] = {}
    position = name.end()
    while (parameter := _PARAMETER.match(header, position)) is not None:
        if parameter[1]:
            parameters.setdefault(parameter[1].lower(), parameter[2])
        position = parameter.end()
    return Member(name[1].lower(), parameters), position
