"""One HTTP call of a tool's endpoint, against a real server that does as it is told."""

import asyncio
import gzip
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from naru.v1 import errors_pb2
from registry_service.errors import (
    ResultTooLargeError,
    ToolRefusedError,
    ToolResponseInvalidError,
    ToolUnreachableError,
)
from registry_service.upstreams.http.client import retry_after
from tests.support.endpoint_tools import CALL_ID, LIMIT, text
from tests.support.scripted_endpoint import HANGUL, Script, ndjson


class TestAnswers:
    async def test_hangul_and_digits(self, ask):
        answer = await ask("/hangul")
        assert answer.structured == HANGUL.encode()
        assert text(answer) == HANGUL
        assert text(await ask("/escaped-hangul")) == '{"msg": "안녕"}'
        assert text(await ask("/separators")) == '{"text":"a\u2028b\u2029c\u0085d"}'

    @pytest.mark.parametrize("path", ["/gzip", "/deflate", "/deflate-bare", "/brotli"])
    async def test_compression(self, ask, path):
        assert (await ask(path)).structured == HANGUL.encode()

    @pytest.mark.parametrize(
        ("path", "detail"),
        [
            ("/gzip-without-label", "gzip without Content-Encoding"),
            ("/gzip-label-only", "broken gzip"),
            ("/gzip-cut", "cut gzip"),
            ("/zstd", "unknown Content-Encoding"),
            ("/empty", "empty body"),
            ("/not-json", "not JSON"),
            ("/deep", "nested too deep"),
            ("/not-http", "malformed HTTP"),
            ("/ndjson-without-result", "the stream ended without a result"),
        ],
    )
    async def test_answers_that_are_none(self, ask, path, detail):
        with pytest.raises(ToolResponseInvalidError) as caught:
            await ask(path)
        assert caught.value.facts["detail"] == detail

    @pytest.mark.parametrize("encoding", ["UTF-8", "utf-8, gzip", "identity, gzip", "none", "EUC-KR", ""])
    async def test_a_charset_is_no_coding(self, ask, endpoint, encoding):
        body = gzip.compress(HANGUL.encode()) if "gzip" in encoding else HANGUL.encode()
        script = Script(chunks=[body], headers=[("Content-Encoding", encoding)])
        assert (await ask(endpoint.serve("/coded", script))).structured == HANGUL.encode()

    @pytest.mark.parametrize("content_type", [None, "application/json", "text/plain", "application/x-ndjson"])
    @pytest.mark.parametrize("status", [201, 202])
    async def test_created_and_accepted_need_no_content(self, ask, endpoint, status, content_type):
        location = ("Location", "https://jobs.example/7?token=키")
        script = Script(status=status, content_type=content_type, headers=[location])
        answer = await ask(endpoint.serve("/made", script))
        assert (text(answer), answer.is_error, answer.structured) == (location[1], False, b"")
        script = Script(status=status, content_type=content_type)
        assert (await ask(endpoint.serve("/made", script))).content == b"[]"
        with pytest.raises(ToolResponseInvalidError):
            await ask(endpoint.url("/made"), output={"type": "object"})
        script = Script(status=status, chunks=[b'{"a":1}'], headers=[location])
        assert (await ask(endpoint.serve("/made", script))).structured == b'{"a":1}'

    async def test_a_large_answer_is_as_a_small_one(self, ask):
        assert len((await ask(f"/size?n={LIMIT - 1}")).structured) == LIMIT - 1

    async def test_other_bodies(self, ask):
        assert text(await ask("/euc-kr")) == '{"msg":"안녕"}'
        assert text(await ask("/euc-kr-text")) == "똠방각하 안녕"
        assert text(await ask("/html")).startswith("<!doctype html>")
        assert text(await ask("/list")) == "[1, 2.0]"
        assert (await ask("/unlabelled")).structured == b'{"a":1}'
        assert (await ask("/empty-204")).content == b"[]"
        assert json.loads((await ask("/png")).content)[0]["mimeType"] == "image/png"
        assert json.loads((await ask("/wav")).content)[0]["type"] == "audio"
        resource = json.loads((await ask("/binary")).content)[0]["resource"]
        assert resource["uri"] == f"naru://calls/{CALL_ID}/result"

    async def test_a_tool_result_passes_through(self, ask, endpoint):
        body = b'{"content":[{"type":"text","text":"\xea\xb0\x80"}],"structuredContent":{"n": 1.0},"isError":true}'
        answer = await ask(endpoint.serve("/mcp", Script(chunks=[body])), result="mcp")
        assert (text(answer), answer.structured, answer.is_error) == ("가", b'{"n": 1.0}', True)

    async def test_the_output_schema_is_enforced(self, ask):
        promise = {"type": "object", "required": ["n"]}
        assert (await ask("/echo", b'{"n":1}', output=promise)).structured == b'{"n":1}'
        for path in ("/echo", "/html", "/png", "/empty-204", "/list"):
            with pytest.raises(ToolResponseInvalidError):
                await ask(path, output=promise)
        assert (await ask("/500", output=promise)).is_error

    async def test_sizes(self, ask):
        assert len((await ask(f"/size?n={LIMIT}")).structured) == LIMIT
        for path in (f"/size?n={LIMIT + 1}", "/gzip-bomb"):
            with pytest.raises(ResultTooLargeError) as caught:
                await ask(path)
            assert caught.value.facts == {"limit_bytes": LIMIT}


