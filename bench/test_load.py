"""The generator counts each response once, when it is whole, and every wrong one as a failure."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bench.load import Plan, Report, run

SECONDS = 10.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
WHOLE = HEAD + b"content-length: 4\r\n\r\ngood"


@asynccontextmanager
async def server(answer: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            answer(writer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield listening.sockets[0].getsockname()[1]
    listening.close()


async def load(answer: Callable[[asyncio.StreamWriter], None]) -> Report:
    async with server(answer) as port, asyncio.timeout(SECONDS):
        plan = Plan(host="127.0.0.1", port=port, request="x", marker="good", concurrency=2, calls=10)
        return await run(plan)


async def test_good_responses_are_counted():
    report = await load(lambda writer: writer.write(WHOLE))
    assert (report.calls, report.failures) == (10, 0)
    assert 0 < report.p50 <= report.p99
    assert report.wall > 0


async def test_chunked_response_ends_with_its_last_chunk():
    def stream(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\ngood\r\n")
        asyncio.get_running_loop().call_later(0.01, writer.write, b"0\r\n\r\n")

    report = await load(stream)
    assert (report.calls, report.failures) == (10, 0)
    assert report.p50 >= 9000  # microseconds: the call was not over before the stream was


async def test_response_in_pieces_is_one_call():
    def pieces(writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE[:30])
        asyncio.get_running_loop().call_later(0.005, writer.write, WHOLE[30:])

    report = await load(pieces)
    assert (report.calls, report.failures) == (10, 0)


async def test_wrong_responses_are_failures():
    report = await load(lambda writer: writer.write(WHOLE.replace(b"200 OK", b"500 No")))
    assert (report.calls, report.failures) == (10, 10)
    assert report.first_failure.startswith("HTTP/1.1 500 No")
    report = await load(lambda writer: writer.write(WHOLE.replace(b"good", b"evil")))
    assert report.failures == 10


async def test_lost_connections_are_failures():
    report = await load(lambda writer: writer.transport.abort())
    assert (report.calls, report.failures) == (0, 2)
    assert "lost" in report.first_failure
