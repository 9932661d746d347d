"""The floor's gateway: one Starlette handler around one server-streaming RPC, and nothing else.

uvicorn, its loop and its parser are set up as the product's are; JSON is msgspec's with raw slices, as in the product.
"""

import contextlib
import socket
import sys
from collections.abc import AsyncIterator

import grpc
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bench.floor_executor import METHOD, OPTIONS
from bench.ready import announce


class Params(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


class Message(msgspec.Struct):
    jsonrpc: str
    id: msgspec.Raw
    method: str
    params: Params


_decode = msgspec.json.Decoder(Message).decode


async def _frames(call: "grpc.aio.UnaryStreamCall[bytes, bytes]", request_id: bytes) -> AsyncIterator[bytes]:
    async for event in call:
        if event.startswith(b'{"progress"'):
            message = b'{"jsonrpc":"2.0","method":"notifications/progress","params":%s}' % event
        else:
            message = b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (request_id, event)
        yield b"event: message\ndata: %s\n\n" % message


async def _mcp(request: Request) -> Response:
    message = _decode(await request.body())
    call_tool: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = request.app.state.call_tool
    arguments, request_id = bytes(message.params.arguments), bytes(message.id)
    if request.headers["accept"] == "text/event-stream":
        return StreamingResponse(_frames(call_tool(b"S" + arguments), request_id), media_type="text/event-stream")
    result = b""
    async for event in call_tool(b"J" + arguments):
        result = event
    body = b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (request_id, result)
    return Response(body, media_type="application/json")


def create_app(executor: str) -> Starlette:
    """The application of an executor at `host:port`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with grpc.aio.insecure_channel(executor, options=OPTIONS) as channel:
            app.state.call_tool = channel.unary_stream(METHOD)
            yield

    return Starlette(routes=[Route("/mcp", _mcp, methods=["POST"])], lifespan=lifespan)


class Server(uvicorn.Server):
    """uvicorn's server, which tells its port once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            announce("floor gateway", self.servers[0].sockets[0])


def main() -> None:
    """Listens on a free port until SIGTERM. The first argument is the executor's address, `host:port`."""
    config = uvicorn.Config(
        create_app(sys.argv[1]), host="127.0.0.1", port=0, loop="uvloop", http="httptools", ws="none", lifespan="on",
        log_level="warning", access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=75,
    )  # fmt: skip
    Server(config).run()


if __name__ == "__main__":
    main()
