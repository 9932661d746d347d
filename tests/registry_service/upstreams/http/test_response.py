"""From a body to what an MCP client is told."""

import asyncio
import base64
import gzip
import itertools
import json
import time
import zlib

import brotli  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError
from registry_service.tools.schema_check import SchemaCheck
from registry_service.upstreams import answer as answers
from registry_service.upstreams import strict_json
from registry_service.upstreams.answer import Expected, from_json, from_nothing
from registry_service.upstreams.http.body import Body
from registry_service.upstreams.http.event_stream import StreamedAnswer
from registry_service.upstreams.http.media_type import Kind, parse_media
from registry_service.upstreams.http.response import ERROR_BODY_BYTES, from_body, from_http_error, from_stream_error
from registry_service.upstreams.http.turns import Effort, Pace, Turns

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


def feed_all(content_type, chunks, expected=ANY, limit=10_000):
    progress = []
    stream = StreamedAnswer(parse_media(content_type), limit, lambda *event: progress.append(event))
    final = next(filter(None, map(stream.feed, chunks)), None) or stream.finish()
    if final.is_error:
        return from_stream_error(final.text, ()), progress
    return from_json(final.text, expected), progress


SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
EVENTS = (
    '\ufeff: comment\nid: 1\ndata:\n\nevent: x\ndata: {"progress":1,"message":"안녕"}\r\n\r\n'
    'data:{"other":1}\r\rdata: {"progress":\rdata: 2.5, "total": null}\n\r\n\n'
    'data: {"result":\r\ndata: {"a":"b\u2028c\u0085"}}\n\n'
).encode()
LINES = (
    '{"progress":1,"message":"안녕"}\r\n\n{"other":1}\n \n{"progress":2.5}\n{"result":{"a":"b\u2028c\u0085"}}'
).encode()


