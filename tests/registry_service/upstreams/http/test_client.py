"""One HTTP call of a tool's endpoint, against a real server that does as it is told."""

import asyncio
import base64
import contextlib
import gzip
import json
import re
import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from naru.v1 import errors_pb2
from registry_service.errors import (
    ArgumentsInvalidError,
    ResultTooLargeError,
    ToolFailedError,
    ToolRefusedError,
    ToolResponseInvalidError,
    ToolUnreachableError,
)
from registry_service.tools.active_tool import ActiveTool, Running
from registry_service.tools.checks import Checks
from registry_service.tools.definition import Definition, parse_definition
from registry_service.tools.schema_check import SchemaCheck
from registry_service.upstreams.http.client import EndpointClient, retry_after
from registry_service.upstreams.http.request import MAX_URL_ARGUMENTS
from registry_service.upstreams.http.response import ERROR_BODY_BYTES
from registry_service.upstreams.upstream import Attempt, Context
from tests.support.certificates import make_certificates
from tests.support.samples import definition, raw
from tests.support.scripted_endpoint import HANGUL, Script, ScriptedEndpoint, ndjson
from tests.support.waiting import eventually

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
CALL_ID = "0123456789abcdef0123456789abcdef"
LIMIT = 1_000_000


def make_tool(url, *, names=(), idempotent=False, output=None, **endpoint):
    parsed = parse_definition(
        raw(
            definition(
                inputSchema={"type": "object", "properties": {name: {} for name in names}},
                outputSchema=output,
                annotations={"idempotentHint": True} if idempotent else None,
                endpoint={"production": {"url": url, **endpoint}},
            )
        )
    )
    assert isinstance(parsed, Definition), parsed
    check = SchemaCheck(parsed.input_schema)
    promised = None if parsed.output_schema is None else SchemaCheck(parsed.output_schema)
    return ActiveTool("tool", "1.0.0", parsed, b"", check, promised, Running())


@pytest.fixture
async def endpoint():
    async with ScriptedEndpoint() as scripted:
        yield scripted


@pytest.fixture
async def client(tmp_path):
    checks = Checks()
    opened = EndpointClient(LOOPBACK, tmp_path, LIMIT, checks)
    await opened.open()
    yield opened
    await opened.close()
    await checks.close()


@pytest.fixture
def ask(client, endpoint):
    """Calls an endpoint: a URL, or a path of the scripted one."""

    async def ask(url, arguments=b"{}", *, on_progress=None, attempt=None, **settings):
        url = endpoint.url(url) if url.startswith("/") else url
        request = client.prepare(make_tool(url, **settings), "production", arguments)
        context = Context(CALL_ID, 5.5, "r-1", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "v=1")
        async with asyncio.timeout(10):
            return await client.call(request, context, attempt or Attempt(), on_progress)

    return ask


def text(answer):
    (block,) = json.loads(answer.content)
    return block["text"]


def pointers(error: Any):
    return [violation["pointer"] for violation in error.facts["violations"]]


