"""JSON as Naru takes it. Pure.

A body is decoded as UTF-8 and scanned whole once: what passes has no duplicate keys, no nesting deeper than 64, no NaN,
no lone surrogates and no raw control characters, so that everybody who reads a slice of it later (schema check,
endpoint, log) reads the same values.
"""

import json
import re
from array import array
from itertools import accumulate
from typing import NoReturn

MAX_DEPTH = 64
# Four million bytes can hold two million arrays or members, whose reading would keep everybody else waiting.
MAX_CONTAINERS = 200_000
MAX_MEMBERS = 200_000
MAX_ELEMENTS = 1_000_000
# Above this many bytes a body is looked at whole before it is read, in a process of its own: see scans.py.
LARGE = 256 << 10


class RefusedError(ValueError):
    """Says what is wrong with a body, in an English half-sentence that quotes nothing of it."""


def _without_duplicates(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise RefusedError("an object has a duplicate key")


def _refuse_constant(_name: str) -> NoReturn:
    raise RefusedError("NaN and Infinity are not JSON")


# Numbers are only measured: converting them would be quadratic in their length, and nothing here needs their values.
_scan = json.JSONDecoder(
    object_pairs_hook=_without_duplicates, parse_int=len, parse_float=len, parse_constant=_refuse_constant
).decode

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_SURROGATE_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def check(body: bytes) -> None:
    """Raises RefusedError unless the body is JSON that everybody reads alike."""
    try:
        decoded = body.decode()
        if len(body) > LARGE or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
            _check_shape(body)
        _scan(decoded)
        if b"\\ud" in body or b"\\uD" in body:
            _check_surrogates(body)
    except UnicodeDecodeError:
        raise RefusedError("the body is not UTF-8") from None
    except RefusedError:
        raise
    except ValueError:
        raise RefusedError("the body is not JSON") from None


def _check_shape(body: bytes) -> None:
    """Refuses what is nested deeper than MAX_DEPTH or has too many parts, without recursion and in linear time.

    With the escapes gone every quote delimits a string, so that the even parts are what lies outside strings. What is
    left of those are brackets, each of which is a step down or up.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(unescaped.split(b'"')[::2])
    steps = array("b", outside.translate(_STEPS, _NO_BRACKETS))
    if len(steps) > 2 * MAX_CONTAINERS:
        raise RefusedError(f"more than {MAX_CONTAINERS} arrays and objects")
    if outside.count(b":") > MAX_MEMBERS:
        raise RefusedError(f"more than {MAX_MEMBERS} members of objects")
    if outside.count(b",") > MAX_ELEMENTS:
        raise RefusedError(f"more than {MAX_ELEMENTS} elements")
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise RefusedError(f"nested deeper than {MAX_DEPTH}")


def _check_surrogates(body: bytes) -> None:
    """Refuses `\\ud800` escapes without their partner: no UTF-8 can carry them on."""
    paired = _SURROGATE_PAIR.sub(b"-", body.replace(b"\\\\", b"-"))
    if _SURROGATE.search(paired):
        raise RefusedError("a string has a lone surrogate")
