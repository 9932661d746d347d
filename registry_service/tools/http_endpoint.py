"""Says what may stand in the URLs and headers of a definition's endpoints. Pure; upstreams/http calls them."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from registry_service.identity.plans import LANES
from registry_service.tools.json_document import Fault, shown, token
from registry_service.tools.schema_lint import near
from registry_service.tools.schema_walk import in_place

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
RESULTS = ("json", "mcp")
MAX_URL = 2048
MAX_HEADERS = 32
MAX_HEADER_VALUE = 4096

# `{name}` in a path takes the argument of that name.
PATH_ARGUMENT = re.compile(r"\{([^{}/?#]+)\}")
# `${secret:name}` in a header or in a query's value takes the secret of that name; it is a file's name.
SECRET = re.compile(r"\$\{secret:([A-Za-z0-9_-][A-Za-z0-9_.-]{0,63})\}")

_NO_NAME = "holds ${ that does not begin a ${secret:name}; a name is 1 to 64 of A-Z a-z 0-9 _ . -, no dot first"

_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
# The characters of RFC 3986 beside the delimiters that _URL has taken away.
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_MEMBERS = frozenset(["url", "method", "headers", "result"])
_SCALARS = {"string", "integer", "number", "boolean"}

# Those of the connection are the HTTP client's; the others are Naru's own and tell the endpoint about the call.
_RESERVED = frozenset(
    [
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "te"),
        *("trailer", "upgrade", "expect", "proxy-authorization", "proxy-authenticate", "http2-settings"),
        *("x-request-id", "traceparent", "tracestate", "idempotency-key"),
    ]
)
_RESERVED_PREFIXES = ("x-naru-", "mcp-")


def endpoint_faults(lanes: object, at: str, input_schema: object) -> Iterator[Fault]:
    """Yields the faults of a definition's `endpoint`: an object with an endpoint for one lane or more.

    `at` is the JSON Pointer to it; `input_schema` says which arguments a path can take.
    """
    if not isinstance(lanes, dict):
        yield Fault(at, f"must be an object with a member for one of the lanes {', '.join(LANES)} or more")
        return
    arguments = _declared(input_schema)
    if not lanes:
        yield Fault(at, f"needs an endpoint for one of the lanes {', '.join(LANES)}")
    for lane, endpoint in lanes.items():
        if lane not in LANES:
            yield Fault(at + token(lane), f"is not a lane; the lanes are {', '.join(LANES)}")
        elif not isinstance(endpoint, dict):
            yield Fault(at + token(lane), "must be an object with a url")
        else:
            yield from _endpoint(endpoint, at + token(lane), arguments)


def _endpoint(endpoint: dict[str, object], at: str, arguments: Mapping[str, list[object]]) -> Iterator[Fault]:
    for name in endpoint.keys() - _MEMBERS:
        yield Fault(at + token(name), f"{shown(name)} is not a member of an endpoint{near(name, _MEMBERS)}")
    url = endpoint.get("url")
    if not isinstance(url, str):
        yield Fault(f"{at}/url", "must be a string")
    else:
        yield from (Fault(f"{at}/url", message) for message in _url(url, arguments))
    if endpoint.get("method", "POST") not in METHODS:
        yield Fault(f"{at}/method", f"must be one of {', '.join(METHODS)}")
    if endpoint.get("result", "json") not in RESULTS:
        yield Fault(f"{at}/result", f"must be one of {', '.join(RESULTS)}")
    if "headers" in endpoint:
        yield from _headers(endpoint["headers"], f"{at}/headers")


def _url(url: str, arguments: Mapping[str, list[object]]) -> Iterator[str]:
    if len(url) > MAX_URL:
        yield f"is longer than {MAX_URL} characters"
        return
    parts = _URL.fullmatch(url)
    if parts is None:
        yield "must be an absolute http or https URL"
        return
    _, authority, path, query, fragment = parts.groups()
    if "${" in authority or "${" in path:
        yield "may hold ${secret:name} in the values of its query only: hosts and paths are shown and logged"
        return
    yield from _authority(authority)
    yield from _path(path, arguments)
    yield from _query(query or "")
    if fragment is not None:
        yield "must not have a fragment"


def _query(query: str) -> Iterator[str]:
    literal = SECRET.sub("", query)
    if any(SECRET.search(pair.partition("=")[0]) for pair in query.split("&")):
        yield "may hold ${secret:name} in the values of its query, and not in a name"
    elif "${" in literal:
        yield _NO_NAME
    elif "{" in literal or "}" in literal:
        yield "may have {arguments} in its path only"
    elif not _QUERY.fullmatch(literal):
        yield "has a character in its query that must be percent-encoded"


def _authority(authority: str) -> Iterator[str]:
    if "@" in authority:
        yield "must not hold a user or password; use a header with ${secret:name}"
        return
    if "{" in authority or "}" in authority:
        yield "may have {arguments} in its path only"
        return
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None or not _host(parts[1]):
        yield "must name a host, in ASCII"
    elif parts[2] is not None and not 1 <= int(parts[2]) <= 65535:
        yield "has a port that does not exist"


def _host(host: str) -> bool:
    if not host.startswith("["):
        return _HOST.fullmatch(host) is not None
    try:
        return ipaddress.IPv6Address(host[1:-1]).scope_id is None
    except ValueError:
        return False


def _path(path: str, arguments: Mapping[str, list[object]]) -> Iterator[str]:
    literal = PATH_ARGUMENT.sub("", path)
    if "{" in literal or "}" in literal:
        yield "has a { or } that is not part of an {argument}"
    elif not _LITERAL.fullmatch(literal):
        yield "has a character in its path that must be percent-encoded"
    elif any(_may_become_dots(segment) for segment in path.split("/")):
        yield "has a path segment that is, or can become, . or .."
    for name in dict.fromkeys(PATH_ARGUMENT.findall(path)):
        if name not in arguments:
            yield f"takes {{{name}}}, which is not a property of inputSchema"
        elif not any(_may_be_scalar(schema) for schema in arguments[name]):
            yield f"takes {{{name}}}, which can only be an object, an array or null"


def _may_become_dots(segment: str) -> bool:
    """Tells whether URL libraries could take a segment for a step in the tree.

    An argument is never empty, `.` or `..` itself, so one that stands alone is safe.
    """
    literal = unquote(PATH_ARGUMENT.sub("", segment))
    taken = len(PATH_ARGUMENT.findall(segment))
    return literal in (".", "..") or (literal == "" and taken > 1)


def _may_be_scalar(schema: object) -> bool:
    if not isinstance(schema, dict) or "type" not in schema:
        return True
    types = schema["type"]
    return not _SCALARS.isdisjoint(types if isinstance(types, list) else [types])


def _headers(headers: object, at: str) -> Iterator[Fault]:
    if not isinstance(headers, dict):
        yield Fault(at, "must be an object of strings")
        return
    if len(headers) > MAX_HEADERS:
        yield Fault(at, f"holds more than {MAX_HEADERS} headers")
    seen: set[str] = set()
    for name, value in headers.items():
        lower = name.lower()
        if not _TOKEN.fullmatch(name):
            yield Fault(at + token(name), "is not the name of a header")
        elif lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
            yield Fault(at + token(name), "is a header that Naru or its HTTP client sets")
        elif lower in seen:
            yield Fault(at + token(name), "stands twice, letter case aside")
        seen.add(lower)
        yield from (Fault(at + token(name), message) for message in _header_value(value))


def _header_value(value: object) -> Iterator[str]:
    if not isinstance(value, str):
        yield "must be a string"
    elif len(value) > MAX_HEADER_VALUE or not _VALUE.fullmatch(value):
        yield f"must be 1 to {MAX_HEADER_VALUE} printable ASCII characters, without white space around them"
    elif "${" in SECRET.sub("", value):
        yield _NO_NAME


def _declared(schema: object) -> dict[str, list[object]]:
    """Returns the properties that an object schema names, each with the schemas it gives them."""
    declared: dict[str, list[object]] = {}
    stack, seen = [schema], set[int]()
    while stack:
        node = stack.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        properties = node.get("properties")
        for name, child in properties.items() if isinstance(properties, dict) else ():
            declared.setdefault(name, []).append(child)
        stack.extend(in_place(schema, node))
    return declared
