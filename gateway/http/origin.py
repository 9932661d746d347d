"""Checks the Host and the Origin of a request, and tells what a page of another origin may send and read.

A web page can make a browser send requests to any address (DNS rebinding), so that both are looked at before all else.
"""

import ipaddress
import re
from collections.abc import Set

from gateway.failures.table import Failure
from gateway.http.body import HeaderLines, Headers, text

_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^\s:/?#@\[\],]+)(?::[0-9]{1,5})?")
_MIRRORED = re.compile(r"mcp-param-[a-z0-9!#$%&'*+.^_`|~-]+")
_REQUEST_HEADERS = (
    b"authorization, content-type, accept, accept-language, last-event-id, mcp-method, mcp-name, mcp-protocol-version, "
    b"mcp-session-id, traceparent, tracestate, x-mcp-env-scope, x-request-id"
)
_EXPOSED_HEADERS = b"WWW-Authenticate, Retry-After, X-Naru-Call-Id, X-Request-Id"


def check_host(headers: Headers, allowed: Set[str], *, any_address: bool = False) -> None:
    """Refuses a request whose Host is not ours. `allowed` holds hosts (any port), or hosts with a port, in lower case.

    With `any_address`, IP addresses pass: nobody can make a name of ours point to them. Raises Failure.
    """
    host = headers.get(b"host", b"").decode("latin-1").strip(" \t").lower()
    if host in allowed:
        return
    match = _HOST.fullmatch(host)
    if host and match is None:
        raise Failure("INVALID_REQUEST", {"detail": "Host must be one host, with a port or without"})
    name = match[1] if match is not None else ""
    if name not in allowed and not (any_address and _is_address(name)):
        raise Failure("HOST_NOT_ALLOWED")


def checked_origin(headers: Headers, allowed: Set[str]) -> HeaderLines:
    """Returns the header lines that let the page read the answer; none where no page asks. Raises Failure."""
    origin = headers.get(b"origin")
    if origin is None:
        return ()
    if origin.decode("latin-1").lower() not in allowed:
        raise Failure("ORIGIN_NOT_ALLOWED")
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
        (b"vary", b"Origin"),
    )


def is_preflight(method: str, headers: Headers) -> bool:
    """Says whether a browser asks on behalf of a page whether it may send a request."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def preflight_lines(headers: Headers) -> HeaderLines:
    """Returns the header lines that say what a page may send: what we read, and the arguments that MCP mirrors."""
    wanted = text(headers, b"access-control-request-headers").lower().split(",")
    mirrored = [name.strip().encode() for name in wanted if _MIRRORED.fullmatch(name.strip())]
    return (
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", b", ".join([_REQUEST_HEADERS, *mirrored])),
        (b"access-control-max-age", b"600"),
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
