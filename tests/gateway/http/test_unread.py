"""Clients that ask and don't read, or hardly: on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import uvicorn

from gateway.http.body import Reply
from gateway.http.unread import Connection, UnreadAnswers
from gateway.http.uvicorn_protocol import Protocol
from tests.support.waiting import eventually

SECONDS = 0.5
LARGE = 16 << 20
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


class Cuts(list[tuple[int, str]]):
    def note(self, _connection: Connection, held: int, why: str) -> None:
        self.append((held, why))


async def large(scope, receive, send):
    """Answers much at once or in pieces, or a little."""
    if scope["type"] != "http":
        return
    if scope["path"] != "/stream":
        await Reply(200, b"x" * (2 if scope["path"] == "/small" else LARGE))(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(LARGE >> 10):
        await send({"type": "http.response.body", "body": b"x" * 1024, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(
    max_bytes: int = 1 << 40, seconds: float = SECONDS
) -> AsyncIterator[tuple[type[Protocol], Cuts, int]]:
    cuts = Cuts()
    kind = type("Watched", (Protocol,), {"unread": UnreadAnswers(seconds, max_bytes, cuts.note)})
    config = uvicorn.Config(large, http=kind, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    try:
        yield kind, cuts, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await running


def asking(port: int, request: bytes = HEAD + b"\r\n") -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(request)
    client.setblocking(False)
    return client


REQUESTS = {
    "one answer": HEAD + b"\r\n",
    "the last answer": HEAD + b"Connection: close\r\n\r\n",
    "a stream": HEAD.replace(b"/", b"/stream", 1) + b"\r\n",
    "pipelined": 8 * (HEAD + b"\r\n"),
    "without a version of our own": HEAD.replace(b"1.1", b"1.0") + b"\r\n",
}


@pytest.mark.parametrize("request_bytes", REQUESTS.values(), ids=REQUESTS)
async def test_an_answer_that_nobody_takes_is_cut(request_bytes: bytes):
    async with serving() as (kind, cuts, port):
        with asking(port, request_bytes):
            await eventually(lambda: cuts)
        [(held, why)] = cuts
        assert why == "slow"
        assert 0 < held <= LARGE + 1024
        await eventually(lambda: len(kind.unread) == 0)


async def test_a_client_that_takes_a_byte_now_and_then_is_cut():
    async with serving() as (_, cuts, port):
        with asking(port) as client:

            async def nibble() -> None:
                loop = asyncio.get_running_loop()
                while not cuts:
                    await loop.sock_recv(client, 1)
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(nibble(), 10)


@pytest.mark.parametrize("path", [b"/", b"/stream"])
async def test_a_client_that_is_slow_but_reads_gets_all(path: bytes):
    """It needs several times as long as an answer may lie untouched."""
    async with serving(seconds=0.3) as (_, cuts, port):
        with asking(port, HEAD.replace(b"/", path, 1) + b"Connection: close\r\n\r\n") as client:
            loop = asyncio.get_running_loop()
            came = 0
            began = loop.time()
            async with asyncio.timeout(30):
                while piece := await loop.sock_recv(client, 1 << 17):
                    came += len(piece)
                    if loop.time() - began < 1.2:
                        await asyncio.sleep(0.005)
        assert came > LARGE
        assert cuts == []


async def test_unread_answers_hold_no_more_than_they_may():
    """Whoever has read least recently gives way; the newest may stay."""
    async with serving(max_bytes=2 * LARGE, seconds=60) as (kind, cuts, port):
        clients: list[socket.socket] = []

        def all_are_seen(number: int) -> bool:
            return len(kind.unread) + len(cuts) == number

        for number in range(12):
            clients.append(asking(port))
            await eventually(partial(all_are_seen, number + 1))
            assert sum(c.transport.get_write_buffer_size() for c in kind.unread._marks) <= 4 * LARGE
        assert {why for _, why in cuts} == {"full"}
        # Once nobody is spared any more, the rest of what is too much goes.
        await eventually(lambda: sum(c.transport.get_write_buffer_size() for c in kind.unread._marks) <= 2 * LARGE)
        assert len(kind.unread) >= 1
        for client in clients:
            client.close()


async def test_no_more_requests_wait_for_their_turn_than_may():
    """The last that was taken is answered with the end of the connection; the client asks the rest again."""
    async with serving() as (_, cuts, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        small = HEAD.replace(b"/", b"/small", 1) + b"\r\n"
        writer.write(5000 * small)
        async with asyncio.timeout(20):
            answers = await reader.read()
        writer.close()
        assert answers.count(b"HTTP/1.1 200") == 65
        assert answers.count(b"connection: close") == 1
        assert cuts == []
