"""The gateway's settings: one frozen value, read from the environment once, at the start.

Every variable is checked here. A bad value raises `SettingError`, whose text names the variable and says what is wrong
with it, and never repeats a secret.
"""

import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from gateway.locales import Locale

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
# The prefix of a `_meta` key (MCP, basic/index): labels that start with a letter, joined by dots.
_META_PREFIX = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")
_MCP_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_RESERVED_PATHS = frozenset({"/healthz", "/readyz"})

_Value = TypeVar("_Value")


class SettingError(ValueError):
    """A variable with a value that cannot be served; the text names the variable."""


class Bind(NamedTuple):
    """An address to listen on; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the gateway needs to know. Times are seconds, sizes are bytes.

    `allowed_origins` holds `scheme://host[:port]`, `allowed_hosts` holds `host` (any port) or `host:port`, all in lower
    case. `metrics_bind` is None when metrics are switched off. `registry_ca` turns TLS to the registry on.
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
    meta_prefix: str
    locale: Locale
    shutdown_grace: float
    call_timeout: float
    registry_timeout: float
    registry_ping: float
    log_level: str

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Reads every `GATEWAY_…` variable; one that is empty counts as absent. Raises SettingError."""
        env = _Environment(environ)
        bind = env.read("GATEWAY_BIND", "127.0.0.1:8080", _bind)
        public_url = env.read("GATEWAY_PUBLIC_URL", _default_public_url(bind), _public_url)
        registry = env.read("GATEWAY_REGISTRY", "dns:///127.0.0.1:50051", _target)
        ca, cert, key = _registry_tls(env)
        return cls(
            bind=bind,
            registry=registry,
            execution=env.read("GATEWAY_EXECUTION", registry, _target),
            registry_token=_registry_token(env, required=ca is None),
            registry_ca=ca,
            registry_cert=cert,
            registry_key=key,
            mcp_paths=env.read("GATEWAY_MCP_PATHS", "/mcp", _mcp_paths),
            allowed_origins=env.read("GATEWAY_ALLOWED_ORIGINS", "", _origins) | public_url.origins,
            allowed_hosts=env.read("GATEWAY_ALLOWED_HOSTS", "", _hosts) | public_url.hosts | _LOOPBACK_HOSTS,
            forwarded_allow_ips=env.read("GATEWAY_FORWARDED_ALLOW_IPS", "", _networks),
            metrics_bind=env.read("GATEWAY_METRICS_BIND", "127.0.0.1:9464", _optional_bind),
            keepalive=env.read("GATEWAY_KEEPALIVE_SECONDS", "15", _seconds(0.05, 3600)),
            stream_after=env.read("GATEWAY_STREAM_AFTER_SECONDS", "10", _seconds(0.05, 3600)),
            max_body_bytes=env.read("GATEWAY_MAX_BODY_BYTES", str(4 << 20), _max_body),
            meta_prefix=env.read("GATEWAY_META_PREFIX", "xdata.kr", _meta_prefix),
            locale=cast(Locale, env.read("GATEWAY_LOCALE", "ko", _one_of("ko", "en"))),
            shutdown_grace=env.read("GATEWAY_SHUTDOWN_GRACE_SECONDS", "20", _seconds(0, 3600)),
            call_timeout=env.read("GATEWAY_CALL_TIMEOUT_SECONDS", "3630", _seconds(0.1, 86400)),
            registry_timeout=env.read("GATEWAY_REGISTRY_TIMEOUT_SECONDS", "10", _seconds(0.1, 600)),
            registry_ping=env.read("GATEWAY_REGISTRY_PING_SECONDS", "30", _seconds(1, 3600)),
            log_level=env.read("GATEWAY_LOG_LEVEL", "info", _one_of("debug", "info", "warning", "error")),
        )


