"""JSON as clients can read it, whoever sent it: an answer is held to what the gateway holds a request to. Pure."""

import re
from array import array
from itertools import accumulate
from typing import Any

import msgspec

from registry_service.errors import ToolResponseInvalidError

MAX_DEPTH = 64
# Python refuses to read a longer integer, and so does every client that is written in it.
MAX_DIGITS = 4300
# As many as a request may have: reading more would keep everybody else waiting.
MAX_CONTAINERS = 200_000
MAX_MEMBERS = 200_000
MAX_ELEMENTS = 1_000_000
# A text of so many bytes can't have more of them than that.
_SMALL = 64 << 10
# How many the object may have around a member that is read itself, and has as many as it may.
_BESIDE = 1000

_TWICE = "a duplicate key"

_decode = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def read(raw: bytes, depth: int = MAX_DEPTH) -> Any:
    """Returns the value of JSON text. Raises ToolResponseInvalidError for what clients read differently, or not at all.

    The checks look at the text as a whole, which costs a tenth of a scan member by member.
    """
    _check_parts(raw)
    if raw.count(b"[") + raw.count(b"{") > depth:
        steps = array("b", _outside_strings(raw).translate(_STEPS, _NO_BRACKETS))
        if max(accumulate(steps), default=0) > depth:
            raise ToolResponseInvalidError(detail="nested too deep")
    if len(raw) > MAX_DIGITS and _LONG_NUMBER.search(raw) and _LONG_NUMBER.search(_outside_strings(raw)):
        raise ToolResponseInvalidError(detail="a number of too many digits")
    try:
        value = _decode(raw)
    except msgspec.ValidationError:
        raise ToolResponseInvalidError(detail="a number out of range") from None
    except (msgspec.DecodeError, RecursionError):
        raise ToolResponseInvalidError(detail="not JSON") from None
    # The last of two equal keys wins, so that the value has fewer strings than its text.
    if raw.count(b":") > 1 and _quotes(raw) != _quotes(_encode(value)):
        raise ToolResponseInvalidError(detail=_TWICE)
    return value


def members(raw: bytes) -> dict[str, bytes]:
    """Returns the texts of an object's members, whose own content isn't looked at.

    Raises msgspec.DecodeError for what isn't an object, ToolResponseInvalidError for a key that stands twice and for
    more parts than a text may have.
    """
    _check_parts(raw, _BESIDE)
    found = {name: bytes(text) for name, text in _decode_members(raw).items()}
    if _quotes(raw) != 2 * len(found) + sum(map(_quotes, found.values())):
        raise ToolResponseInvalidError(detail=_TWICE)
    return found


def without_lone_surrogates(text: str) -> str:
    """Writes U+FFFD for escapes of half a character, which no UTF-8 can carry."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(_whole, text)


def _whole(match: re.Match[str]) -> str:
    return "\\ufffd" if match[1] else match[0]


def _check_parts(raw: bytes, beside: int = 0) -> None:
    """Refuses what has too many parts, before any of them is made. Only texts that seem to are looked at closely."""
    if len(raw) <= _SMALL or not _excess(raw, beside):
        return
    if detail := _excess(_outside_strings(raw), beside):
        raise ToolResponseInvalidError(detail=detail)


def _excess(text: bytes, beside: int) -> str:
    """Returns of what the marks in a text say that there is too much, as a detail; empty where of nothing."""
    detail = ""
    if text.count(b"[") + text.count(b"{") > MAX_CONTAINERS + beside:
        detail = "too many arrays and objects"
    elif text.count(b":") > MAX_MEMBERS + beside:
        detail = "too many members of objects"
    elif text.count(b",") > MAX_ELEMENTS + beside:
        detail = "too many elements"
    return detail


def _outside_strings(raw: bytes) -> bytes:
    """Returns what lies outside of strings: with the escapes gone, every quote delimits one."""
    return b" ".join(_without_escapes(raw).split(b'"')[::2])


def _quotes(raw: bytes) -> int:
    return _without_escapes(raw).count(b'"')


def _without_escapes(raw: bytes) -> bytes:
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in raw else raw
