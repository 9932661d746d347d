"""Finds where the parts of a `make run` listen: from the environment, with free ports where that leaves a choice."""

import errno
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, NamedTuple


class AddressError(Exception):
    """Refuses an address that cannot be used; the message names the variable to set."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def reachable(self) -> str:
        """Returns `host:port` for a client on this machine: who listens everywhere is asked at the loopback address."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to
        return str(Address(loopback.get(self.host, self.host), self.port))

    def url(self) -> str:
        return f"http://{self.reachable()}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Holds all addresses. Those of metrics are `host:port`, or what the service itself takes instead (`off`)."""

    DEMO_URL: ClassVar[str] = "http://127.0.0.1:9000"

    gateway: Address
    registry: Address
    demo: Address
    gateway_metrics: str
    registry_metrics: str
    notices: tuple[str, ...]

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Addresses":
        """Raises AddressError for one that is malformed or in use."""
        # The ports stay taken until all are chosen, so that no two are the same.
        with ExitStack() as probes:
            gateway = required(probes, environ, "GATEWAY_BIND", "127.0.0.1:8080")
            registry = required(probes, environ, "REGISTRY_BIND", "127.0.0.1:50051")
            demo = required(probes, environ, "DEMO_BIND", "127.0.0.1:9000")
            gateway_metrics, gateway_notice = metrics(probes, environ, "GATEWAY_METRICS_BIND", "127.0.0.1:9464")
            registry_metrics, registry_notice = metrics(probes, environ, "REGISTRY_METRICS_BIND", "127.0.0.1:9465")
        notices = tuple(filter(None, (gateway_notice, registry_notice)))
        return cls(gateway, registry, demo, gateway_metrics, registry_metrics, notices)

    def networks(self, allowed: str) -> str:
        """Returns REGISTRY_ENDPOINT_NETWORKS with what the demo tools need: they are on this machine."""
        host = self.demo.reachable().rpartition(":")[0].strip("[]")
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
        own = {"127.0.0.0/8", "::1/128"} | {str(ipaddress.ip_network(address)) for address in found}
        return ",".join([*filter(None, [allowed]), *sorted(own)])


def parse(variable: str, text: str) -> Address:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{variable}: {text!r} is not host:port, such as 127.0.0.1:8080")
    return Address(host, int(port))


def required(probes: ExitStack, environ: Mapping[str, str], variable: str, default: str) -> Address:
    address = parse(variable, environ.get(variable) or default)
    try:
        return bound(probes, address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = Address(address.host, address.port % 65535 + 1)
            hint = f"{address} is in use; set another, such as {variable}={other} make run"
            raise AddressError(f"{variable}: {hint}") from error
        raise AddressError(f"{variable}: cannot listen on {address}: {error.strerror or error}") from error


def metrics(probes: ExitStack, environ: Mapping[str, str], variable: str, default: str) -> tuple[str, str]:
    """Returns the address of metrics, and a notice if it is not the usual one: no port has to be moved over metrics."""
    if asked := environ.get(variable):
        return asked if asked == "off" else str(required(probes, environ, variable, default)), ""
    address = parse(variable, default)
    try:
        return str(bound(probes, address)), ""
    except OSError:
        free = bound(probes, Address(address.host, 0))
        return str(free), f"{address} is in use: metrics are on {free} ({variable} sets the address)"


def bound(probes: ExitStack, address: Address) -> Address:
    """Returns the address with a port that is free, and stays taken while `probes` is open; raises OSError."""
    family, kind, protocol, _, sockaddr = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    probe = probes.enter_context(socket.socket(family, kind, protocol))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(sockaddr)
    probe.listen(1)
    return Address(address.host, probe.getsockname()[1])