class _Environment:
    """Reads variables and puts their names before what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def read(self, name: str, default: str, convert: Callable[[str], _Value]) -> _Value:
        try:
            return convert(self.get(name) or default)
        except ValueError as error:
            raise SettingError(f"{name}: {error}") from error

    def file(self, name: str) -> bytes | None:
        """Reads the file that the variable names; None when it is not set."""
        path = self.get(name)
        if not path:
            return None
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise SettingError(f"{name}: cannot read {path!r}: {error.strerror}") from error
        if not content.strip():
            raise SettingError(f"{name}: {path!r} is empty")
        return content


class _PublicUrl(NamedTuple):
    origins: frozenset[str]
    hosts: frozenset[str]


def _registry_tls(env: _Environment) -> tuple[bytes | None, bytes | None, bytes | None]:
    ca_name, cert_name, key_name = (f"GATEWAY_REGISTRY_{part}_FILE" for part in ("CA", "CERT", "KEY"))
    ca, cert, key = env.file(ca_name), env.file(cert_name), env.file(key_name)
    if (cert is None) != (key is None):
        missing = cert_name if cert is None else key_name
        raise SettingError(f"{missing}: the certificate and its key are needed together")
    if cert is not None and ca is None:
        raise SettingError(f"{ca_name}: a client certificate needs TLS, which this file turns on")
    context = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # only to find out what is wrong before gRPC fails on it in silence
    if ca is not None:
        try:
            context.load_verify_locations(env.get(ca_name))
        except ssl.SSLError as error:
            raise SettingError(f"{ca_name}: holds no PEM certificate") from error
    if cert is not None:
        try:
            context.load_cert_chain(env.get(cert_name), env.get(key_name), password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise SettingError(
                f"{cert_name}: and {key_name} hold no PEM certificate and its unencrypted key"
            ) from error
    return ca, cert, key


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _registry_token(env: _Environment, *, required: bool) -> str:
    name = "GATEWAY_REGISTRY_TOKEN"
    token = env.get(name)
    content = env.file(f"{name}_FILE")
    if token and content is not None:
        raise SettingError(f"{name}: is set, and {name}_FILE too: only one of them may be")
    if content is not None:
        name = f"{name}_FILE"
        token = content.decode("utf-8", "replace").strip()
    if token and not _TOKEN.fullmatch(token):
        raise SettingError(f"{name}: must be visible ASCII characters only")
    if required and not token:
        raise SettingError(f"{name}: is required (the registry's REGISTRY_SERVICE_TOKEN) unless TLS is on")
    return token


def _bind(text: str) -> Bind:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"must be host:port, or [host]:port for IPv6, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets: [{host}]:{port}")
    return Bind(host, int(port))


def _optional_bind(text: str) -> Bind | None:
    return None if text == "off" else _bind(text)


def _default_public_url(bind: Bind) -> str:
    """Guesses the public URL from the bind; empty for an address that clients cannot write into a URL."""
    if bind.port == 0 or bind.host in {"0.0.0.0", "::"}:  # noqa: S104  a comparison, not a bind
        return ""
    return f"http://{bind}"


def _public_url(text: str) -> _PublicUrl:
    if not text:
        return _PublicUrl(frozenset(), frozenset())
    origin = _origin(text, path_allowed=True)
    return _PublicUrl(frozenset({origin}), frozenset({origin.partition("://")[2]}))


def _origins(text: str) -> frozenset[str]:
    return frozenset(_origin(item) for item in _items(text))


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


def _hosts(text: str) -> frozenset[str]:
    items = [item.lower() for item in _items(text)]
    for item in items:
        if not re.fullmatch(r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", item):
            raise ValueError(f"must be host or host:port ([host] for IPv6), not {item!r}")
    return frozenset(items)


def _target(text: str) -> str:
    if not re.fullmatch(r"[!-~]+", text) or not re.search(r":[0-9]{1,5}$|^unix:", text):
        raise ValueError(f"must be a gRPC target such as dns:///registry:50051, not {text!r}")
    return text


def _mcp_paths(text: str) -> tuple[str, ...]:
    paths = tuple(dict.fromkeys(item.rstrip("/") for item in _items(text)))
    if not paths:
        raise ValueError("must name at least one path")
    for path in paths:
        if not _MCP_PATH.fullmatch(path) or path in _RESERVED_PATHS or path.startswith("/.well-known"):
            raise ValueError(f"must be paths such as /mcp, and none that is served for something else, not {path!r}")
    return paths


def _networks(text: str) -> str:
    items = _items(text)
    for item in items:
        if item != "*":
            ipaddress.ip_network(item, strict=False)
    return ",".join(items)


def _meta_prefix(text: str) -> str:
    labels = text.split(".")
    if not _META_PREFIX.fullmatch(text):
        raise ValueError(f"must be labels joined by dots, such as example.com, not {text!r}")
    if len(labels) > 1 and labels[1] in {"modelcontextprotocol", "mcp"}:
        raise ValueError(f"{text!r} is reserved by MCP")
    return text


def _max_body(text: str) -> int:
    if not text.isdecimal() or not 1024 <= int(text) <= 8 << 20:
        raise ValueError(f"must be a number of bytes from 1024 to {8 << 20}, not {text!r}")
    return int(text)


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:  # also refuses NaN
            raise ValueError(f"must be a number of seconds from {low:g} to {high:g}, not {text!r}")
        return value

    return convert


def _one_of(*choices: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {text!r}")
        return text

    return convert


def _items(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]
