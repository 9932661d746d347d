"""Which addresses an endpoint may have, and the connector that connects to no other.

The check sits where a socket is made for one concrete address, after name resolution. It therefore sees the results of
DNS and IP literals of any spelling alike, and the address that was checked is the one that is connected to: a name
that resolves differently a moment later gains nothing.
"""

import asyncio
import contextlib
import errno
import select
import socket
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import AddrInfoType, Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader
from aiohttp.tracing import Trace

Network: TypeAlias = IPv4Network | IPv6Network

# Below the 5 seconds after which uvicorn and Node close an idle connection, so that we let go first.
KEEPALIVE_SECONDS = 4.0

# More answers of the kind "not yet" (1xx) to one request are no answer.
MAX_INFORMATIONAL = 20

# Never called, whatever the settings say: this host, broadcast, multicast, link-local, and the metadata services of
# AWS and GCP (link-local and fd00:ec2::254, fd20:ce::254), Alibaba, Azure and Oracle.
_NEVER: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "100.100.100.200/32",
            "168.63.129.16/32",
            "169.254.0.0/16",
            "192.0.0.192/32",
            "224.0.0.0/4",
            "255.255.255.255/32",
            "::/128",
            "fd00:ec2::254/128",
            "fd20:ce::254/128",
            "fe80::/10",
            "fec0::/10",
            "ff00::/8",
        ),
    )
)

# Called only where the settings name them. Everything outside 2000::/3 is treated like these.
# Source: the IANA special-purpose address registries; Python's `is_global` differs between the versions we support.
_SPECIAL: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "240.0.0.0/4",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")

# IPv6 addresses that end in an IPv4 address and lead to it: IPv4-compatible, IPv4-mapped, IPv4-translated, and NAT64
# with the well-known and the local-use prefix.
_ENDS_IN_IPV4 = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")))
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


class AddressRefusedError(OSError):
    """The endpoint's address is one that must not be called."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "address not allowed")


class Attempt:
    """What happened to one request on its way to the socket."""

    __slots__ = ("connected", "refused")

    def __init__(self) -> None:
        # A connection was there, so that bytes of the request may have been sent.
        self.connected = False
        # At least one address was refused by the guard.
        self.refused = False


ATTEMPT: ContextVar[Attempt] = ContextVar("ATTEMPT")


class Guard:
    """Decides which addresses may be called; `networks` admits such as are not public."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = tuple(networks)

    def allows(self, address: str) -> bool:
        """Says whether a numeric address may be called; a text that is not one may not."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, IPv4Address):
            return self._allows_plain(parsed)
        carried = _carried(parsed)
        if not all(map(self._allows_plain, carried)):
            return False
        return (bool(carried) and not _is_isatap(parsed)) or self._allows_plain(parsed)

    def _allows_plain(self, address: IPv4Address | IPv6Address) -> bool:
        if _within(address, _NEVER):
            return False
        if _within(address, self._networks):
            return True
        if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
            return False
        return not _within(address, _SPECIAL)

    def make_socket(self, info: AddrInfoType) -> socket.socket:
        """Makes the socket for one address; raises AddressRefusedError, and nothing is sent to that address."""
        family, kind, protocol, _, address = info
        if not self.allows(str(address[0])):
            if attempt := ATTEMPT.get(None):
                attempt.refused = True
            raise AddressRefusedError
        return socket.socket(family, kind, protocol)


def _within(address: IPv4Address | IPv6Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def _is_isatap(address: IPv6Address) -> bool:
    return (int(address) >> 32) & 0xFFFFFFFF in _ISATAP


def _carried(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address leads to by itself; none for a native one, `::` and `::1`."""
    number = int(address)
    low = IPv4Address(number & 0xFFFFFFFF)
    if address in _TEREDO:
        return [IPv4Address((number >> 64) & 0xFFFFFFFF), IPv4Address(int(low) ^ 0xFFFFFFFF)]
    if address in _SIX_TO_FOUR:
        return [IPv4Address((number >> 80) & 0xFFFFFFFF)]
    if (number > 1 and any(address in network for network in _ENDS_IN_IPV4)) or _is_isatap(address):
        return [low]
    return []


class _Handler(ResponseHandler):
    """Counts the 1xx answers to a request, and ends the connection as malformed when there are too many.

    aiohttp passes over them in a loop that does not suspend while there are more: an endpoint that sends nothing else
    would have the event loop for itself until the call's timeout, which could not fire either.
    """

    _informational = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        code = data[0].code
        # 101 is the end of HTTP on the connection, and of the counting.
        self._informational = self._informational + 1 if 100 <= code < 200 and code != 101 else 0
        if self._exception is not None:
            return
        if self._informational <= MAX_INFORMATIONAL:
            super().feed_data(data, size)
            return
        # What was not read yet would be passed over before the exception is seen.
        self._buffer.clear()
        self.set_exception(HttpProcessingError(code=code, message="too many 1xx answers"))
        if self.transport is not None:
            self.transport.abort()


class Connector(aiohttp.TCPConnector):
    """Connects to allowed addresses only, and never hands out a kept connection that the endpoint has closed."""

    def __init__(self, guard: Guard, resolver: AbstractResolver | None = None) -> None:
        super().__init__(
            limit=0, keepalive_timeout=KEEPALIVE_SECONDS, resolver=resolver, socket_factory=guard.make_socket
        )
        handler: type[ResponseHandler] = _Handler
        self._factory = partial(handler, loop=self._loop)
        self._seen: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 -- the signature is aiohttp's
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol not in self._seen:
                if protocol is not None:
                    self._seen.add(protocol)
                break
            # Kept from an earlier request: the endpoint's FIN may be waiting in the kernel, unseen by the event loop.
            # Looking costs about a microsecond, and saves a request that may not be repeated from being lost.
            if not _hung_up(connection.transport):
                break
            connection.close()
        if attempt := ATTEMPT.get(None):
            attempt.connected = True
        return connection


# Where the peer's FIN cannot be asked for by itself (not Linux), only a reset is seen.
_HANG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


def _hung_up(transport: asyncio.Transport | None) -> bool:
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None:
        return True
    poll = select.poll()
    with contextlib.suppress(ValueError, OSError):
        poll.register(sock.fileno(), _HANG_UP)
        return bool(poll.poll(0))
    return True
