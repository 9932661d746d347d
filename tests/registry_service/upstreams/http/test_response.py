"""From a body to what an MCP client is told."""

import base64
import gzip
import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError
from registry_service.tools.schema_check import SchemaCheck
from registry_service.upstreams import answer as answers
from registry_service.upstreams.answer import Expected, from_json, from_nothing
from registry_service.upstreams.http.media_type import Kind, parse_media
from registry_service.upstreams.http.response import ERROR_BODY_BYTES, from_body, from_http_error

ANY = Expected("json", None)
OBJECT = Expected("json", SchemaCheck(b'{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}'))
MCP = Expected("mcp", None)
JSON = parse_media("application/json")
LIMIT = 1 << 23
URI = "naru://calls/1/result"


def blocks(answer):
    return json.loads(answer.content)


def text(answer):
    (block,) = blocks(answer)
    assert block.keys() == {"type", "text"}
    return block["text"]


def refused(body, media=JSON, expected=ANY):
    with pytest.raises(ToolResponseInvalidError) as caught:
        from_body(body, media, expected, URI, LIMIT)
    return caught.value.facts["detail"]


class TestJson:
    def test_an_object_becomes_structured_content_and_text_digit_for_digit(self):
        body = b' {"id": 9007199254740993, "f": 1.0, "e": 1e2, "a":{"z":1,"b":2}}\n'
        answer = from_body(body, JSON, ANY, URI, LIMIT)
        assert answer.structured == body.strip()
        assert text(answer) == body.decode().strip()
        assert not answer.is_error

    @pytest.mark.parametrize("body", ["[1, 2.0]", '"hello"', "12345678901234567890123", "true", "null"])
    def test_other_json_is_text_and_structured_only_where_a_schema_is(self, body):
        assert from_json(body, ANY) == answers.Answer(answers.text_content(body))
        assert from_json(body, Expected("json", SchemaCheck(b"{}"))).structured == body.encode()

    def test_letters_are_readable_however_the_endpoint_wrote_them(self):
        escaped = r'{"msg":"\uc548\ub155 \ud83d\ude00","path":"C:\\uc548","line":"a\nb\u0001"}'
        answer = from_json(escaped, ANY)
        assert text(answer) == '{"msg":"안녕 😀","path":"C:\\\\uc548","line":"a\\nb\\u0001"}'
        assert answer.structured == escaped.encode()

    @pytest.mark.parametrize("body", [b"{oops", b"{} {}", b"NaN", b'{"a":"\n"}', b"{'a':1}"])
    def test_what_is_not_json_is_refused(self, body):
        assert refused(body) == "not JSON"

    def test_what_is_nested_too_deep_is_refused(self):
        assert refused(b"[" * 100_000 + b"]" * 100_000) == "nested too deep"
        assert refused(b"[" * 100_000 + b"]" * 100_000, expected=OBJECT) == "nested too deep"

    def test_the_schema_is_enforced_and_only_the_place_is_told(self):
        assert refused(b'{"n":"secret"}', expected=OBJECT) == "structured content violates outputSchema at /n"
        assert refused(b'{"m":1}', expected=OBJECT) == "structured content violates outputSchema at /"
        assert from_body(b'{"n":1}', JSON, OBJECT, URI, LIMIT).structured == b'{"n":1}'

    def test_an_empty_body_is_an_error_but_204_is_not(self):
        assert refused(b"") == "empty body"
        assert from_nothing(ANY).content == b"[]"
        for expected in (OBJECT, MCP):
            with pytest.raises(ToolResponseInvalidError):
                from_nothing(expected)


