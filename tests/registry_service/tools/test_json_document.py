import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry_service.tools import json_document as documents
from registry_service.tools.json_document import (
    MAX_NESTING,
    DocumentError,
    compact,
    join,
    members,
    read,
    same,
    token,
    too_deep,
)

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text()
values = st.recursive(
    scalars, lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4)
)


def fault(raw):
    with pytest.raises(DocumentError) as caught:
        read(raw)
    return caught.value.fault


@given(values)
def test_reads_what_json_says(value):
    assert read(json.dumps(value).encode()) == value
    assert read(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":"\\ud800 x"}',
        b'{"a":"\xff"}',
        b'{"a":"\x00"}',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b'{"a":' + b"1" * 5000 + b"}",
        b"{} {}",
    ],
)
def test_refuses_what_is_not_json(raw):
    assert fault(raw).pointer == ""
    assert "is not JSON" in fault(raw).message


@pytest.mark.parametrize("raw", [b'{"a":1,"b":2,"a":1}', b'[{"x":{"a":1,"\\u0061":1}}]'])
def test_refuses_a_key_that_stands_twice(raw):
    assert fault(raw).message == '"a" stands twice in one object'


def test_refuses_deep_nesting_and_says_where():
    assert read(b"[" * MAX_NESTING + b"]" * MAX_NESTING)
    too_many = MAX_NESTING + 1
    assert fault(b'{"a":' * too_many + b"1" + b"}" * too_many).pointer == "/a" * MAX_NESTING
    assert "deeper" in fault(b"[" * 5000 + b"]" * 5000).message
    assert "deeper" in fault(b"[" * 1_000_000).message


@given(values, st.integers(1, 5))
def test_depth_is_counted_exactly(value, limit):
    def depth(node):
        below = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
        return 0 if below is None else 1 + max(map(depth, below), default=0)

    pointer = too_deep(value, limit)
    assert (pointer is not None) == (depth(value) > limit)
    if pointer is not None:
        assert pointer.count("/") == limit


def test_pointer_tokens_are_escaped():
    assert token("a/b~c") == "/a~1b~0c"


@given(st.dictionaries(st.text(), values))
def test_members_are_cut_and_joined_without_a_change(value):
    text = compact(json.dumps(value, indent=2, ensure_ascii=False).encode())
    assert join(members(text)) == text


def test_compact_text_keeps_every_digit_and_the_order():
    text = b'{ "z" : 1.0, "a": [ 9007199254740993 , 1e5, -0 ], "s" : "\\u00e9 \\n x" }'
    assert compact(text) == b'{"z":1.0,"a":[9007199254740993,1e5,-0],"s":"\\u00e9 \\n x"}'
    assert members(compact(text))["a"] == b"[9007199254740993,1e5,-0]"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('{"a":1,"b":2}', '{"b":2, "a":1}', True),
        ('{"a":"\\u00e9"}', '{"a":"é"}', True),
        ('{"a":1}', '{"a":1.0}', False),
        ('{"a":1}', '{"a":"1"}', False),
        ('{"a":1}', '{"a":true}', False),
        ('{"a":9007199254740993}', '{"a":9007199254740992}', False),
        ('{"a":0.1}', '{"a":0.10000000000000000001}', False),
        ("[1,2]", "[2,1]", False),
        ('{"a":null}', "{}", False),
    ],
)
def test_documents_are_the_same_by_what_they_say(one, other, equal):
    assert same(one.encode(), other.encode()) is equal
    assert same(other.encode(), one.encode()) is equal


@given(values)
def test_a_document_is_the_same_however_it_is_written(value):
    assert same(json.dumps(value, sort_keys=True).encode(), json.dumps(value, indent=1, ensure_ascii=False).encode())


def test_a_long_value_is_cut_for_a_message():
    assert documents.shown("x" * 500) == '"' + "x" * 78 + "…"
    assert documents.shown("é") == '"é"'