class TestStreams:
    @given(st.sampled_from([(SSE, EVENTS), (NDJSON, LINES)]), st.lists(st.integers(0, 300), max_size=40))
    @settings(max_examples=150)
    def test_chunks_may_be_cut_anywhere(self, stream, cuts):
        content_type, data = stream
        borders = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        chunks = [data[start:end] for start, end in itertools.pairwise(borders)]
        answer, progress = feed_all(content_type, chunks)
        assert json.loads(answer.structured) == {"a": "b\u2028c\u0085"}
        assert progress == [(1, None, "안녕"), (2.5, None, "")]

    def test_a_byte_at_a_time(self):
        for content_type, data in ((SSE, EVENTS), (NDJSON, LINES)):
            answer, progress = feed_all(content_type, [data[i : i + 1] for i in range(len(data))])
            assert "b\u2028c\u0085" in text(answer)
            assert len(progress) == 2

    @pytest.mark.parametrize("data", [b"", b'{"progress":1}\n', b"\n\n", b'{"progress":1}\n{"resu'])
    def test_the_end_without_a_result_is_an_error(self, data):
        for content_type, chunk in ((NDJSON, data), (SSE, b"data: " + data)):
            with pytest.raises(ToolResponseInvalidError):
                feed_all(content_type, [chunk])

    @pytest.mark.parametrize(
        "other",
        [
            *(b"[1]", b"oops", b"2026-11-30T00:00:00Z", b"1", b'"ping"', b"null", b"{", b"\xff\xfe", b"[" * 2000),
            *(b'{"progress":"50%","message":"x"}', b'{"progress":true}', b'{"progress":1e999}', b'{"message":1}'),
            *(b'{"progress":1,"total":"3"}', b'{"progress":1,"message":["x"]}', b'{"a":"\\ud800"', b"INFO: row 5"),
        ],
    )
    def test_what_is_no_frame_is_passed_over_and_counted(self, other):
        for content_type, before in ((NDJSON, b""), (SSE, b"event: ping\ndata: ")):
            stream = StreamedAnswer(parse_media(content_type), LIMIT, None)
            end = b"\n\n"
            final = stream.feed(before + other + end + before + b'{"result":{"a":1}}' + end)
            assert final is not None
            assert (final.text, stream.passed_over) == ('{"a":1}', 1)

    def test_a_stream_of_nothing_but_other_lines_says_how_many(self):
        with pytest.raises(ToolResponseInvalidError, match="3 lines or events") as caught:
            feed_all(NDJSON, [b'oops\n{"result":{"a":"\xff"}}\n[1]\n'])
        assert caught.value.facts["detail"] == "the stream ended without a result"

    def test_a_result_beside_something_strange_is_the_result(self):
        answer, progress = feed_all(NDJSON, [b'{"progress":"all","result":{"a":1}}\n'])
        assert (answer.structured, progress) == (b'{"a":1}', [])

    @pytest.mark.parametrize(
        "frame", [b'{"result":1,"result":2}', b'{"result":{"a":1,"a":2}}', b'{"error":"x","error":{"message":"y"}}']
    )
    def test_a_last_frame_that_can_be_read_in_two_ways_is_refused(self, frame):
        with pytest.raises(ToolResponseInvalidError) as caught:
            feed_all(NDJSON, [frame + b"\n"])
        assert caught.value.facts["detail"] == "a duplicate key"

    def test_of_much_progress_the_last_is_passed_on(self):
        progress = []
        stream = StreamedAnswer(parse_media(NDJSON), LIMIT, lambda *event: progress.append(event[0]))
        stream.feed(b"".join(b'{"progress":%d}\n' % number for number in range(100)), sparing=True)
        stream.feed(b'{"progress":100}\n{"progress":101}\n{"result":1}\n', sparing=True)
        assert progress == [99, 101]
        assert stream.spared == 100

    def test_results_keep_their_digits(self):
        answer, _ = feed_all(NDJSON, [b'{"result": {"n": 9007199254740993, "f": 1.0}}\n'])
        assert answer.structured == b'{"n": 9007199254740993, "f": 1.0}'

    def test_a_result_is_read_as_the_definition_says(self):
        answer, _ = feed_all(NDJSON, [b'{"result":{"content":[],"isError":true}}\n'], MCP)
        assert answer.is_error
        with pytest.raises(ToolResponseInvalidError):
            feed_all(NDJSON, [b'{"result":{"n":"x"}}\n'], OBJECT)
        assert feed_all(NDJSON, [b'{"error":null,"result":null}\n'])[0].content == answers.text_content("null")

    def test_an_error_is_an_error_of_the_tool(self):
        assert text(from_stream_error('{"message":"no such row","code":7}', ())) == "no such row"
        assert text(from_stream_error('"gone"', ())) == "gone"
        assert text(from_stream_error('{"code":"\\uac00"}', ())) == '{"code":"가"}'
        answer, _ = feed_all(NDJSON, [b'{"result":null,"error":{"message":"m"}}\n'], OBJECT)
        assert answer.is_error

    def test_a_frame_and_the_whole_are_bounded(self):
        with pytest.raises(ResultTooLargeError) as caught:
            feed_all(NDJSON, [b"x" * 100] * 101)
        assert caught.value.facts == {"limit_bytes": 10_000}
        with pytest.raises(ResultTooLargeError):
            feed_all(SSE, [b"data: x\n"] * 10_000)
        with pytest.raises(ResultTooLargeError):
            feed_all(SSE, [b'data: {"progress":1}\n\n'] * 10_000, limit=1000)
        with pytest.raises(ResultTooLargeError):
            feed_all(SSE, [b":\n\n"] * 10_000, limit=1000)

    def test_other_charsets_of_ndjson_are_decoded(self):
        chunk = '{"result":{"msg":"안녕"}}\n'.encode("euc-kr")
        answer, _ = feed_all("application/x-ndjson; charset=euc-kr", [chunk])
        assert json.loads(answer.structured) == {"msg": "안녕"}


class Raw:
    """What the HTTP client is to `Body`: hands out chunks, and then nothing."""

    def __init__(self, data, size):
        self.chunks = [data[start : start + size] for start in range(0, len(data), size)]

    async def read(self, pace):
        return self.chunks.pop(0) if self.chunks else b""


def body_of(raw, encoding, limit=1 << 30):
    return Body(raw.read, encoding, limit, Pace(Effort(), Turns()))


PLAIN = b'{"text":"' + b"abcdefghij" * 100_000 + b'"}'
BARE = zlib.compressobj(wbits=-15)
COMPRESSED = [
    ("", PLAIN),
    ("identity", PLAIN),
    ("gzip", gzip.compress(PLAIN)),
    ("GZIP ", gzip.compress(PLAIN[:500]) + gzip.compress(PLAIN[500:])),
    ("deflate", zlib.compress(PLAIN)),
    ("deflate", BARE.compress(PLAIN) + BARE.flush()),
    ("br", brotli.compress(PLAIN)),
]