class TestMedia:
    @pytest.mark.parametrize(
        ("content_type", "kind"),
        [
            ("application/json", Kind.JSON),
            ("Application/JSON; charset=UTF-8", Kind.JSON),
            ("application/vnd.api+json", Kind.JSON),
            ("application/x-ndjson", Kind.NDJSON),
            ("text/event-stream;charset=utf-8", Kind.SSE),
            ("text/html", Kind.TEXT),
            ("application/xml", Kind.TEXT),
            ("image/svg+xml", Kind.IMAGE),
            ("image/png", Kind.IMAGE),
            ("audio/wav", Kind.AUDIO),
            ("application/jsonx", Kind.BINARY),
            ("application/zip", Kind.BINARY),
            ("nonsense", Kind.BINARY),
            ("", Kind.UNKNOWN),
            (None, Kind.UNKNOWN),
        ],
    )
    def test_the_type_says_how_a_body_is_read(self, content_type, kind):
        assert parse_media(content_type).kind is kind

    @pytest.mark.parametrize("charset", ["euc-kr", "EUC-KR", "ks_c_5601-1987", "cp949"])
    def test_korean_charsets_are_decoded_as_browsers_do(self, charset):
        media = parse_media(f'application/json; charset="{charset}"')
        answer = from_body('{"msg":"똠방각하"}'.encode("cp949"), media, ANY, URI, LIMIT)
        assert json.loads(answer.structured) == {"msg": "똠방각하"}
        assert text(answer) == '{"msg":"똠방각하"}'

    def test_a_byte_order_mark_is_left_out(self):
        assert from_body(b"\xef\xbb\xbf{}", JSON, ANY, URI, LIMIT).structured == b"{}"
        media = parse_media("text/plain; charset=utf-16")
        assert text(from_body("가".encode("utf-16"), media, ANY, URI, LIMIT)) == "가"

    @pytest.mark.parametrize("charset", ["rot13", "hex", "unicode_escape", "idna", "made-up"])
    def test_what_is_no_charset_of_the_web_is_refused(self, charset):
        assert refused(b"{}", parse_media(f"application/json; charset={charset}")) == "unknown charset"

    def test_nothing_is_decoded_wrongly(self):
        assert refused("안녕".encode("euc-kr"), parse_media("text/plain")) == "not utf-8 text"
        assert refused(gzip.compress(b"{}")) == "gzip without Content-Encoding"

    def test_text_is_text(self):
        html = parse_media("text/html; charset=utf-8")
        assert text(from_body(b"<p>\xea\xb0\x80</p>", html, ANY, URI, LIMIT)) == "<p>가</p>"
        assert "outputSchema" in refused(b"<p>", html, OBJECT)
        assert refused(b"<p>", html, MCP) == "not JSON"

    def test_images_audio_and_other_bytes_are_blocks(self):
        data = bytes(range(256))
        encoded = base64.b64encode(data).decode()
        image = from_body(data, parse_media("image/png"), ANY, URI, LIMIT)
        assert blocks(image) == [{"type": "image", "data": encoded, "mimeType": "image/png"}]
        audio = from_body(data, parse_media("audio/wav; codec=1"), ANY, URI, LIMIT)
        assert blocks(audio) == [{"type": "audio", "data": encoded, "mimeType": "audio/wav"}]
        other = from_body(data, parse_media("application/pdf"), ANY, URI, LIMIT)
        resource = {"uri": URI, "mimeType": "application/pdf", "blob": encoded}
        assert blocks(other) == [{"type": "resource", "resource": resource}]

    def test_without_a_type_the_body_tells(self):
        unknown = parse_media(None)
        assert from_body(b'{"a":1}', unknown, ANY, URI, LIMIT).structured == b'{"a":1}'
        assert text(from_body(b"plain", unknown, ANY, URI, LIMIT)) == "plain"
        assert blocks(from_body(b"\xff\x00", unknown, ANY, URI, LIMIT))[0]["type"] == "resource"
        assert refused(b"plain", unknown, OBJECT) == "not JSON"
        assert refused(b"plain", unknown, MCP) == "not JSON"


