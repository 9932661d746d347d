"""The proxy that the conformance suite goes through: it must change nothing but the one header."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conformance.proxy import AuthorizingProxy

SECONDS = 5.0


class Target:
    """A server that keeps the request it got, answers with `answer`, and then waits for the end of the connection."""

    def __init__(self) -> None:
        self.address = ""
        self.request = b""
        self.answer = b"HTTP/1.1 200 OK\r\nX-Raw:  two  spaces \r\nContent-Length: 2\r\n\r\nok"
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(4)
        writer.write(self.answer)
        if self.answer:
            writer.close()
        await reader.read()
        self.ended.set()


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    target = Target()
    server = await asyncio.start_server(target, "127.0.0.1", 0)
    target.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield target
    server.close()


@pytest.fixture
async def proxy(target: Target) -> AsyncIterator[AuthorizingProxy]:
    async with AuthorizingProxy() as proxy:
        proxy.target, proxy.authorization = target.address, "Bearer abc"
        yield proxy


async def send(proxy: AuthorizingProxy, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(head + b"\r\n\r\nbody")
    return reader, writer


async def test_proxy_adds_the_header_and_keeps_the_rest(proxy: AuthorizingProxy, target: Target):
    fields = [b"Host: evil.example.com", b"Mcp-Name:   padded  ", b"Connection: keep-alive", b"Content-Length: 4"]
    head = b"\r\n".join([b"POST /mcp HTTP/1.1", *fields])
    async with asyncio.timeout(SECONDS):
        reader, writer = await send(proxy, head)
        answer = await reader.read()
        writer.close()
    lines = target.request.split(b"\r\n")
    assert lines[0] == b"POST /mcp HTTP/1.1"
    assert {b"Authorization: Bearer abc", b"Host: evil.example.com", b"Mcp-Name:   padded  "} <= set(lines)
    assert b"Connection: close" in lines
    assert b"Connection: keep-alive" not in lines
    assert target.request.endswith(b"\r\n\r\nbody")
    assert answer == target.answer


async def test_proxy_passes_a_disconnect_on(proxy: AuthorizingProxy, target: Target):
    target.answer = b""
    async with asyncio.timeout(SECONDS):
        _, writer = await send(proxy, b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 4")
        writer.close()
        await target.ended.wait()
    assert target.request.endswith(b"body")
