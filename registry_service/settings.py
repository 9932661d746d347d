"""The settings of the registry service, read once from the environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from naru.environment import (
    LEVELS,
    Bind,
    Environment,
    SettingError,
    UnknownVariable,
    bind,
    bind_or_off,
    boolean,
    directory,
    file,
    hosts,
    integer,
    items,
    number,
    one_of,
    visible,
)

SERVICES = frozenset({"registry", "accounts", "execution"})
MIB = 1024 * 1024

_MIN_PEPPER = 32
_MIN_TOKEN = 16
# A result crosses gRPC in one message, whose limit is 16 MiB, with its frame, its structured form and its facts.
_MAX_RESULT = 15 * MIB
_DAY = 86_400.0
_DEFAULT_DATABASE_URL = "sqlite:///naru.db"

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM text. `client_ca` is set when clients must show a certificate."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Holds what the service needs to know. Times are seconds. `unknown` are variables that nothing reads."""

    bind: Bind
    database_url: str = field(repr=False)
    services: frozenset[str]
    pepper: bytes = field(repr=False)
    admin_token: str = field(repr=False)
    # None only where client certificates guard the port instead.
    service_token: str | None = field(repr=False)
    plans_file: Path | None
    secrets_dir: Path | None
    endpoint_networks: tuple[Network, ...]
    # Certificates (PEM) of a private authority.
    endpoint_ca: bytes | None
    metrics_bind: Bind | None
    metrics_allowed_hosts: frozenset[str]
    default_timeout: float
    max_timeout: float
    max_result_bytes: int
    max_connection_age: float
    shutdown_grace: float
    auto_migrate: bool
    tls: Tls | None
    log_level: str
    unknown: tuple[UnknownVariable, ...] = field(compare=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Reads and checks every setting, and the files that some of them name. Raises SettingError."""
        env = Environment(environ)
        tls = _tls(env)
        settings = cls(
            bind=env.read("REGISTRY_BIND", "127.0.0.1:50051", bind),
            database_url=env.optional_secret("DATABASE_URL", _database_url) or _DEFAULT_DATABASE_URL,
            services=env.read("REGISTRY_SERVICES", "registry,accounts,execution", _services),
            pepper=env.secret("REGISTRY_PEPPER", _pepper),
            admin_token=env.secret("REGISTRY_ADMIN_TOKEN", _token),
            service_token=_service_token(env, tls),
            plans_file=env.optional("REGISTRY_PLANS_FILE", file),
            secrets_dir=env.optional("REGISTRY_SECRETS_DIR", directory),
            endpoint_networks=env.read("REGISTRY_ENDPOINT_NETWORKS", "", _networks),
            endpoint_ca=env.authority("REGISTRY_ENDPOINT_CA_FILE"),
            metrics_bind=env.read("REGISTRY_METRICS_BIND", "127.0.0.1:9465", bind_or_off),
            metrics_allowed_hosts=env.read("REGISTRY_METRICS_ALLOWED_HOSTS", "", hosts),
            default_timeout=env.read("REGISTRY_DEFAULT_TIMEOUT_SECONDS", "30", number(0.001, _DAY)),
            max_timeout=env.read("REGISTRY_MAX_TIMEOUT_SECONDS", "3600", number(0.001, _DAY)),
            max_result_bytes=env.read("REGISTRY_MAX_RESULT_BYTES", str(8 * MIB), integer(1, _MAX_RESULT)),
            max_connection_age=env.read("REGISTRY_MAX_CONNECTION_AGE_SECONDS", "15", number(1, _DAY)),
            shutdown_grace=env.read("REGISTRY_SHUTDOWN_GRACE_SECONDS", "20", number(0, _DAY)),
            auto_migrate=env.read("REGISTRY_AUTO_MIGRATE", "true", boolean),
            tls=tls,
            log_level=env.read("REGISTRY_LOG_LEVEL", "info", one_of(*LEVELS)),
            unknown=env.unknown("REGISTRY_"),
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


def _tls(env: Environment) -> Tls | None:
    cert_name, key_name, ca_name = "REGISTRY_TLS_CERT_FILE", "REGISTRY_TLS_KEY_FILE", "REGISTRY_TLS_CLIENT_CA_FILE"
    pair, client_ca = env.key_pair(cert_name, key_name), env.authority(ca_name)
    if pair is not None:
        return Tls(*pair, client_ca)
    if client_ca is not None:
        raise SettingError(f"{ca_name}: is set, but {cert_name} and {key_name} are not")
    return None


def _service_token(env: Environment, tls: Tls | None) -> str | None:
    token = env.optional_secret("REGISTRY_SERVICE_TOKEN", _token)
    if token is None and (tls is None or tls.client_ca is None):
        raise SettingError(
            "REGISTRY_SERVICE_TOKEN: is not set, and it guards the port unless REGISTRY_TLS_CLIENT_CA_FILE does"
        )
    return token


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
    names = frozenset(items(text))
    if not names or not names <= SERVICES:
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
    return visible(text)


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(item) for item in items(text))
    except ValueError as error:
        raise ValueError(f"{error}; wanted: a comma-separated list such as 10.0.0.0/8,fd00::/8") from None