class TestRequests:
    async def test_the_body_is_the_clients_bytes(self, ask, endpoint):
        arguments = b'{ "n":9007199254740993,"f":1.0 , "k":"\\uac00", "b":[1,\n2] }'
        answer = await ask("/echo", arguments)
        assert endpoint.received[0].body == arguments
        assert answer.structured == arguments

    async def test_false_zero_empty_and_null_are_told_apart(self, ask, endpoint):
        arguments = b'{"flag":false,"q":"","n":0,"x":null}'
        await ask("/echo", arguments)
        assert json.loads(endpoint.received[0].body) == {"flag": False, "q": "", "n": 0, "x": None}
        await ask("/target?fixed=1", arguments, method="GET")
        assert endpoint.received[1].target == "/target?fixed=1&flag=false&q=&n=0"

    async def test_a_query_keeps_digits_repeats_arrays_and_shows_objects_as_json(self, ask, endpoint):
        arguments = '{"n":9007199254740993,"f":1.0,"a":["x",2,null,true],"o":{"k": 1.0},"e":[],"한":"가 &=+#"}'
        await ask("/target", arguments.encode(), method="DELETE")
        request = endpoint.received[0]
        assert request.method == "DELETE"
        assert request.body == b""
        assert request.target == (
            "/target?n=9007199254740993&f=1.0&a=x&a=2&a=true&o=%7B%22k%22%3A%201.0%7D"
            "&%ED%95%9C=%EA%B0%80%20%26%3D%2B%23"
        )
        assert request.header("Content-Type") is None

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    async def test_no_argument_stands_beside_a_fixed_parameter(self, ask, endpoint, method):
        with pytest.raises(ArgumentsInvalidError) as caught:
            await ask("/target?fixed=1&e%20f=", b'{"fixed":2,"e f":3,"x":4}', method=method)
        message = "is fixed by the tool's endpoint"
        told = [{"pointer": pointer, "message": message, "keyword": "fixed"} for pointer in ("/fixed", "/e f")]
        assert caught.value.facts["violations"] == told
        assert endpoint.received == []

    @pytest.mark.parametrize("name", ["Key", "KEY", "key[]", "Key[a][b]", "key\0x", " key", "key[", "\u212aey"])
    async def test_no_argument_is_taken_for_a_fixed_parameter(self, ask, endpoint, name):
        with pytest.raises(ArgumentsInvalidError):
            await ask("/target?key=1", json.dumps({name: 2}).encode(), method="GET")
        assert endpoint.received == []

    async def test_names_that_only_resemble_a_fixed_parameter_are_sent(self, ask, endpoint):
        await ask("/target?key=1", b'{"keys":1,"a[key]":2,"ke":3}', method="GET")
        assert endpoint.received[0].target == "/target?key=1&keys=1&a%5Bkey%5D=2&ke=3"

    async def test_path_arguments_are_encoded_whole_and_leave_the_rest(self, ask, endpoint):
        arguments = '{"id":"a/b?c#d%2F@é가","n":9007199254740993, "rest":1.0,"more":{"x": 1}}'
        await ask("/target/{id}/x-{n}", arguments.encode(), names=("id", "n"), method="PUT")
        request = endpoint.received[0]
        assert request.target == "/target/a%2Fb%3Fc%23d%252F%40%C3%A9%EA%B0%80/x-9007199254740993"
        assert request.body == b'{"rest":1.0,"more":{"x": 1}}'
        await ask("/target/{id}", b'{"id":true,"q":1}', names=("id",), method="GET")
        assert endpoint.received[1].target == "/target/true?q=1"

    async def test_an_argument_cannot_change_the_host(self, ask, endpoint):
        await ask("/target/{id}", b'{"id":"@evil.example/"}', names=("id",))
        assert endpoint.received[0].target == "/target/%40evil.example%2F"

    @pytest.mark.parametrize(
        "value",
        [
            *(
                "",
                ".",
                "..",
                "%2e%2e",
                "%2E.",
                ".%252e",
                "%25252525252e%2e",
                "a/..",
                "../a",
                "a\\..\\b",
                "..%2Fa",
                "．．",
                "‥",
                "..;",
                "..;a=b",
                ".;/x",
                "a/..;/b",
                "%2e%2e%3b",
            ),
            *("a\0", "\n", "a\tb", "\x7f", "\x85", "%00", "a%250d%250ab"),
            *(None, [], ["a"], {"a": 1}),
        ],
        ids=repr,
    )
    async def test_what_could_leave_the_path_is_refused(self, ask, endpoint, value):
        with pytest.raises(ArgumentsInvalidError) as caught:
            await ask("/target/{id}/x", json.dumps({"id": value}).encode(), names=("id",))
        assert caught.value.facts["tool"] == "tool"
        assert pointers(caught.value) == ["/id"]
        assert endpoint.received == []

    async def test_every_fault_of_the_path_is_told(self, ask):
        with pytest.raises(ArgumentsInvalidError) as caught:
            await ask("/target/{a~b}/{c}", b'{"a~b":""}', names=("a~b", "c"))
        assert pointers(caught.value) == ["/a~0b", "/c"]

    @pytest.mark.parametrize(("path", "method"), [("/target/{id}", {}), ("/target", {"method": "GET"})])
    @pytest.mark.parametrize("value", ["%25" * 1_000_000, "한" * 1_000_000, "x" * MAX_URL_ARGUMENTS])
    async def test_what_is_too_long_for_a_url_is_refused_at_once(self, ask, endpoint, path, method, value):
        """To encode it took seconds, in which nobody else was served."""
        arguments = json.dumps({"id": value}, ensure_ascii=False).encode()
        began = time.thread_time()
        with pytest.raises(ArgumentsInvalidError) as caught:
            await ask(path, arguments, names=("id",), **method)
        assert time.thread_time() - began < 0.2
        violations: Any = caught.value.facts["violations"]
        assert [fact["keyword"] for fact in violations] == ["urlLength"]
        assert endpoint.received == []

    @pytest.mark.parametrize(
        "value", ["...", ".a", "a..b", "-", "%", "%zz", "100%", " ", "a.", "한글", ";", "a;..", "a;b", "%20"]
    )
    async def test_what_only_looks_like_it_is_not(self, ask, endpoint, value):
        await ask("/target/{id}", json.dumps({"id": value}).encode(), names=("id",))
        assert len(endpoint.received) == 1

    async def test_only_headers_of_our_own_are_sent(self, ask, endpoint):
        await ask("/headers", headers={"accept": "application/vnd.api+json", "X-Api-Key": "k"})
        headers = {name.lower(): value for name, value in endpoint.received[0].headers}
        assert len(headers) == len(endpoint.received[0].headers)
        assert re.fullmatch("00-a{32}-(?!b{16})[0-9a-f]{16}-01", headers.pop("traceparent"))
        assert headers == {
            "host": f"127.0.0.1:{endpoint.port}",
            "accept": "application/vnd.api+json",
            "accept-encoding": "gzip, deflate, br",
            "content-length": "2",
            "content-type": "application/json",
            "idempotency-key": CALL_ID,
            "tracestate": "v=1",
            "user-agent": "naru",
            "x-api-key": "k",
            "x-naru-call-id": CALL_ID,
            "x-naru-deadline-ms": "5500",
            "x-naru-lane": "production",
            "x-naru-tool": "tool",
            "x-naru-version": "1.0.0",
            "x-request-id": "r-1",
        }

    async def test_the_definition_chooses_the_content_type(self, ask, endpoint):
        await ask("/headers", headers={"content-type": "application/vnd.api+json"})
        assert endpoint.received[0].header("content-type") == "application/vnd.api+json"

    async def test_cookies_are_not_kept(self, ask, endpoint):
        await ask("/set-cookie")
        await ask("/headers")
        assert endpoint.received[1].header("Cookie") is None

    async def test_the_environments_proxy_is_not_used(self, ask, monkeypatch):
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        assert (await ask("/echo")).structured == b"{}"


