"""gateway/mcp/strict_json.py, through the decoding of requests: what is JSON here, against a reference."""

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.mcp.jsonrpc import Message, ProtocolError, decode


def refusal(body: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(body)
    return caught.value


def depth(value: object) -> int:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + max(map(depth, members), default=0)


def strings(value: object):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from strings(member)
    elif isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from strings(member)


def reference_accepts(body: bytes) -> bool:
    """The slow and plain way to say the same."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    def constant(_name: str) -> None:
        raise AssertionError

    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_int=str, parse_float=str)
        for string in strings(value):
            string.encode("utf-8")  # lone surrogates cannot be
    except (ValueError, AssertionError):
        return False
    return depth(value) <= 64


def accepts(body: bytes) -> bool:
    try:
        decode(body)
    except ProtocolError as refused:
        return refused.reason != "PARSE_ERROR"
    return True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
# Pieces that make JSON, nearly JSON, and the cases that are refused although `json` accepts them.
pieces = st.lists(
    st.sampled_from(
        [
            *(
                b"{",
                b"}",
                b"[",
                b"]",
                b",",
                b":",
                b'"',
                b'"a"',
                b'"a":',
                b"\\",
                b'\\"',
                b"\\\\",
                b"\\ud83d",
                b"\\ude00",
            ),
            *(b'"\\ud83d\\ude00"', b'"\\uD800"', b'"\\\\ud800"', b'"\\u0061":', b"NaN", b"-Infinity", b"0", b"01"),
            *(b"1.", b"1e5", b"-", b"true", b"null", b" ", b"\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80"),
            *(b"\xea\xb0\x80", b"\x7f", b"\\ude00"),
        ]
    ),
    max_size=12,
).map(b"".join)


@given(pieces)
@example(b'{"a":1,"\\u0061":2}')
@example(b'["\\uD800"]')
@example(b'["\\\\",' + b"[" * 70 + b"]" * 71)
@example(b'["\\ud83d\\\\\\\\\\ude00"]')
@example(b'["\\\\\\ud800"]')
@example(b'["\\ud800\\ud83d\\ude00"]')
@example(b"[" * 64 + b"]" * 64)
@example(b"[" * 65 + b"]" * 65)
@example(b'{"a":' * 65 + b"1" + b"}" * 65)
@example(b'["' + b"[" * 200 + b'"]')
@example(b'["\\"' + b"[" * 200 + b'\\\\"]')
@example(b"[" + b",".join([b'{"a":[]}'] * 50) + b"]")
@example(b"")
@example(b" \t\r\n1 ")
@example(b"\xa01")
def test_json_is_accepted_exactly_where_the_reference_accepts_it(body):
    assert accepts(body) == reference_accepts(body)


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_every_proper_document_passes(value, ascii_only, indent):
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    assert accepts(body) == reference_accepts(body)


@given(json_values, st.data())
def test_a_broken_byte_is_judged_as_by_the_reference(value, data):
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    position = data.draw(st.integers(0, len(body)))
    junk = data.draw(
        st.sampled_from([b"\x00", b"\xff", b"\x1f", b"]", b"}", b'"', b"\\", b",", b"\xef\xbb\xbf", b"\xc2"])
    )
    broken = body[:position] + junk + body[position:]
    assert accepts(broken) == reference_accepts(broken)


@given(
    st.integers(30, 70),
    st.sampled_from([(1, b"[", b"]"), (1, b'{"a":', b"}"), (2, b'[{"[":', b"}]"), (1, b'["\\"[",', b"]")]),
)
def test_nesting_up_to_64_passes(times, brackets):
    levels, opening, closing = brackets
    assert accepts(opening * times + b"1" + closing * times) == (levels * times <= 64)


@pytest.mark.parametrize(
    ("part", "most", "named"),
    [("[]", 200_000 - 2, "arrays and objects"), ('"k":1', 200_000, "members of objects")],
)
def test_the_parts_of_a_body_are_bounded(part: str, most: int, named: str):
    """Refuses a body whose reading would hold up everybody else. Text may hold as many brackets as it likes."""

    def body(parts: int) -> bytes:
        if part == "[]":
            return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"l":[' + b",".join([b"[]"] * (parts - 1)) + b"]}}"
        members = b",".join(b'"%d":1' % i for i in range(parts - 4))
        return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{' + members + b"}}"

    assert isinstance(decode(body(most)), Message)
    failure = refusal(body(most + 1))
    assert (failure.reason, failure.detail) == ("PARSE_ERROR", f"more than 200000 {named}")
    text = json.dumps("[]{}:" * 60_000).encode()
    assert isinstance(decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"t":' + text + b"}}"), Message)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 10_000,
        b"[" * 5_000 + b"]" * 5_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"[" * 4_000_000,
        b'"' * 999_999,
    ],
)
def test_hostile_nesting_is_refused_quickly(body):
    started = time.process_time()
    assert refusal(body).reason == "PARSE_ERROR"
    assert time.process_time() - started < 1


def test_long_numbers_and_escapes_cost_no_more_than_their_length():
    started = time.process_time()
    digits = b"1" * 1_000_000
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":%b}}' % digits) == Message(
        b"1", "m", b'{"n":%b}' % digits
    )
    decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"s":"%b","a":[%b0]}}' % (b'\\"' * 1_000_000, b"[]," * 99))
    for id_token in (digits, b"-%b" % digits, b"%be-1" % digits, b'"%b"' % digits):
        with pytest.raises(ProtocolError):
            decode(b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % id_token)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "the body is not JSON"),
        (b"", "the body is not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}', "NaN and Infinity are not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":1,"b":1}}}', "an object has a duplicate key"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}', "an object has a duplicate key"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\ud800"}}', "a string has a lone surrogate"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\xff"}}', "the body is not UTF-8"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\x00"}}', "the body is not JSON"),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}', "the body is not JSON"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
    ],
)
def test_a_parse_error_says_why_and_has_no_id(body, detail):
    refused = refusal(body)
    assert (refused.reason, refused.detail, refused.id, refused.status) == ("PARSE_ERROR", detail, None, 400)


def test_an_escaped_nul_is_legal():
    message = decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\u0000"}}')
    assert message == Message(b"1", "m", b'{"a":"\\u0000"}')
