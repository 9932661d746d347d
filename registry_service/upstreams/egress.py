"""Decides which addresses an upstream may have.

The check sits where a socket is made for one concrete address, after name resolution. It therefore sees the results of
DNS and IP literals of any spelling alike, and the address that was checked is the one that is connected to: a name
that resolves differently a moment later gains nothing.
"""

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network
# As `getaddrinfo` gives it.
AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]

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

    def make_socket(self, info: AddressInfo) -> socket.socket:
        """Makes the socket for one address; raises AddressRefusedError, and nothing is sent to that address."""
        family, kind, protocol, _, address = info
        if not self.allows(str(address[0])):
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