GOOD_BLOCKS = [
    {"type": "text", "text": "a", "annotations": {"audience": ["user"], "priority": 0.5}, "_meta": {"x": 1}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png", "unknown": [1]},
    {"type": "audio", "data": "", "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3, "icons": [{"src": "data:,"}]},
    {"type": "resource", "resource": {"uri": "x:1", "text": "t"}},
    {"type": "resource", "resource": {"uri": "x:1", "blob": "aGk=", "mimeType": "a/b"}},
]
BAD_BLOCKS = [
    "text",
    {},
    {"type": "video", "data": "aGk="},
    {"type": "text"},
    {"type": "text", "text": 1},
    {"type": "text", "text": "a", "annotations": {"audience": ["robot"]}},
    {"type": "text", "text": "a", "annotations": {"priority": 2}},
    {"type": "text", "text": "a", "_meta": []},
    {"type": "image", "data": "not base64!", "mimeType": "image/png"},
    {"type": "image", "data": "aGk="},
    {"type": "resource_link", "uri": "no-scheme", "name": "a"},
    {"type": "resource_link", "uri": "x:1"},
    {"type": "resource", "resource": {"uri": "x:1"}},
    {"type": "resource", "resource": {"uri": "x:1", "text": "t", "blob": "aGk="}},
    {"type": "resource"},
]


class TestToolResult:
    def test_it_passes_through(self):
        content = json.dumps(GOOD_BLOCKS).encode()
        structured = b'{"n": 9007199254740993, "f": 1.0}'
        body = b'{"content": %b, "structuredContent": %b, "_meta": {"a/b": 1.0}, "isError": false}' % (
            content,
            structured,
        )
        answer = from_body(body, JSON, MCP, URI, LIMIT)
        assert answer == answers.Answer(content, structured, meta=b'{"a/b":1.0}')

    @pytest.mark.parametrize("block", BAD_BLOCKS, ids=json.dumps)
    def test_a_bad_block_is_refused(self, block):
        detail = refused(json.dumps({"content": [GOOD_BLOCKS[0], block]}).encode(), expected=MCP)
        assert "$[1]" in detail
        assert "robot" not in detail
        assert "video" not in detail

    @pytest.mark.parametrize("body", [b"[]", b"{}", b'{"content":{}}', b'{"content":[],"isError":1}', b'{"rows":[]}'])
    def test_what_is_no_tool_result_is_refused(self, body):
        refused(body, expected=MCP)

    def test_members_that_are_null_are_absent(self):
        body = (
            b'{"content":[{"type":"text","text":"null","annotations":null,"_meta":null},'
            b'{"type":"resource","resource":{"uri":"x:1","text":"t","mimeType":null}}],'
            b'"structuredContent":null,"isError":null,"_meta":null}'
        )
        answer = from_body(body, JSON, MCP, URI, LIMIT)
        assert blocks(answer) == [
            {"type": "text", "text": "null"},
            {"type": "resource", "resource": {"uri": "x:1", "text": "t"}},
        ]
        assert (answer.structured, answer.is_error, answer.meta) == (b"", False, b"")

    def test_the_schema_is_enforced_on_success_only(self):
        promised = Expected("mcp", OBJECT.output)
        assert "outputSchema" in refused(b'{"content":[]}', expected=promised)
        assert "outputSchema" in refused(b'{"content":[],"structuredContent":{"n":"x"}}', expected=promised)
        for error in (b'{"content":[],"isError":true}', b'{"content":[],"structuredContent":{},"isError":true}'):
            assert from_body(error, JSON, promised, URI, LIMIT).is_error
        null = Expected("mcp", SchemaCheck(b'{"type":"null"}'))
        assert from_body(b'{"content":[],"structuredContent":null}', JSON, null, URI, LIMIT).structured == b"null"

    def test_structured_content_alone_gets_its_text(self):
        assert text(from_body(b'{"structuredContent":{"a":1.0}}', JSON, MCP, URI, LIMIT)) == '{"a":1.0}'


class TestHttpErrors:
    def test_the_body_is_the_content(self):
        assert json.loads(from_http_error(b'{"why":"\\uac00"}', JSON, ())) == [{"type": "text", "text": '{"why":"가"}'}]

    def test_a_long_body_is_cut_at_the_border_of_a_character(self):
        body = "가".encode() * 50_000
        (block,) = json.loads(from_http_error(body, parse_media("text/plain"), ()))
        assert block["text"] == "가" * (ERROR_BODY_BYTES // 3)

    def test_broken_text_is_shown_as_far_as_it_goes(self):
        (block,) = json.loads(from_http_error(b'{"a\\u":\xff"\\ud800"', JSON, ()))
        assert block["text"] == '{"a\\u":�"\\ud800"'

    @pytest.mark.parametrize("content_type", ["image/png", "application/zip"])
    def test_bytes_are_not_shown(self, content_type):
        assert from_http_error(b"abc", parse_media(content_type), ()) == b"[]"

    def test_nothing_is_no_content(self):
        assert from_http_error(b" \n", parse_media(None), ()) == b"[]"


@pytest.mark.parametrize("rest", ['\\"' * 40_000, "\\" * 80_000, "a" * 80_000, '"' * 80_000])
def test_what_is_no_json_is_shown_as_it_is_and_quickly(rest):
    text = '\\u"' + rest
    began = time.perf_counter()
    assert answers.readable(text) == text
    assert time.perf_counter() - began < 1


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_readable_never_changes_what_the_json_says(value):
    for ensure_ascii in (True, False):
        source = json.dumps({"v": value, "w": [value]}, ensure_ascii=ensure_ascii)
        shown = answers.readable(source)
        assert msgspec.json.decode(shown) == {"v": value, "w": [value]}
        assert not any(f"\\u{ord(c):04x}" in shown for c in value if ord(c) > 0x7F and "\\u" not in value)


class TestTextsThatAreNone:
    @pytest.mark.parametrize("content_type", [None, "text/plain", "application/json", "text/html; charset=euc-kr"])
    @pytest.mark.parametrize(
        "body", [gzip.compress(b"abcdefghij" * 50, mtime=0), b"\x00\x01\x02", bytes(range(256)), b"PK\x03\x04 zip"]
    )
    def test_bytes_of_an_error_are_not_shown_as_text(self, content_type, body):
        assert from_http_error(body, parse_media(content_type), ()) == b"[]"

    def test_a_coloured_text_is_shown(self):
        assert from_http_error(b"\x1b[31mno\x1b[0m\t!\r\n", parse_media("text/plain"), ()) != b"[]"

    def test_a_text_that_becomes_much_as_json_is_too_large(self):
        for body in (b"\0" * LIMIT, b"\x1b" * (LIMIT // 2)):
            for media in (parse_media("text/plain"), parse_media(None)):
                with pytest.raises(ResultTooLargeError):
                    from_body(body, media, ANY, URI, LIMIT)
        assert len(from_body(b"a" * LIMIT, parse_media("text/plain"), ANY, URI, LIMIT).content) < LIMIT + 100
