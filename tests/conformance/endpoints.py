"""The endpoints behind `tools.yaml`, in a process of their own: `python -m tests.conformance.endpoints`."""

import asyncio
import base64
import io
import json
import signal
import wave

from aiohttp import web

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PROGRESS_STEPS = (0, 50, 100)
# Long enough that each step leaves in a packet of its own.
PROGRESS_PAUSE_SECONDS = 0.05


def _wav() -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as writer:
        writer.setparams((1, 1, 8000, 8, "NONE", "not compressed"))
        writer.writeframes(bytes([128] * 8))
    return content.getvalue()


def _resource(uri: str, text: str) -> dict[str, object]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": "text/plain", "text": text}}


async def add(request: web.Request) -> web.Response:
    arguments = await request.json()
    return web.json_response({"sum": arguments["a"] + arguments["b"]})


async def text(_request: web.Request) -> web.Response:
    return web.Response(text="This is a simple text response for testing.")


async def image(_request: web.Request) -> web.Response:
    return web.Response(body=PNG, content_type="image/png")


async def audio(_request: web.Request) -> web.Response:
    return web.Response(body=_wav(), content_type="audio/wav")


async def failure(_request: web.Request) -> web.Response:
    return web.Response(status=500, text="This tool intentionally returns an error for testing")


async def resource(_request: web.Request) -> web.Response:
    block = _resource("test://embedded-resource", "This is an embedded resource content.")
    return web.json_response({"content": [block]})


async def mixed(_request: web.Request) -> web.Response:
    blocks = [
        {"type": "text", "text": "Multiple content types test:"},
        {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"},
        _resource("test://mixed-content-resource", '{"test":"data","value":123}'),
    ]
    return web.json_response({"content": blocks})


async def progress(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for step in PROGRESS_STEPS:
        frame = {"progress": step, "total": 100, "message": f"Completed step {step} of 100"}
        await response.write(json.dumps(frame).encode() + b"\n")
        await asyncio.sleep(PROGRESS_PAUSE_SECONDS)
    await response.write(b'{"result":{"steps":3}}\n')
    await response.write_eof()
    return response


def create_app() -> web.Application:
    app = web.Application()
    for handler in (add, text, image, audio, failure, resource, mixed, progress):
        app.router.add_post(f"/{handler.__name__}", handler)
    return app


async def serve() -> None:
    """Listens on a free port until SIGTERM; says where in one line, as the services do."""
    runner = web.AppRunner(create_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    port = runner.addresses[0][1]
    print(json.dumps({"event": "endpoints ready", "address": f"127.0.0.1:{port}"}), flush=True)
    await stopped.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())
