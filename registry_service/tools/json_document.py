"""JSON documents that people write: read strictly, compared exactly, cut into members without touching their text.

Strictly means: UTF-8 without a byte order mark, no duplicate keys, no NaN, no lone surrogates, bounded nesting. What
two readers could understand differently is refused.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

import msgspec

# Leaves room for a schema of 64 levels inside a manifest.
MAX_NESTING = 80


class Fault(NamedTuple):
    """Says what is wrong at one place of a document: a JSON Pointer (RFC 6901) and an English message."""

    pointer: str
    message: str


class DocumentError(ValueError):
    """Refuses a document that can't be read; `fault` says where and why."""

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(pointer, message)


def token(name: str) -> str:
    """Returns one reference token of a JSON Pointer, its slash included."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def read(raw: bytes) -> object:
    """Returns the document's value. Raises DocumentError."""
    try:
        value: object = msgspec.json.decode(raw)
    except RecursionError:
        raise DocumentError("", f"nests deeper than {MAX_NESTING} levels") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DocumentError("", f"is not JSON: {error}") from None
    if (pointer := too_deep(value, MAX_NESTING)) is not None:
        raise DocumentError(pointer, f"nests deeper than {MAX_NESTING} levels")
    # msgspec lets the last of two equal keys win.
    json.loads(raw.decode(), object_pairs_hook=_unique, parse_int=len, parse_float=len)
    return value


def _unique(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DocumentError("", f"{shown(twice)} stands twice in one object")


def too_deep(value: object, limit: int) -> str | None:
    """Returns the JSON Pointer of an array or object deeper than `limit` levels; the outermost is level 1."""
    nodes = [value]
    for _ in range(limit):
        nodes = [child for node in nodes if isinstance(node, dict | list) for child in _children(node)]
    return _find(value, limit) if any(isinstance(node, dict | list) for node in nodes) else None


def _children(node: dict[str, object] | list[object]) -> Iterable[object]:
    return node.values() if isinstance(node, dict) else node


def _find(value: object, limit: int) -> str | None:
    stack = [(value, 1, "")]
    while stack:
        node, level, pointer = stack.pop()
        if not isinstance(node, dict | list):
            continue
        if level > limit:
            return pointer
        named = node.items() if isinstance(node, dict) else enumerate(node)
        stack.extend((child, level + 1, pointer + token(str(name))) for name, child in named)
    return None


def compact(raw: bytes) -> bytes:
    """Returns the same JSON text, token for token, without the white space between them."""
    return msgspec.json.format(raw, indent=-1)


def members(raw: bytes) -> dict[str, bytes]:
    """Returns the members of an object's compact text, each as the text that it has there."""
    return {name: bytes(text) for name, text in _MEMBERS.decode(raw).items()}


def items(raw: bytes) -> list[bytes]:
    """Returns the elements of an array's compact text."""
    return [bytes(text) for text in _ITEMS.decode(raw)]


def join(parts: dict[str, bytes]) -> bytes:
    """Returns an object's text from its members' texts."""
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + text for name, text in parts.items()) + b"}"


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


def same(one: bytes, other: bytes) -> bool:
    """Returns whether two documents say the same: key order aside, and `1.0` is not `1`."""
    return one == other or _exact(one) == _exact(other)


def _exact(raw: bytes) -> object:
    # A tuple is nothing that JSON yields otherwise, so that the number 1 never equals the string "1".
    return json.loads(raw.decode(), parse_int=_digits, parse_float=_digits, parse_constant=_refuse)


def _digits(text: str) -> tuple[str]:
    return (text,)


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def shown(value: object, limit: int = 80) -> str:
    """Returns a value for a message: as JSON, cut to `limit` characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
