"""The gateway's settings: one frozen value, read from the environment once, at the start.

Every variable is checked here. A bad value raises `SettingError`, whose text names the variable and says what is wrong
with it, and never repeats a secret.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit

from naru.environment import (
    LEVELS,
    Bind,
    Environment,
    SettingError,
    UnknownVariable,
    bind,
    bind_or_off,
    hosts,
    integer,
    items,
    number,
    one_of,
    visible,
)

Locale: TypeAlias = Literal["ko", "en"]

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
# The prefix of a `_meta` key (MCP, basic/index): labels that start with a letter, joined by dots.
_META_PREFIX = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")
_MCP_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_RESERVED_PATHS = frozenset({"/healthz", "/readyz"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Holds the gateway's settings. Times are seconds, sizes are bytes.

    `allowed_origins` holds `scheme://host[:port]`, `allowed_hosts` holds `host` (any port) or `host:port`, all in lower
    case. `metrics_bind` is None when metrics are switched off. `registry_ca` turns TLS to the registry on. `unknown`
    are variables that nothing reads.
    """

    bind: Bind
    registry: str
    execution: str
    registry_token: str = field(repr=False)
    registry_ca: bytes | None
    registry_cert: bytes | None
    registry_key: bytes | None = field(repr=False)
    mcp_paths: tuple[str, ...]
    allowed_origins: frozenset[str]
    allowed_hosts: frozenset[str]
    forwarded_allow_ips: str
    metrics_bind: Bind | None
    keepalive: float
    stream_after: float
    max_body_bytes: int
    write_timeout: float
    max_unread_bytes: int
    meta_prefix: str
    locale: Locale
    shutdown_grace: float
    call_timeout: float
    registry_timeout: float
    registry_ping: float
    log_level: str
    unknown: tuple[UnknownVariable, ...] = field(compare=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Reads every `GATEWAY_…` variable; one that is empty counts as absent. Raises SettingError."""
        env = Environment(environ)
        address = env.read("GATEWAY_BIND", "127.0.0.1:8080", bind)
        public_url = env.read("GATEWAY_PUBLIC_URL", _default_public_url(address), _public_url)
        registry = env.read("GATEWAY_REGISTRY", "dns:///127.0.0.1:50051", _target)
        ca, cert, key = _registry_tls(env)
        return cls(
            bind=address,
            registry=registry,
            execution=env.read("GATEWAY_EXECUTION", registry, _target),
            registry_token=_registry_token(env, required=ca is None),
            registry_ca=ca,
            registry_cert=cert,
            registry_key=key,
            mcp_paths=env.read("GATEWAY_MCP_PATHS", "/mcp", _mcp_paths),
            allowed_origins=env.read("GATEWAY_ALLOWED_ORIGINS", "", _origins) | public_url.origins,
            allowed_hosts=env.read("GATEWAY_ALLOWED_HOSTS", "", hosts) | public_url.hosts | _LOOPBACK_HOSTS,
            forwarded_allow_ips=env.read("GATEWAY_FORWARDED_ALLOW_IPS", "", _networks),
            metrics_bind=env.read("GATEWAY_METRICS_BIND", "127.0.0.1:9464", bind_or_off),
            keepalive=env.read("GATEWAY_KEEPALIVE_SECONDS", "15", number(0.05, 3600)),
            stream_after=env.read("GATEWAY_STREAM_AFTER_SECONDS", "10", number(0.05, 3600)),
            max_body_bytes=env.read("GATEWAY_MAX_BODY_BYTES", str(4 << 20), integer(1024, 8 << 20)),
            write_timeout=env.read("GATEWAY_WRITE_TIMEOUT_SECONDS", "60", number(0.1, 3600)),
            max_unread_bytes=env.read("GATEWAY_MAX_UNREAD_BYTES", str(128 << 20), integer(1 << 20, 1 << 40)),
            meta_prefix=env.read("GATEWAY_META_PREFIX", "xdata.kr", _meta_prefix),
            locale=cast(Locale, env.read("GATEWAY_LOCALE", "ko", one_of("ko", "en"))),
            shutdown_grace=env.read("GATEWAY_SHUTDOWN_GRACE_SECONDS", "20", number(0, 3600)),
            call_timeout=env.read("GATEWAY_CALL_TIMEOUT_SECONDS", "3630", number(0.1, 86400)),
            registry_timeout=env.read("GATEWAY_REGISTRY_TIMEOUT_SECONDS", "10", number(0.1, 600)),
            registry_ping=env.read("GATEWAY_REGISTRY_PING_SECONDS", "1", number(1, 3600)),
            log_level=env.read("GATEWAY_LOG_LEVEL", "info", one_of(*LEVELS)),
            unknown=env.unknown("GATEWAY_"),
        )


class _PublicUrl(NamedTuple):
    origins: frozenset[str]
    hosts: frozenset[str]


def _registry_tls(env: Environment) -> tuple[bytes | None, bytes | None, bytes | None]:
    ca_name, cert_name, key_name = (f"GATEWAY_REGISTRY_{part}_FILE" for part in ("CA", "CERT", "KEY"))
    ca = env.authority(ca_name)
    if ca is None and env.text(cert_name) and env.text(key_name):
        raise SettingError(f"{ca_name}: a client certificate needs TLS, which this file turns on")
    cert, key = env.key_pair(cert_name, key_name) or (None, None)
    return ca, cert, key


def _registry_token(env: Environment, *, required: bool) -> str:
    token = env.optional_secret("GATEWAY_REGISTRY_TOKEN", lambda text: visible(text.strip()))
    if token is None and required:
        raise SettingError(
            "GATEWAY_REGISTRY_TOKEN: is required (the registry's REGISTRY_SERVICE_TOKEN) unless TLS is on"
        )
    return token or ""


def _default_public_url(address: Bind) -> str:
    """Guesses the public URL from the bind; empty for an address that clients cannot write into a URL."""
    if address.port == 0 or address.host in {"0.0.0.0", "::"}:  # noqa: S104  a comparison, not a bind
        return ""
    return f"http://{address}"


def _public_url(text: str) -> _PublicUrl:
    if not text:
        return _PublicUrl(frozenset(), frozenset())
    origin = _origin(text, path_allowed=True)
    return _PublicUrl(frozenset({origin}), frozenset({origin.partition("://")[2]}))


def _origins(text: str) -> frozenset[str]:
    return frozenset(_origin(item) for item in items(text))


def _origin(text: str, *, path_allowed: bool = False) -> str:
    """Returns `scheme://host[:port]` in lower case, as browsers write it: without a default port."""
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or url.username is not None or url.query or url.fragment:
        raise ValueError(f"must be http(s)://host[:port], not {text!r}")
    if url.path not in {"", "/"} and not path_allowed:
        raise ValueError(f"must be http(s)://host[:port] without a path, not {text!r}")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    default_port = 443 if url.scheme == "https" else 80
    port = "" if url.port in {None, default_port} else f":{url.port}"
    return f"{url.scheme}://{host}{port}"


def _target(text: str) -> str:
    if not re.fullmatch(r"[!-~]+", text) or not re.search(r":[0-9]{1,5}$|^unix:", text):
        raise ValueError(f"must be a gRPC target such as dns:///registry:50051, not {text!r}")
    return text


def _mcp_paths(text: str) -> tuple[str, ...]:
    paths = tuple(dict.fromkeys(item.rstrip("/") for item in items(text)))
    if not paths:
        raise ValueError("must name at least one path")
    for path in paths:
        if not _MCP_PATH.fullmatch(path) or path in _RESERVED_PATHS or path.startswith("/.well-known"):
            raise ValueError(f"must be paths such as /mcp, and none that is served for something else, not {path!r}")
    return paths


def _networks(text: str) -> str:
    networks = items(text)
    for item in networks:
        if item != "*":
            ipaddress.ip_network(item, strict=False)
    return ",".join(networks)


def _meta_prefix(text: str) -> str:
    labels = text.split(".")
    if not _META_PREFIX.fullmatch(text):
        raise ValueError(f"must be labels joined by dots, such as example.com, not {text!r}")
    if len(labels) > 1 and labels[1] in {"modelcontextprotocol", "mcp"}:
        raise ValueError(f"{text!r} is reserved by MCP")
    return text