class TestRefusals:
    @pytest.mark.parametrize("path", ["/401", "/403"])
    async def test_a_refusal_of_our_credential_shows_nothing_of_it(self, ask, path):
        with pytest.raises(ToolRefusedError) as caught:
            await ask(path, idempotent=True)
        assert caught.value.facts == {"http_status": int(path[1:]), "safe_to_retry": False}

    async def test_an_http_error_is_an_answer_of_the_tool(self, ask):
        answer = await ask("/500")
        assert (text(answer), answer.is_error, answer.structured) == ("고장", True, b"")
        assert (answer.reason, answer.facts) == (errors_pb2.TOOL_HTTP_ERROR, {"http_status": 500})
        answer = await ask("/404")
        assert text(answer) == '{"why":"no such row"}'
        assert answer.facts == {"http_status": 404, "safe_to_retry": False}
        assert (await ask("/429")).facts == {"http_status": 429, "retry_after_seconds": 7}
        assert (await ask("/500-empty")).content == b"[]"
        assert len(text(await ask("/500-large")).encode()) in range(65_530, 65_537)

    async def test_the_date_of_retry_after_becomes_seconds(self, ask, endpoint):
        at = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
        script = Script(status=429, headers=[("Retry-After", at)])
        assert (await ask(endpoint.serve("/later", script))).facts["retry_after_seconds"] in (89, 90)

    @pytest.mark.parametrize(
        ("value", "seconds"),
        [
            *(("0", 0), ("7", 7), ("99999999", 999999), ("", None), ("soon", None), ("-1", None), ("1.5", None)),
            ("Thu, 01 Jan 1970 00:01:40 GMT", 100),
            ("Thursday, 01-Jan-70 00:01:40 GMT", 100),
            ("Thu Jan  1 00:01:40 1970", 100),
            ("Thu, 01 Jan 1970 09:01:40 +0900", 100),
            ("Wed, 31 Dec 1969 23:00:00 GMT", 0),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 999999),
            *(("Thu, 99 Jan 1970 00:01:40 GMT", None), ("Thu, 01 Jan 99999 00:01:40 GMT", None), ("\u0661", None)),
        ],
    )
    def test_what_retry_after_says(self, value, seconds):
        assert retry_after(value, 0.0) == seconds

    async def test_where_a_redirect_leads_is_for_those_who_run_the_tool(self, ask, endpoint, tmp_path):
        (tmp_path / "key").write_text("k-12345")
        headers = [("Location", "https://new.example/k-12345/path?session=abc")]
        url = endpoint.serve("/moved", Script(status=307, headers=headers))
        answer = await ask(url, headers={"X-Api-Key": "${secret:key}"})
        assert answer.note == "Location: https://new.example/***/path"
        assert b"new.example" not in answer.content
        assert answer.facts == {"http_status": 307, "safe_to_retry": False}

    async def test_a_redirect_is_not_followed(self, ask, endpoint):
        answer = await ask("/redirect")
        assert answer.facts["http_status"] == 302
        assert b"169.254" not in answer.content
        moved = Script(status=307, headers=[("Location", endpoint.url("/echo"))])
        assert (await ask(endpoint.serve("/moved", moved))).facts["http_status"] == 307
        assert [request.path for request in endpoint.received] == ["/redirect", "/moved"]

    @pytest.mark.parametrize(
        "url",
        [
            "http://169.254.169.254/latest/meta-data/",
            "http://[::ffff:100.64.0.1]/",
            "http://[fd00:ec2::254]/",
            "http://2852039166/",
            "http://0xa9fea9fe/",
            "http://10.0.0.1/",
        ],
    )
    async def test_addresses_that_must_not_be_called(self, ask, url):
        with pytest.raises(ToolUnreachableError) as caught:
            await ask(url, idempotent=True)
        assert caught.value.facts == {"detail": "address not allowed", "safe_to_retry": False}


