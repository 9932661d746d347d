"""JSON that every client can read, whoever sent it."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry_service.errors import ToolResponseInvalidError
from registry_service.tools.schema_check import SchemaCheck
from registry_service.upstreams import strict_json
from registry_service.upstreams.answer import Expected
from registry_service.upstreams.http.response import from_body
from tests.registry_service.upstreams.http.test_event_stream import NDJSON, feed_all
from tests.registry_service.upstreams.http.test_response import ANY, JSON, LIMIT, MCP, URI, refused, text


def nested(depth):
    return b'{"a":' * (depth // 2) + b"[" * (depth - depth // 2) + b"]" * (depth - depth // 2) + b"}" * (depth // 2)


def array(element, number):
    return b"[" + b",".join([element] * number) + b"]"


def members(number):
    return b"{" + b",".join(b'"%d":1' % name for name in range(number)) + b"}"


UNREADABLE = [
    (nested(65), "nested too deep"),
    (b"[" * 250 + b"]" * 250, "nested too deep"),
    (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
    (b'{"n":' + b"9" * 4301 + b"}", "a number of too many digits"),
    (b'{"s":"x\\"","n":[-' + b"9" * 5000 + b"]}", "a number of too many digits"),
    (b'{"n":1e400}', "a number out of range"),
    (b'{"a":1,"a":2}', "a duplicate key"),
    (b'{"a":1,"b":2,"\\u0061":3}', "a duplicate key"),
    (b'[{"a":{"b":"\\"","b":":"}}]', "a duplicate key"),
    (b'{"":1,"":1}', "a duplicate key"),
    (array(b"[]", 200_000), "too many arrays and objects"),
    (array(b"{}", 200_000), "too many arrays and objects"),
    (members(200_001), "too many members of objects"),
    (array(b"1", 1_000_002), "too many elements"),
    (array(b'"\\"["', 1_000_002), "too many elements"),
]
READABLE = [
    nested(64),
    b'{"n":' + b"9" * 4300 + b"}",
    b'{"s":"' + b"9" * 5000 + b'"}',
    b'{"s":"\\\\","t":"\\"' + b"[" * 500 + b'"}',
    b'[{"a":1},{"a":1},{"b":{"a":{"a":1}}}]',
    b'{"a":"a\\":1","b":"\\\\","c":":"}',
    b'{"f":1.50,"g":1e300,"z":-0}',
    array(b"[]", 199_999),
    array(b"{}", 199_999),
    members(200_000),
    array(b"1", 1_000_001),
    b'["' + b'\\"[{:,' * 200_001 + b'"]',
]


class TestWhatEveryClientCanRead:
    @pytest.mark.parametrize(("body", "detail"), UNREADABLE, ids=lambda value: value[:20])
    def test_an_answer_is_held_to_what_a_request_is(self, body, detail):
        assert refused(body) == detail
        assert refused(body, expected=Expected("json", SchemaCheck(b"{}"))) == detail
        with pytest.raises(ToolResponseInvalidError) as caught:
            feed_all(NDJSON, [b'{"result":' + body + b"}\n"], limit=LIMIT)
        assert caught.value.facts["detail"] in (detail, "the stream ended without a result")

    @pytest.mark.parametrize(("body", "detail"), UNREADABLE, ids=lambda value: value[:20])
    def test_so_is_what_a_tool_makes_of_mcp(self, body, detail):
        assert refused(b'{"content":[],"structuredContent":' + body + b"}", expected=MCP) == detail
        assert refused(b'{"content":[],"_meta":{"x":' + body + b"}}", expected=MCP) == detail

    @pytest.mark.parametrize("body", READABLE, ids=lambda value: value[:20])
    def test_nothing_else_is_refused(self, body):
        answer = from_body(body, JSON, ANY, URI, LIMIT)
        assert text(answer) == body.decode()
        assert feed_all(NDJSON, [b'{"result":' + body + b"}\n"], limit=LIMIT)[0] == answer

    def test_an_object_that_is_only_taken_apart_may_have_a_few_more_members(self):
        assert len(strict_json.members(members(201_000))) == 201_000
        with pytest.raises(ToolResponseInvalidError) as caught:
            strict_json.members(members(201_001))
        assert caught.value.facts["detail"] == "too many members of objects"

    @given(st.recursive(st.none() | st.text() | st.integers(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
    def test_what_an_encoder_writes_is_never_refused(self, value):
        for ascii_only in (True, False):
            raw = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
            assert strict_json.read(raw) == value

    @pytest.mark.parametrize(
        ("body", "shown"),
        [
            (b'{"a":"\\ud800"}', '{"a":"\ufffd"}'),
            (b'{"a":"x\\udfff\\ud83d\\ude00"}', '{"a":"x\ufffd\U0001f600"}'),
            (b'{"a":"\\\\ud800"}', '{"a":"\\\\ud800"}'),
            (b'{"\\uDC00":["\\ud800\\ud800\\udc00"]}', '{"\ufffd":["\ufffd\U00010000"]}'),
        ],
    )
    def test_half_a_character_becomes_the_replacement_character(self, body, shown):
        answer = from_body(body, JSON, ANY, URI, LIMIT)
        assert text(answer) == shown
        assert json.loads(answer.structured) == json.loads(shown)
        tool_result = b'{"content":[{"type":"text","text":' + msgspec.json.encode(shown) + b"}]}"
        assert text(from_body(tool_result, JSON, MCP, URI, LIMIT)) == shown
        assert text(feed_all(NDJSON, [b'{"result":' + body + b"}\n"])[0]) == shown