class TestBodies:
    @pytest.mark.parametrize(("encoding", "data"), COMPRESSED)
    @pytest.mark.parametrize("size", [1, 7, 100_000])
    async def test_whole_bodies(self, encoding, data, size):
        if size == 1:
            data = data if encoding.strip() and encoding != "identity" else data[:5000]
        body = await body_of(Raw(data, size), encoding).read_all(len(PLAIN))
        assert body == PLAIN[: len(body)]
        assert len(body) == len(PLAIN) or not encoding.strip() or encoding == "identity"

    @pytest.mark.parametrize(("encoding", "data"), COMPRESSED[2:])
    async def test_a_cut_body_is_an_error(self, encoding, data):
        with pytest.raises(ToolResponseInvalidError) as caught:
            await body_of(Raw(data[:-1], 100), encoding).read_all(len(PLAIN))
        assert caught.value.facts["detail"] == f"cut {encoding.strip().lower()}"

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
    async def test_a_label_that_lies_is_an_error(self, encoding):
        with pytest.raises(ToolResponseInvalidError):
            await body_of(Raw(b'{"a":"not compressed at all"}', 100), encoding).read_all(1000)

    @pytest.mark.parametrize("encoding", ["zstd", "gzip, br", "compress"])
    def test_an_encoding_that_was_not_asked_for_is_an_error(self, encoding):
        with pytest.raises(ToolResponseInvalidError):
            body_of(Raw(b"", 1), encoding)

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
    async def test_the_limit_is_on_what_comes_out(self, encoding):
        bomb = b"\0" * 40_000_000
        compress = {"gzip": lambda data: gzip.compress(data, 1), "deflate": zlib.compress, "br": brotli.compress}
        body = body_of(Raw(compress[encoding](bomb), 65536), encoding)
        with pytest.raises(ResultTooLargeError) as caught:
            await body.read_all(1_000_000)
        assert caught.value.facts == {"limit_bytes": 1_000_000}

    async def test_the_limit_itself_is_admitted(self):
        assert await body_of(Raw(b"12345", 2), "").read_all(5) == b"12345"
        with pytest.raises(ResultTooLargeError):
            await body_of(Raw(b"123456", 2), "").read_all(5)

    async def test_the_start_of_a_body(self):
        assert await body_of(Raw(b"123456", 4), "").read_start(5, 5) == b"12345"
        assert await body_of(Raw(gzip.compress(PLAIN)[:-1], 100), "gzip").read_start(1 << 30, 5) == PLAIN

    async def test_no_body_is_empty_under_every_label(self):
        for encoding in ("", "gzip", "deflate", "br"):
            assert await body_of(Raw(b"", 1), encoding).read_all(5) == b""


async def test_little_that_unfolds_to_much_lets_others_have_their_turn():
    stretches = []

    async def others():
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            stretches.append(now - last)
            last = now

    task = asyncio.create_task(others())
    body = body_of(Raw(gzip.compress(b"\n" * (64 << 20)), 65536), "gzip")
    while await body.read():
        pass
    task.cancel()
    assert max(stretches) < 0.02


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


def nested(depth):
    return b'{"a":' * (depth // 2) + b"[" * (depth - depth // 2) + b"]" * (depth - depth // 2) + b"}" * (depth // 2)


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
]
READABLE = [
    nested(64),
    b'{"n":' + b"9" * 4300 + b"}",
    b'{"s":"' + b"9" * 5000 + b'"}',
    b'{"s":"\\\\","t":"\\"' + b"[" * 500 + b'"}',
    b'[{"a":1},{"a":1},{"b":{"a":{"a":1}}}]',
    b'{"a":"a\\":1","b":"\\\\","c":":"}',
    b'{"f":1.50,"g":1e300,"z":-0}',
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


class TestTextsThatAreNone:
    @pytest.mark.parametrize("content_type", [None, "text/plain", "application/json", "text/html; charset=euc-kr"])
    @pytest.mark.parametrize(
        "body", [gzip.compress(PLAIN[:500]), b"\x00\x01\x02", bytes(range(256)), b"PK\x03\x04 zip"]
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
