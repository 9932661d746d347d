"""Connections that cannot be made, and answers that break: told at once, and never our fault."""

import asyncio
import contextlib
import ssl
from random import Random

import pytest

from naru.v1 import errors_pb2
from registry_service.errors import (
    ToolFailedError,
    ToolResponseInvalidError,
    ToolUnreachableError,
)
from registry_service.tools.checks import Checks
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.upstream import Attempt, Context
from tests.support.certificates import make_certificates
from tests.support.endpoint_tools import CALL_ID, LIMIT, LOOPBACK, make_tool, text
from tests.support.scripted_endpoint import Script, ScriptedEndpoint
from tests.support.waiting import eventually

HEAD = b"HTTP/1.1 %d Scripted\r\nContent-Type: %s\r\n%s\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
GOOD_CHUNK = b"5\r\nhello\r\n"
# What breaks a body in chunks, where the next chunk should begin or end.
BREAKS = [b"zz\r\n", b"-1\r\n", b"5\r\nhelloX\r\n", b"ffffffffffffffffff\r\n", b"5;\x00\r\n", b"\r\n\r\n", b"\x00" * 20]


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
