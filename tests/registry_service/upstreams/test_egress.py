"""Which addresses an endpoint may have, and that no other is ever connected to."""

import asyncio
import contextlib
import socket
from ipaddress import ip_network

import aiohttp
import pytest

from registry_service.errors import ToolResponseInvalidError
from registry_service.tools.checks import Checks
from registry_service.upstreams.egress import ATTEMPT, MAX_INFORMATIONAL, AddressRefusedError, Attempt, Connector, Guard
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.http.request import call_headers
from tests.registry_service.upstreams.http.test_client import make_tool
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.waiting import eventually

EVERYTHING = [ip_network("0.0.0.0/0"), ip_network("::/0")]
LOOPBACK = [ip_network("127.0.0.0/8")]


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "2002:808:808::1", "::ffff:8.8.8.8"],
)
def test_public_addresses_need_no_setting(address):
    assert Guard([]).allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.168.0.1",
        "198.18.0.1",
        "203.0.113.9",
        "240.0.0.1",
        "::1",
        "fd12::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:100.64.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "2002:a00:1::1",
        "2001:0:808:808:0:0:f5ff:fffe",
        "2606:4700::5efe:10.0.0.1",
        "::10.0.0.1",
    ],
)
def test_other_addresses_need_a_setting(address):
    assert not Guard([]).allows(address)
    assert Guard(EVERYTHING).allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.0.1",
        "168.63.129.16",
        "100.100.100.200",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "::ffff:0:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:808:808:0:0:5601:5601",
        "2001:0:a9fe:a9fe:0:0:f7f7:f7f7",
        "2606:4700::5efe:169.254.169.254",
        "2606:4700::200:5efe:169.254.169.254",
    ],
)
def test_some_addresses_are_refused_whatever_the_settings_say(address):
    assert not Guard(EVERYTHING).allows(address)


def test_a_network_admits_its_addresses_in_any_form_and_no_others():
    guard = Guard([ip_network("10.0.0.0/8")])
    assert guard.allows("10.0.0.1")
    assert guard.allows("::ffff:10.0.0.1")
    assert not guard.allows("11.0.0.1.example")
    assert not guard.allows("127.0.0.1")
    assert not guard.allows("fd00::1")


def test_no_socket_is_made_for_a_refused_address():
    attempt = Attempt()
    ATTEMPT.set(attempt)
    with pytest.raises(AddressRefusedError):
        Guard([]).make_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80)))
    assert attempt.refused


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
                headers = call_headers("0" * 32, "r", "", "")
                began = asyncio.get_running_loop().time()
                with pytest.raises(ToolResponseInvalidError) as caught:
                    await client.call(request, headers, Attempt(), None)
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
