"""gateway/http/uvicorn_protocol.py: requests that never end, on real sockets."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from gateway.http.body import Reply, whole_body
from gateway.http.uvicorn_protocol import MAX_HEAD_BYTES, Protocol

PATIENCE = 10.0
HEAD = b"POST /mcp HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class Impatient(Protocol):
    request_seconds = 0.2


async def reading(scope, receive, send):
    """Answers with how many bytes and header lines it got."""
    if scope["type"] == "http" and scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b"three"})
    elif scope["type"] == "http":
        await asyncio.sleep(0.3 if scope["path"] == "/slow" else 0)
        body = await whole_body({}, receive, 1 << 20)
        text = json.dumps([len(body), len(scope["headers"])]).encode()
        await Reply(200, text)(scope, receive, send)


@asynccontextmanager
async def connected(protocol: type[Protocol]):
    config = uvicorn.Config(reading, http=protocol, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE):
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()[:2])
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


LENGTH = HEAD + b"Content-Length: 10\r\n\r\n"


@pytest.mark.parametrize("start", [b"P", b"POST /mcp HTT", HEAD, LENGTH, LENGTH + b"12", CHUNKED + b"2\r\n1"])
async def test_a_request_that_does_not_come_whole_is_answered_and_closed(start: bytes):
    async with connected(Impatient) as (reader, writer):
        writer.write(start)
        status, body = await answer(reader)
        assert (status, body["error"]["data"]["reason"]) == (408, "INVALID_REQUEST")
        assert await reader.read() == b""


async def test_the_time_is_that_of_one_request():
    """A connection may live on, and its next request begins anew."""
    async with connected(Impatient) as (reader, writer):
        for _ in range(4):
            writer.write(HEAD + b"Content-Length: 2\r\n\r\n1")
            await asyncio.sleep(Impatient.request_seconds / 2)
            writer.write(b"2")
            assert await answer(reader) == (200, [2, 2])


async def test_trailers_are_passed_over():
    async with connected(Protocol) as (reader, writer):
        writer.write(CHUNKED + b"2\r\n12\r\n0\r\nX-Late: 1\r\nAuthorization: Basic x\r\n\r\n")
        assert await answer(reader) == (200, [2, 2])


@pytest.mark.parametrize("line", [b"X-Late: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
async def test_trailers_without_end_are_refused(line: bytes):
    async with connected(Protocol) as (reader, writer):
        writer.write(CHUNKED + b"0\r\nX-First: ")
        for _ in range(2 * MAX_HEAD_BYTES // len(line)):
            writer.write(line)
        status, body = await answer(reader)
        assert (status, body["error"]["data"]["reason"]) == (431, "INVALID_REQUEST")


async def test_what_came_whole_is_answered_before_what_broke_closes_the_connection():
    async with connected(Protocol) as (reader, writer):
        writer.write(HEAD + b"Content-Length: 2\r\n\r\n12" + b"NONSENSE\r\n\r\n")
        assert await answer(reader) == (200, [2, 2])
        assert await reader.read() == b""


@pytest.mark.parametrize("broken", [b"zz\r\n", b"2\r\n12XX"])
async def test_a_body_that_breaks_is_answered(broken: bytes):
    async with connected(Protocol) as (reader, writer):
        writer.write(CHUNKED + broken)
        status, body = await answer(reader)
        assert (status, body["error"]["data"]["reason"]) == (400, "INVALID_REQUEST")
        assert await reader.read() == b""


OFFER = HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n12"


@pytest.mark.parametrize("cut", range(len(HEAD), len(OFFER)))
async def test_an_offer_to_upgrade_that_comes_in_two_packets_costs_no_body(cut: int):
    async with connected(Protocol) as (reader, writer):
        writer.write(OFFER[:cut])
        await writer.drain()
        await asyncio.sleep(0.005)
        writer.write(OFFER[cut:])
        assert await answer(reader) == (200, [2, 3])


async def test_offers_to_upgrade_may_be_pipelined():
    plain = HEAD + b"Content-Length: 3\r\n\r\n123"
    chunked = OFFER.replace(b"Content-Length: 2\r\n\r\n12", b"Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n0\r\n\r\n")
    async with connected(Protocol) as (reader, writer):
        writer.write(OFFER + plain + chunked + OFFER)
        lengths = [(await answer(reader))[1][0] for _ in range(4)]
        assert lengths == [2, 3, 4, 2]


async def test_a_client_of_http_1_0_gets_no_chunks():
    async with connected(Protocol) as (reader, writer):
        writer.write(b"POST /stream HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\n12")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head.lower()
        assert body == b"onetwothree"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("target", [b"/", b"/stream", b"/slow"])
async def test_a_client_that_sends_no_more_is_answered(target: bytes, version: bytes):
    async with connected(Protocol) as (reader, writer):
        writer.write(b"POST %b HTTP/%b\r\nHost: a\r\nContent-Length: 2\r\n\r\n12" % (target, version))
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            whole = await reader.read()
        assert b" 200 OK" in whole
        assert b"three" in whole or whole.endswith(b"[2, 2]")


async def test_all_that_was_asked_before_the_client_sends_no_more_is_answered():
    async with connected(Protocol) as (reader, writer):
        writer.write(3 * (HEAD + b"Content-Length: 2\r\n\r\n12"))
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            assert (await reader.read()).count(b"[2, 2]") == 3


@pytest.mark.parametrize("start", [b"P", HEAD, LENGTH, LENGTH + b"12", CHUNKED])
async def test_a_request_that_will_never_come_whole_ends_the_connection(start: bytes):
    async with connected(Protocol) as (reader, writer):
        writer.write(start)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""


@pytest.mark.parametrize("name", [b"Upgrade", b"UpGRade", b"UPGRADE"])
async def test_an_offer_to_upgrade_costs_no_body(name: bytes):
    async with connected(Protocol) as (reader, writer):
        offer = b"Connection: Upgrade, HTTP2-Settings\r\n" + name + b": h2c\r\nContent-Length: 2\r\n\r\n12"
        writer.write(HEAD + offer)
        assert await answer(reader) == (200, [2, 3])
