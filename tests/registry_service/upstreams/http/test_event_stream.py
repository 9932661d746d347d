"""Streams of frames, cut anywhere."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError
from registry_service.upstreams import answer as answers
from registry_service.upstreams.answer import from_json
from registry_service.upstreams.http.event_stream import StreamedAnswer
from registry_service.upstreams.http.media_type import parse_media
from registry_service.upstreams.http.response import from_stream_error
from tests.registry_service.upstreams.http.test_response import ANY, LIMIT, MCP, OBJECT, text


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
