"""Connections to endpoints: to allowed addresses only, none that has ended, and none that costs others."""

import asyncio
import contextlib
import socket
from ipaddress import ip_network

import aiohttp
import pytest

from registry_service.errors import ToolResponseInvalidError, ToolUnreachableError
from registry_service.tools.checks import Checks
from registry_service.upstreams.egress import Guard
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.http.connector import MAX_HEAD_BYTES, MAX_INFORMATIONAL, PRIVATE, Connector
from registry_service.upstreams.upstream import Attempt, Context
from tests.support.endpoint_tools import make_tool
from tests.support.scripted_endpoint import Script, ScriptedEndpoint
from tests.support.waiting import eventually

LOOPBACK = [ip_network("127.0.0.0/8")]


async def test_the_private_members_of_the_http_library_are_still_there():
    """If this fails, read what the library's new version does in their place before its bound is raised."""
    connector = aiohttp.TCPConnector()
    protocol = connector._factory()
    missing = [
        f"aiohttp {aiohttp.__version__}: {type(owner).__name__}.{name} has gone; connector.py is written against it"
        for owner in (connector, protocol)
        for name in PRIVATE[next(kind for kind in PRIVATE if isinstance(owner, kind))]
        if not hasattr(owner, name)
    ]
    await connector.close()
    assert not missing, "\n".join(missing)


@contextlib.asynccontextmanager
async def listening():
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(reader, writer):
        accepted.put_nowait(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], accepted
    finally:
        server.close()


# Spellings of 127.0.0.1 that the resolver, the URL parser or the kernel understand.
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "0"],
)
async def test_the_guard_sees_names_and_literals_of_every_spelling(host):
    async with (
        listening() as (port, accepted),
        aiohttp.ClientSession(connector=Connector(Guard([]))) as session,
    ):
        with pytest.raises((aiohttp.ClientConnectorError, aiohttp.InvalidURL)):
            await session.get(f"http://{host}:{port}/")
        assert accepted.empty()


async def test_one_refused_address_does_not_keep_from_another():
    class TwoAddresses(aiohttp.abc.AbstractResolver):
        async def resolve(self, host, port=0, family=socket.AF_INET):
            return [
                aiohttp.abc.ResolveResult(
                    hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0
                )
                for address in ("169.254.169.254", "127.0.0.1")
            ]

        async def close(self):
            pass

    async with listening() as (port, accepted):
        connector = Connector(Guard(LOOPBACK), resolver=TwoAddresses())
        async with aiohttp.ClientSession(connector=connector) as session:
            request = asyncio.ensure_future(session.get(f"http://tool.example:{port}/"))
            await asyncio.wait_for(accepted.get(), 5)
            request.cancel()


async def test_a_kept_connection_that_the_server_closed_is_not_used_again():
    """Also when the event loop has not seen the end yet: the next request follows at once."""
    served = []

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        served.append(writer)
        # The answer and the end in one go, and nothing that announces the end.
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with aiohttp.ClientSession(connector=Connector(Guard(LOOPBACK))) as session:
        for _ in range(50):
            async with session.post(url, data=b"{}") as response:
                assert await response.read() == b"ok"
    server.close()
    assert len(served) == 50


async def test_an_endpoint_that_answers_1xx_for_ever_fails_at_once_and_holds_up_nobody():
    """The event loop stood still until the timeout, which could not fire either."""
    async with ScriptedEndpoint() as endpoint:
        client = EndpointClient(LOOPBACK, None, 1000, Checks())
        await client.open()
        try:
            for idempotent in (False, True):
                before = len(endpoint.received)
                tool = make_tool(endpoint.url("/processing-for-ever"), idempotent=idempotent)
                request = client.prepare(tool, "production", b"{}")
                began = asyncio.get_running_loop().time()
                with pytest.raises(ToolResponseInvalidError) as caught:
                    await client.call(request, Context("0" * 32, 5.0), Attempt(), None)
                assert caught.value.facts["detail"] == "malformed HTTP"
                assert asyncio.get_running_loop().time() - began < 2
                assert len(endpoint.received) == before + 1
                await eventually(lambda: endpoint.open_connections == 0)
        finally:
            await client.close()


