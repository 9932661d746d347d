"""gateway/failures/details_ko.py: no detail that either service can send is without its Korean words."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.failures.details_ko import DETAILS, korean
from gateway.failures.table import Wording, describe

ROOT = Path(__file__).resolve().parents[3]
# Whose arguments are details, by position; of exceptions of the registry it is the keyword `detail`.
SAYING = {
    "ProtocolError": 1,
    "RefusedError": 0,
    "_mismatch": 1,
    "_malformed": 0,
    "_complaint": 0,
    "_refuse": 1,
    "_refuse_head": 2,
}
TOLD_BY_TOOLS = {"ToolUnreachableError", "ToolResponseInvalidError"}
# Variables that hold details.
NAMES = {"fault", "detail"}


def texts(node: ast.expr) -> Iterator[str]:
    """Yields the texts that an expression can be; what is filled in is an `x`."""
    match node:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
        case ast.IfExp(body=body, orelse=other):
            yield from texts(body)
            yield from texts(other)
        case ast.BoolOp(values=values):
            for value in values:
                yield from texts(value)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def details_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id in NAMES for target in targets):
                yield from texts(node.value)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "detail":
                    yield from texts(value)
        if isinstance(node, ast.Call):
            place = SAYING.get(called(node))
            if place is not None and len(node.args) > place:
                yield from texts(node.args[place])
            if called(node) in TOLD_BY_TOOLS or called(node) == "Meta":
                for keyword in node.keywords:
                    if keyword.arg in NAMES:
                        yield from texts(keyword.value)


def details() -> list[str]:
    files = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "registry_service" / "upstreams").rglob("*.py")]
    return sorted({detail for file in files for detail in details_in(file.read_text())})


def has_hangul(text: str) -> bool:
    return any("가" <= character <= "힣" for character in text)


def test_the_details_are_found():
    assert {"the body is not JSON", "no connection", "nested deeper than x", "malformed HTTP"} <= set(details())


@pytest.mark.parametrize("detail", details())
def test_every_detail_has_korean_words(detail: str):
    told = korean(detail)
    assert told is not None
    assert has_hangul(told)


@pytest.mark.parametrize("english", sorted(DETAILS))
def test_what_a_detail_names_is_kept(english: str):
    named = english.replace("{}", "params.x")
    told = korean(named)
    assert told is not None
    assert told.count("params.x") == english.count("{}") + english.count("params.x")


def test_a_sentence_holds_the_korean_words_and_the_facts_the_english_ones():
    wording = Wording("ko", "xdata.kr")
    text, data = describe("TOOL_UNREACHABLE", {"detail": "no connection"}, wording)
    assert "연결할 수 없음" in text
    assert "no connection" not in text
    assert data["detail"] == "no connection"


def test_a_detail_that_nobody_knows_is_in_no_korean_sentence():
    text, data = describe("TOOL_UNREACHABLE", {"detail": "a new word"}, Wording("ko", "xdata.kr"))
    assert "a new word" not in text
    assert data["detail"] == "a new word"
    text, _ = describe("TOOL_UNREACHABLE", {"detail": "a new word"}, Wording("en", "xdata.kr"))
    assert "a new word" in text
