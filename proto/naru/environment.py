"""Reads settings from environment variables. Both services and the command do it with this, and so alike.

A value that cannot be used raises SettingError, whose text begins with the variable's name, fits one line and never
repeats a secret. A variable that is empty counts as absent, as compose files leave it.
"""

import difflib
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

LEVELS: Final = ("debug", "info", "warning", "error", "critical")

# What Kubernetes and Docker set in containers beside a service that is called like one of ours.
_INJECTED_NAME = re.compile(r"\w+_SERVICE_(?:HOST|PORT)(?:_\w+)?|\w+_PORT_[0-9]+_(?:TCP|UDP)(?:_\w+)?")
_INJECTED_VALUE = re.compile(r"(?:tcp|udp)://")
_HOST = re.compile(r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_VISIBLE = re.compile(r"[!-~]+")

T = TypeVar("T")


class SettingError(ValueError):
    """A variable with a value that cannot be used."""


class Bind(NamedTuple):
    """An address to listen on. Port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnknownVariable(NamedTuple):
    """A variable that nothing reads. `nearest` is a known name that resembles it, or empty."""

    variable: str
    nearest: str


class Environment:
    """Reads variables by name, and remembers which names there are."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._names: set[str] = set()

    def text(self, name: str) -> str:
        """Returns the value without white space around it, or an empty text."""
        return self._raw(name).strip()

    def read(self, name: str, default: str, convert: Callable[[str], T]) -> T:
        """Returns the converted value. `convert` raises ValueError."""
        return self._converted(name, self.text(name) or default, convert)

    def optional(self, name: str, convert: Callable[[str], T]) -> T | None:
        """Returns the converted value, or None for a variable that is absent."""
        text = self.text(name)
        return self._converted(name, text, convert) if text else None

    def optional_secret(self, name: str, convert: Callable[[str], T]) -> T | None:
        """Reads `NAME` or, without line ends behind it, the file that `NAME_FILE` names."""
        file_name = f"{name}_FILE"
        value, path = self._raw(name), self.text(file_name)
        if value and path:
            raise SettingError(f"{name}: is set, and so is {file_name}: set one of them")
        if path:
            return self._converted(file_name, path, lambda path: convert(_text_of(path)))
        return self._converted(name, value, convert) if value else None

    def secret(self, name: str, convert: Callable[[str], T]) -> T:
        """Reads a secret that must be there."""
        value = self.optional_secret(name, convert)
        if value is None:
            raise SettingError(f"{name}: is not set, and neither is {name}_FILE")
        return value

    def authority(self, name: str) -> bytes | None:
        """Returns the certificates (PEM) of the file that the variable names."""
        return self.optional(name, _authority)

    def key_pair(self, certificate_name: str, key_name: str) -> tuple[bytes, bytes] | None:
        """Returns a certificate and its key (PEM) from the files that the variables name."""
        certificate, key = self.optional(certificate_name, content), self.optional(key_name, content)
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            absent, present = (certificate_name, key_name) if certificate is None else (key_name, certificate_name)
            raise SettingError(f"{absent}: is not set, but {present} is")
        try:
            # The empty password keeps OpenSSL from asking for one at the terminal.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.text(certificate_name), self.text(key_name), password="")
        except (ssl.SSLError, ValueError) as error:
            raise SettingError(
                f"{certificate_name}: and {key_name} do not hold a PEM certificate and its unencrypted key "
                f"({getattr(error, 'reason', None) or error})"
            ) from None
        return certificate, key

    def unknown(self, prefix: str) -> tuple[UnknownVariable, ...]:
        """Returns the variables of this prefix that nothing has asked for. Ask when everything has been read."""
        return unknown_variables(self._environ, prefix, self._names)

    def _raw(self, name: str) -> str:
        self._names.add(name)
        return self._environ.get(name, "")

    @staticmethod
    def _converted(name: str, text: str, convert: Callable[[str], T]) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise SettingError(f"{name}: {error}") from None


def unknown_variables(environ: Mapping[str, str], prefix: str, known: Iterable[str]) -> tuple[UnknownVariable, ...]:
    """Returns the variables of this prefix that aren't known, in order.

    Those that container platforms set by themselves are passed over.
    """
    names = {name.removeprefix(prefix): name for name in sorted(known) if name.startswith(prefix)}

    def nearest(name: str) -> str:
        found = difflib.get_close_matches(name.removeprefix(prefix), names, 1)
        return names[found[0]] if found else ""

    return tuple(
        UnknownVariable(name, nearest(name))
        for name in sorted(environ.keys() - set(names.values()))
        if name.startswith(prefix) and not (_INJECTED_NAME.fullmatch(name) or _INJECTED_VALUE.match(environ[name]))
    )


def bind(text: str) -> Bind:
    """Reads `host:port`, or `[host]:port` for IPv6.

    A host such as 10.1.0.0/16 means this machine's own address in that network, which needn't be known beforehand.
    """
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port, such as 127.0.0.1:8080 or [::1]:8080")
    in_brackets = host.startswith("[") and host.endswith("]")
    if ":" in host and not in_brackets:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets: [{host}]:{port}")
    host = host[1:-1] if in_brackets else host
    if "/" in host:
        host = _own_address(host)
    elif in_brackets:
        host = str(ipaddress.IPv6Address(host))
    return Bind(host, int(port))


def bind_or_off(text: str) -> Bind | None:
    """Reads an address, or None for `off`."""
    return None if text.lower() == "off" else bind(text)


def number(least: float, most: float) -> Callable[[str], float]:
    """Returns a reader of numbers within these limits."""
    return _scalar(Annotated[float, msgspec.Meta(ge=least, le=most)], f"a number from {least:g} to {most:g}")


def integer(least: int, most: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers within these limits."""
    return _scalar(Annotated[int, msgspec.Meta(ge=least, le=most)], f"a whole number from {least} to {most}")


def boolean(text: str) -> bool:
    """Reads true, 1, yes, false, 0 or no, in any case."""
    written = {"yes": "true", "no": "false"}.get(text.lower(), text.lower())
    convert: Callable[[str], bool] = _scalar(bool, "true or false")
    return convert(written)


def one_of(*choices: str) -> Callable[[str], str]:
    """Returns a reader of these words in any case, which are given in small letters."""

    def convert(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text.lower()

    return convert


def items(text: str) -> list[str]:
    """Reads a list with commas."""
    return [item for item in (part.strip() for part in text.split(",")) if item]


def hosts(text: str) -> frozenset[str]:
    """Reads a list of `host` (any port) and `host:port`, in small letters."""
    found = frozenset(item.lower() for item in items(text))
    for item in found:
        if not _HOST.fullmatch(item):
            raise ValueError(f"must be host or host:port ([host] for IPv6), not {item!r}")
    return found


def visible(text: str) -> str:
    """Refuses what isn't visible ASCII alone, as tokens must be. The text may be secret, and is not repeated."""
    if not _VISIBLE.fullmatch(text):
        raise ValueError("holds something other than visible ASCII characters")
    return text


def content(path: str) -> bytes:
    """Returns what a file holds. An empty one is refused."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    if not data.strip():
        raise ValueError(f"the file {path} is empty")
    return data


def file(path: str) -> Path:
    """Returns the path of a file that can be read."""
    content(path)
    return Path(path)


def directory(path: str) -> Path:
    """Returns the path of a directory."""
    if not Path(path).is_dir():
        raise ValueError(f"{path} is not a directory")
    return Path(path)


def _own_address(text: str) -> str:
    """Returns the address that this machine has in a network."""
    network = ipaddress.ip_network(text)
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Sends nothing: it only asks which address would be used towards that network.
        probe.connect((str(network.network_address + min(1, network.num_addresses - 1)), 9))
        address = str(probe.getsockname()[0])
        if ipaddress.ip_address(address) in network:
            return address
    raise ValueError(f"this machine has no address in {text}")


def _scalar(kind: object, wanted: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        with suppress(msgspec.ValidationError):
            value = msgspec.convert(text, kind, strict=False)
            if value == value:  # NaN, which no limit keeps out, isn't equal to itself
                return value
        raise ValueError(f"{text!r} is not {wanted}")

    return convert


def _text_of(path: str) -> str:
    try:
        return content(path).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not UTF-8 text") from None


def _authority(path: str) -> bytes:
    certificates = content(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(f"holds no PEM certificate ({error.reason or error})") from None
    return certificates