class TestSecrets:
    async def test_they_come_from_files_and_are_read_again_when_they_change(self, ask, endpoint, tmp_path):
        file = tmp_path / "stats.key"
        for content in ("first-키\n", None, "second\r\n"):
            if content is not None:
                file.write_text(content)
                expected = f"Key {content.strip()}!"
            await ask("/headers", headers={"X-Api-Key": "Key ${secret:stats.key}!"})
            received = endpoint.received[-1].header("X-Api-Key")
            assert received.encode("latin-1").decode() == expected

    @pytest.mark.parametrize("content", [None, b"", b"\n", b"a\r\nX-Evil: 1", b"a\x00", b"\xff", b"k" * 20_000])
    async def test_one_that_is_absent_or_broken_fails_before_anything_is_sent(self, ask, endpoint, tmp_path, content):
        if content is not None:
            (tmp_path / "key").write_bytes(content)
        with pytest.raises(ToolUnreachableError) as caught:
            await ask("/headers", headers={"X-Api-Key": "${secret:key}"})
        assert caught.value.facts == {"detail": "secret not available", "secret": "key", "safe_to_retry": False}
        assert "Evil" not in str(caught.value)
        assert endpoint.received == []

    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_they_may_stand_in_the_query(self, ask, endpoint, tmp_path, method):
        (tmp_path / "key").write_text("a+b/c=&d 키\n")
        await ask("/target?serviceKey=${secret:key}&n=1", b'{"q":"x"}', method=method)
        more = "&q=x" if method == "GET" else ""
        assert endpoint.received[0].target == f"/target?serviceKey=a%2Bb%2Fc%3D%26d%20%ED%82%A4&n=1{more}"
        with pytest.raises(ToolUnreachableError) as caught:
            await ask("/target?serviceKey=${secret:nope}", method=method)
        assert caught.value.facts["detail"] == "secret not available"

    async def test_those_of_the_query_are_not_overwritten(self, ask, endpoint, tmp_path):
        (tmp_path / "key").write_text("k-12345")
        with pytest.raises(ArgumentsInvalidError):
            await ask("/target?serviceKey=${secret:key}", b'{"SERVICEKEY":"mine"}', method="GET")
        assert endpoint.received == []

    @pytest.mark.parametrize(
        "form",
        [
            "{0}",
            "<b>{0}</b>",
            '{{"echo":"Key {0}"}}',
            "%7B{1}%7D",
            "{2}",
            "dXNlcjpwYXNz {3}",
        ],
    )
    async def test_an_error_shows_none_of_them(self, ask, endpoint, tmp_path, form):
        secret = "s3cr&t/키 value"
        (tmp_path / "key").write_text(secret)
        percent = quote(secret, safe="")
        whole = base64.b64encode(f"user:{secret}".encode()).decode()
        body = form.format(secret, percent.lower(), base64.b64encode(secret.encode()).decode(), whole)
        url = endpoint.serve("/repeats", Script(status=500, content_type="text/plain", chunks=[body.encode()]))
        answer = await ask(url, headers={"X-Api-Key": "${secret:key}"})
        assert "***" in text(answer)
        for part in (secret, "s3cr", percent.lower(), whole[10:-8]):
            assert part not in text(answer)
        stream = ndjson({"error": {"message": body}})
        assert "s3cr" not in text(await ask(endpoint.serve("/stream", stream), headers={"X-Api-Key": "${secret:key}"}))

    async def test_one_at_the_end_of_what_is_shown_is_hidden_too(self, ask, endpoint, tmp_path):
        secret = "k" * 30 + "-secret"
        (tmp_path / "key").write_text(secret)
        body = b"x" * (ERROR_BODY_BYTES - 10) + secret.encode() + b"y" * 100_000
        url = endpoint.serve("/long", Script(status=500, content_type="text/plain", chunks=[body]))
        shown = text(await ask(url, headers={"X-Api-Key": "${secret:key}"}))
        assert shown.endswith("x***yyyyyyy")

    async def test_without_a_directory_there_are_none(self, endpoint):
        client = EndpointClient(LOOPBACK, None, LIMIT, Checks())
        tool = make_tool(endpoint.url("/echo"), headers={"X-Api-Key": "${secret:key}"})
        with pytest.raises(ToolUnreachableError, match="REGISTRY_SECRETS_DIR"):
            client.prepare(tool, "production", b"{}")


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


