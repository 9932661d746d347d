"""Checks what an endpoint is sent, and what it is never sent."""

import base64
import json
import re
import time
from typing import Any
from urllib.parse import quote

import pytest

from registry_service.errors import (
    ArgumentsInvalidError,
    ToolUnreachableError,
)
from registry_service.tools.checks import Checks
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.http.request import MAX_URL_ARGUMENTS
from registry_service.upstreams.http.response import ERROR_BODY_BYTES
from tests.support.endpoint_tools import CALL_ID, LIMIT, LOOPBACK, make_tool, pointers, text
from tests.support.scripted_endpoint import Script, ndjson


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