async def test_1xx_answers_are_counted_for_each_request():
    async with (
        ScriptedEndpoint() as endpoint,
        aiohttp.ClientSession(connector=Connector(Guard(LOOPBACK))) as session,
    ):
        for _ in range(3):
            async with session.get(endpoint.url(f"/early-hints?n={MAX_INFORMATIONAL}")) as response:
                assert await response.json() == {"hinted": True}
        assert endpoint.connections == 1
        with pytest.raises(aiohttp.ClientResponseError, match="too many 1xx answers"):
            await session.get(endpoint.url(f"/early-hints?n={MAX_INFORMATIONAL + 1}"))


@pytest.fixture
async def ask():
    """Calls a URL."""
    client = EndpointClient(LOOPBACK, None, 1_000_000, Checks())
    await client.open()

    async def ask(url, **settings):
        request = client.prepare(make_tool(url, **settings), "production", b"{}")
        async with asyncio.timeout(10):
            return await client.call(request, Context("0" * 32, 5.0), Attempt(), None)

    yield ask
    await client.close()


@pytest.mark.parametrize("refused_first", [True, False])
async def test_an_address_that_may_be_called_says_why_it_could_not(ask, monkeypatch, refused_first):
    addresses = ["169.254.169.254", "127.0.0.1"] if refused_first else ["127.0.0.1", "169.254.169.254"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    async def resolve(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(ToolUnreachableError) as caught:
        await ask(f"http://tool.example:{port}/")
    assert caught.value.facts == {"detail": "no connection", "safe_to_retry": True}


HEADERS = {
    "one of 9 000 bytes": [("X-Long", "x" * 9_000)],
    "one of 60 000 bytes": [("X-Long", "x" * 60_000)],
    "200": [(f"X-Header-{number}", "value") for number in range(200)],
    "2 000": [(f"X-{number}", "") for number in range(2_000)],
}
TOO_MANY = {
    "one of 70 000 bytes": [("X-Long", "x" * 70_000)],
    "two of 40 000 bytes": [("X-Long", "x" * 40_000)] * 2,
    "4 000 of 20 bytes": [(f"X-Header-{number}", "value") for number in range(4_000)],
    "10 000 of 6 bytes": [("A", "b")] * 10_000,
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
async def test_heads_are_read_up_to_their_bound(ask, headers):
    async with ScriptedEndpoint() as endpoint:
        answer = await ask(endpoint.serve("/much", Script(chunks=[b'{"a":1}'], headers=headers)))
        assert answer.structured == b'{"a":1}'


@pytest.mark.parametrize("headers", TOO_MANY.values(), ids=TOO_MANY)
async def test_a_head_above_its_bound_is_named(ask, headers):
    async with ScriptedEndpoint() as endpoint:
        with pytest.raises(ToolResponseInvalidError) as caught:
            await ask(endpoint.serve("/much", Script(chunks=[b'{"a":1}'], headers=headers)))
        assert caught.value.facts["detail"] == "headers too large"


@pytest.mark.parametrize("more", [0, 1])
async def test_the_bound_of_a_head_is_exact(ask, more):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\nX-Fill: "
    head += b"x" * (MAX_HEAD_BYTES - len(head) - 4 + more) + b"\r\n\r\n"
    async with ScriptedEndpoint() as endpoint:
        url = endpoint.serve("/exact", Script(status=0, chunks=[head + b"{}"]))
        if not more:
            assert (await ask(url)).structured == b"{}"
            return
        with pytest.raises(ToolResponseInvalidError, check=lambda error: error.facts["detail"] == "headers too large"):
            await ask(url)