class TestStreams:
    @pytest.mark.parametrize("path", ["/sse-crlf", "/sse-lone-cr", "/sse-crlf-split", "/sse-multi-line"])
    async def test_line_ends(self, ask, path):
        progress = []
        answer = await ask(path, on_progress=lambda *event: progress.append(event))
        assert json.loads(answer.structured) == {"a": 1}
        assert progress == ([] if path == "/sse-multi-line" else [(1, None, "")])

    async def test_progress_comes_in_order_and_before_the_result(self, ask):
        progress = []
        answer = await ask("/ndjson", on_progress=lambda *event: progress.append(event))
        assert progress == [(1, 3, "하나"), (2, 3, ""), (3.5, None, "")]
        assert json.loads(answer.structured) == {"done": True, "msg": "안녕"}

    async def test_a_stream_is_read_also_when_nobody_wants_progress(self, ask):
        assert json.loads((await ask("/ndjson")).structured)["done"]

    async def test_characters_split_over_chunks(self, ask):
        assert text(await ask("/sse-hangul-split")) == '{"msg":"안녕"}'

    async def test_an_error_frame_is_the_tools_error(self, ask):
        answer = await ask("/sse-error")
        assert (text(answer), answer.is_error, answer.reason) == ("no such row", True, 0)

    async def test_what_follows_the_result_is_not_waited_for(self, ask, endpoint):
        script = ndjson({"result": {"a": 1}})
        script.end = "stall"
        assert (await ask(endpoint.serve("/lingers", script))).structured == b'{"a": 1}'
        async with asyncio.timeout(1):
            assert (await endpoint.gone()).path == "/lingers"

    async def test_a_stream_is_bounded(self, ask, endpoint):
        endless = Script(content_type="text/event-stream", chunks=[b"x" * 65536] * 32, framing="chunked")
        with pytest.raises(ResultTooLargeError):
            await ask(endpoint.serve("/endless", endless))

    async def test_progress_arrives_while_the_tool_works(self, ask, endpoint):
        first = asyncio.get_running_loop().create_future()

        def report(*event):
            if not first.done():
                first.set_result(event)

        call = asyncio.create_task(ask("/gated-progress", on_progress=report))
        assert await asyncio.wait_for(first, 5) == (1, 2, "waits")
        assert not call.done()
        endpoint.gate.set()
        assert (await call).structured == b'{"passed":true}'
