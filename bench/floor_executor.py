"""The floor's executor: one server-streaming gRPC method around one HTTP POST, and nothing else.

Request and events are plain bytes. The first byte of the request is `J` (one result) or `S` (progress, then the
result); the rest is the body for the endpoint. An event is JSON text: MCP progress parameters or an MCP result.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable

import aiohttp
import grpc
import msgspec
import uvloop

from bench.ready import announce_port

METHOD = "/bench.Floor/Call"
OPTIONS = [("grpc.max_send_message_length", 16 << 20), ("grpc.max_receive_message_length", 16 << 20)]
_HEADERS = {"Content-Type": "application/json"}

Call = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], AsyncIterator[bytes]]


class Line(msgspec.Struct):
    """One line of a streaming endpoint: progress, or the result."""

    result: msgspec.Raw = msgspec.Raw()


def _result(body: bytes) -> bytes:
    text = msgspec.json.encode(body.decode())
    return b'{"content":[{"type":"text","text":%s}],"structuredContent":%s,"isError":false}' % (text, body)


def calls_of(session: aiohttp.ClientSession, endpoint: str) -> Call:
    """The RPC's handler, bound to the one session and the endpoint's address `host:port`."""
    echo, stream = f"http://{endpoint}/echo", f"http://{endpoint}/stream"
    decode_line = msgspec.json.Decoder(Line).decode

    async def call(request: bytes, _context: "grpc.aio.ServicerContext[bytes, bytes]") -> AsyncIterator[bytes]:
        if request[:1] == b"J":
            async with session.post(echo, data=request[1:], headers=_HEADERS) as answer:
                yield _result(await answer.read())
            return
        async with session.post(stream, data=request[1:], headers=_HEADERS) as answer:
            async for line in answer.content:
                result = bytes(decode_line(line).result)
                yield _result(result) if result else line.rstrip()

    return call


async def serve(endpoint: str) -> None:
    """Listens on a free port until SIGTERM."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        auto_decompress=False,
    ) as session:
        server = grpc.aio.server(options=OPTIONS)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(calls_of(session, endpoint))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Floor", {"Call": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        announce_port("floor executor", port)
        await stopped.wait()
        await server.stop(1)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