class TestTls:
    """An endpoint behind TLS, whose certificate an authority of our own has signed."""

    @pytest.fixture
    def certificates(self, tmp_path):
        return make_certificates(tmp_path)

    @pytest.fixture
    async def port(self, certificates):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.server.certificate, certificates.server.key)

        async def serve(reader, writer):
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n" + b'{"a":1}'
                )
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        yield server.sockets[0].getsockname()[1]
        server.close()

    async def test_a_certificate_that_nobody_trusts_is_named_and_no_retry_invited(self, ask, port):
        for idempotent in (False, True):
            with pytest.raises(ToolUnreachableError, match=r"certificate: .*issuer") as caught:
                await ask(f"https://127.0.0.1:{port}/", idempotent=idempotent)
            assert caught.value.facts == {"detail": "certificate not trusted", "safe_to_retry": False}

    async def test_a_server_without_tls_is_named(self, ask):
        async def refuse(reader, writer):
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        with pytest.raises(ToolUnreachableError) as caught:
            await ask(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert caught.value.facts == {"detail": "no TLS", "safe_to_retry": False}
        server.close()

    async def test_an_authority_of_ones_own_is_trusted(self, certificates, port):
        client = EndpointClient(LOOPBACK, None, LIMIT, Checks(), certificates.authority.read_bytes() + "키".encode())
        await client.open()
        request = client.prepare(make_tool(f"https://127.0.0.1:{port}/"), "production", b"{}")
        assert (await client.call(request, Context(CALL_ID, 5.0), Attempt(), None)).structured == b'{"a":1}'
        await client.close()


class TestBrokenConnections:
    async def test_nobody_listens(self, ask, endpoint):
        async with ScriptedEndpoint() as closed:
            url = closed.url("/echo")
        attempt = Attempt()
        with pytest.raises(ToolUnreachableError) as caught:
            await ask(url, attempt=attempt)
        assert caught.value.facts == {"detail": "no connection", "safe_to_retry": True}
        assert not attempt.connected

    async def test_a_name_that_does_not_resolve(self, ask):
        with pytest.raises(ToolUnreachableError) as caught:
            await ask("http://tool.invalid/")
        assert caught.value.facts == {"detail": "name not resolved", "safe_to_retry": True}

    @pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE"])
    @pytest.mark.parametrize("path", ["/commit-then-drop", "/commit-then-close", "/cut-body"])
    async def test_a_lost_answer_is_asked_for_once_and_not_called_safe(self, ask, endpoint, path, method):
        attempt = Attempt()
        with pytest.raises(ToolUnreachableError) as caught:
            await ask(path, method=method, attempt=attempt)
        assert caught.value.facts == {"detail": "broken off"}
        assert attempt.connected
        assert endpoint.executions == 1

    async def test_a_tool_that_may_be_repeated_is_asked_once_more(self, ask, endpoint):
        with pytest.raises(ToolUnreachableError):
            await ask("/commit-then-drop", idempotent=True)
        assert endpoint.executions == 2
        assert len({request.header("Idempotency-Key") for request in endpoint.received}) == 1

    async def test_the_connection_is_kept(self, ask, endpoint):
        for path in ("/echo", "/gzip", "/500", "/empty-204", "/echo"):
            await ask(path)
        assert endpoint.connections == 1

    async def test_a_connection_that_the_endpoint_closed_is_not_used_again(self, ask, endpoint):
        for _ in range(20):
            assert (await ask("/closes-in-silence")).structured == b"{}"
        assert endpoint.executions == 20

    @pytest.mark.parametrize("path", ["/hang", "/headers-then-stall", "/gated-progress"])
    async def test_cancelling_closes_the_socket(self, ask, endpoint, path):
        call = asyncio.create_task(ask(path))
        await endpoint.arrived()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(1):
            assert (await endpoint.gone()).path == path

    async def test_what_is_not_read_to_its_end_is_closed(self, ask, endpoint):
        await ask("/500-large")
        await ask("/echo")
        assert endpoint.connections == 2


HEAD = b"HTTP/1.1 %d Scripted\r\nContent-Type: %s\r\n%s\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
GOOD_CHUNK = b"5\r\nhello\r\n"
# What breaks a body in chunks, where the next chunk should begin or end.
BREAKS = [b"zz\r\n", b"-1\r\n", b"5\r\nhelloX\r\n", b"ffffffffffffffffff\r\n", b"5;\x00\r\n", b"\r\n\r\n", b"\x00" * 20]


class TestBrokenBodies:
    """Whatever an endpoint breaks, and in whichever packet, is its fault, at once."""

    @pytest.mark.parametrize("content_type", [b"application/json", b"text/event-stream", b"application/x-ndjson"])
    @pytest.mark.parametrize("packets", ["one", "each its own", "the head alone", "the break alone"])
    @pytest.mark.parametrize("broken", BREAKS, ids=repr)
    async def test_a_break_among_the_chunks_is_told_at_once(self, ask, endpoint, content_type, packets, broken):
        head = HEAD % (200, content_type, CHUNKED)
        url = endpoint.serve("/broken", Script(status=0, chunks=_packets(packets, head, broken), end="stall"))
        began = asyncio.get_running_loop().time()
        with pytest.raises(ToolResponseInvalidError) as caught:
            await ask(url)
        assert caught.value.facts["detail"] == "malformed HTTP"
        assert asyncio.get_running_loop().time() - began < 2
        await eventually(lambda: endpoint.open_connections == 0)

    @pytest.mark.parametrize("packets", ["each its own", "the head alone", "the break alone"])
    @pytest.mark.parametrize("broken", BREAKS, ids=repr)
    async def test_the_text_of_an_error_is_not_lost_with_its_end(self, ask, endpoint, packets, broken):
        head = HEAD % (500, b"text/plain", CHUNKED)
        url = endpoint.serve("/broken", Script(status=0, chunks=_packets(packets, head, broken), end="stall"))
        began = asyncio.get_running_loop().time()
        answer = await ask(url)
        assert (answer.reason, answer.facts["http_status"]) == (errors_pb2.TOOL_HTTP_ERROR, 500)
        assert text(answer).startswith("hello")
        assert asyncio.get_running_loop().time() - began < 2

    @pytest.mark.parametrize("end", ["close", "drop"])
    @pytest.mark.parametrize("framing", [CHUNKED, b"Content-Length: 50\r\n"])
    async def test_the_text_of_an_error_that_is_cut_is_shown(self, ask, endpoint, framing, end):
        head = HEAD % (500, b"text/plain", framing)
        content = GOOD_CHUNK if framing is CHUNKED else b"hello"
        answer = await ask(endpoint.serve("/cut", Script(status=0, chunks=[head, content], end=end)))
        assert answer.facts["http_status"] == 500
        assert end == "drop" or text(answer) == "hello"

    @pytest.mark.parametrize("at", range(0, 120, 3))
    async def test_an_answer_that_is_cut_anywhere_is_never_our_fault(self, ask, endpoint, at):
        whole = HEAD % (200, b"application/json", CHUNKED) + b"2\r\n{}\r\n0\r\n\r\n"
        for end in ("close", "drop"):
            for chunks in ([whole[:at]], [whole[: at // 2], whole[at // 2 : at]]):
                with contextlib.suppress(ToolUnreachableError, ToolResponseInvalidError):
                    assert (await ask(endpoint.serve("/cut", Script(status=0, chunks=chunks, end=end)))).content

    async def test_no_garbled_answer_is_our_fault(self, ask, endpoint):
        random = Random(5)
        whole = HEAD % (200, b"application/json", CHUNKED) + b"2\r\n{}\r\n0\r\nTrailer: x\r\n\r\n"
        for _ in range(400):
            garbled = bytearray(whole)
            for _ in range(random.randint(1, 3)):
                garbled[random.randrange(len(garbled))] = random.choice(b"\0\r\n :;09afZ\xff")
            at = random.randrange(len(garbled))
            script = Script(status=0, chunks=[bytes(garbled[:at]), bytes(garbled[at:])], end="close")
            with contextlib.suppress(ToolFailedError):
                assert (await ask(endpoint.serve("/garbled", script))).content


def _packets(how, head, broken):
    return {
        "one": [head + GOOD_CHUNK + broken],
        "each its own": [head, GOOD_CHUNK, broken],
        "the head alone": [head, GOOD_CHUNK + broken],
        "the break alone": [head + GOOD_CHUNK, broken],
    }[how]


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
