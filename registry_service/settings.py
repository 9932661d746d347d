"""The settings of the registry service, read once from the environment."""

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

SERVICES = frozenset({"registry", "accounts", "execution"})
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MIB = 1024 * 1024

_MIN_PEPPER = 32
_MIN_TOKEN = 16
# A result crosses gRPC in one message, whose limit is 16 MiB, with its frame, its structured form and its facts.
_MAX_RESULT = 15 * MIB
_DAY = 86_400.0
_DEFAULT_DATABASE_URL = "sqlite:///naru.db"

Network = IPv4Network | IPv6Network
T = TypeVar("T")


class SettingError(Exception):
    """A setting that stops the start. The message begins with the variable's name and holds no secret."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM text. `client_ca` is set when clients must show a certificate."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times are seconds. An address is a host and a port; port 0 means a free one, which the log tells."""

    bind: tuple[str, int]
    database_url: str = field(repr=False)
    services: frozenset[str]
    pepper: bytes = field(repr=False)
    admin_token: str = field(repr=False)
    # None only where client certificates guard the port instead.
    service_token: str | None = field(repr=False)
    plans_file: Path | None
    secrets_dir: Path | None
    endpoint_networks: tuple[Network, ...]
    metrics_bind: tuple[str, int] | None
    default_timeout: float
    max_timeout: float
    max_result_bytes: int
    max_connection_age: float
    shutdown_grace: float
    auto_migrate: bool
    tls: Tls | None
    log_level: str

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Reads and checks every setting, and the files that some of them name. Raises SettingError."""
        read = _Reader(environ)
        tls = _tls(read)
        settings = cls(
            bind=read.parsed("REGISTRY_BIND", "127.0.0.1:50051", _address),
            database_url=read.optional_secret("DATABASE_URL", _database_url) or _DEFAULT_DATABASE_URL,
            services=read.parsed("REGISTRY_SERVICES", "registry,accounts,execution", _services),
            pepper=read.secret("REGISTRY_PEPPER", _pepper),
            admin_token=read.secret("REGISTRY_ADMIN_TOKEN", _token),
            service_token=_service_token(read, tls),
            plans_file=read.optional("REGISTRY_PLANS_FILE", _file),
            secrets_dir=read.optional("REGISTRY_SECRETS_DIR", _directory),
            endpoint_networks=read.parsed("REGISTRY_ENDPOINT_NETWORKS", "", _networks),
            metrics_bind=read.parsed("REGISTRY_METRICS_BIND", "127.0.0.1:9465", _address_or_off),
            default_timeout=read.parsed("REGISTRY_DEFAULT_TIMEOUT_SECONDS", "30", _number(0.001, _DAY)),
            max_timeout=read.parsed("REGISTRY_MAX_TIMEOUT_SECONDS", "3600", _number(0.001, _DAY)),
            max_result_bytes=read.parsed("REGISTRY_MAX_RESULT_BYTES", str(8 * MIB), _integer(1, _MAX_RESULT)),
            max_connection_age=read.parsed("REGISTRY_MAX_CONNECTION_AGE_SECONDS", "15", _number(1, _DAY)),
            shutdown_grace=read.parsed("REGISTRY_SHUTDOWN_GRACE_SECONDS", "20", _number(0, _DAY)),
            auto_migrate=read.parsed("REGISTRY_AUTO_MIGRATE", "true", _boolean),
            tls=tls,
            log_level=read.parsed("REGISTRY_LOG_LEVEL", "INFO", _log_level),
        )
        settings._check_together()
        return settings

    def _check_together(self) -> None:
        if self.default_timeout > self.max_timeout:
            raise SettingError(
                "REGISTRY_DEFAULT_TIMEOUT_SECONDS: must not be above REGISTRY_MAX_TIMEOUT_SECONDS "
                f"({self.default_timeout:g} > {self.max_timeout:g})"
            )
        if self.service_token == self.admin_token:
            raise SettingError("REGISTRY_SERVICE_TOKEN: must differ from REGISTRY_ADMIN_TOKEN")


class _Reader:
    """Reads variables by name. An empty value counts as absent, as in compose files."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def optional(self, name: str, parse: Callable[[str], T]) -> T | None:
        return self._parse(name, text, parse) if (text := self.text(name)) else None

    def parsed(self, name: str, default: str, parse: Callable[[str], T]) -> T:
        return self._parse(name, self.text(name) or default, parse)

    def optional_secret(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Reads `NAME` or, without a trailing line end, the file that `NAME_FILE` names."""
        file_name = f"{name}_FILE"
        value, path = self._environ.get(name, ""), self.text(file_name)
        if value and path:
            raise SettingError(f"{name}: is set, and so is {file_name}: set one of them")
        if not path:
            return self._parse(name, value, parse) if value else None
        content = self._parse(file_name, path, _content)
        try:
            return self._parse(file_name, content.decode().rstrip("\r\n"), parse)
        except UnicodeDecodeError:
            raise SettingError(f"{file_name}: the file {path} is not UTF-8 text") from None

    def secret(self, name: str, parse: Callable[[str], T]) -> T:
        value = self.optional_secret(name, parse)
        if value is None:
            raise SettingError(f"{name}: is not set, and neither is {name}_FILE")
        return value

    @staticmethod
    def _parse(name: str, text: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise SettingError(f"{name}: {error}") from None


def _tls(read: _Reader) -> Tls | None:
    cert_name, key_name, ca_name = "REGISTRY_TLS_CERT_FILE", "REGISTRY_TLS_KEY_FILE", "REGISTRY_TLS_CLIENT_CA_FILE"
    certificate, key = read.optional(cert_name, _content), read.optional(key_name, _content)
    client_ca = read.optional(ca_name, _content)
    if certificate is None and key is None:
        if client_ca is not None:
            raise SettingError(f"{ca_name}: is set, but {cert_name} and {key_name} are not")
        return None
    if certificate is None or key is None:
        absent, present = (cert_name, key_name) if certificate is None else (key_name, cert_name)
        raise SettingError(f"{absent}: is not set, but {present} is")
    _check_certificate(read.text(cert_name), read.text(key_name))
    if client_ca is not None:
        _check_client_ca(ca_name, read.text(ca_name))
    return Tls(certificate, key, client_ca)


def _check_certificate(cert_file: str, key_file: str) -> None:
    """gRPC itself would only say that it could not bind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The empty password keeps OpenSSL from asking for one at the terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        raise SettingError(
            "REGISTRY_TLS_CERT_FILE: and REGISTRY_TLS_KEY_FILE do not hold a PEM certificate and its unencrypted key "
            f"({getattr(error, 'reason', None) or error})"
        ) from None


def _check_client_ca(name: str, ca_file: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise SettingError(f"{name}: holds no PEM certificate ({error.reason or error})") from None


def _service_token(read: _Reader, tls: Tls | None) -> str | None:
    token = read.optional_secret("REGISTRY_SERVICE_TOKEN", _token)
    if token is None and (tls is None or tls.client_ca is None):
        raise SettingError(
            "REGISTRY_SERVICE_TOKEN: is not set, and it guards the port unless REGISTRY_TLS_CLIENT_CA_FILE does"
        )
    return token


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not (colon and bare and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"{text!r} is not host:port, such as 127.0.0.1:50051 or [::1]:50051")
    if (":" in bare) != (host == f"[{bare}]"):
        raise ValueError(f"{text!r}: an IPv6 address, and only that, stands in brackets")
    return bare, int(port)


def _address_or_off(text: str) -> tuple[str, int] | None:
    return None if text.lower() == "off" else _address(text)


def _database_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        # Without a host in its place, as for a socket's directory, the query names it.
        has_host = bool(parts.hostname or parse_qs(parts.query).get("host"))
    except ValueError:
        has_host = False
    is_file = text.startswith("sqlite:///") and text.strip("/") != "sqlite:" and not re.search(r"[?]|:memory:", text)
    is_server = text.startswith(("postgresql://", "postgres://")) and has_host
    if not (is_file or is_server):  # the value may hold a password
        raise ValueError("is neither sqlite:///path/to/file nor postgresql://user:password@host:port/database")
    return text


def _services(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(","))
    if not names <= SERVICES:
        raise ValueError(f"{text!r} is not a comma-separated list of {', '.join(sorted(SERVICES))}")
    return names


def _pepper(text: str) -> bytes:
    pepper = text.encode()
    if len(pepper) < _MIN_PEPPER:
        raise ValueError(f"has {len(pepper)} bytes, and needs {_MIN_PEPPER} or more, at random")
    return pepper


def _token(text: str) -> str:
    if len(text) < _MIN_TOKEN:
        raise ValueError(f"has {len(text)} characters, and needs {_MIN_TOKEN} or more, at random")
    if not all("!" <= character <= "~" for character in text):
        raise ValueError("holds something other than visible ASCII characters")
    return text


def _content(text: str) -> bytes:
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {text}: {error.strerror}") from None


def _file(text: str) -> Path:
    _content(text)
    return Path(text)


def _directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise ValueError(f"{text} is not a directory")
    return Path(text)


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(item.strip()) for item in text.split(",") if item.strip())
    except ValueError as error:
        raise ValueError(f"{error}; wanted: a comma-separated list such as 10.0.0.0/8,fd00::/8") from None


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:  # false of NaN
            raise ValueError(f"{text!r} is not a number from {least:g} to {most:g}")
        return number

    return parse


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def _boolean(text: str) -> bool:
    value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower())
    if value is None:
        raise ValueError(f"{text!r} is neither true nor false")
    return value


def _log_level(text: str) -> str:
    if text.upper() not in LOG_LEVELS:
        raise ValueError(f"{text!r} is not one of {', '.join(LOG_LEVELS)}")
    return text.upper()
