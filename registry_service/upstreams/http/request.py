"""From the arguments of a call to the HTTP request that an endpoint gets. Pure but for the secrets it asks for.

- `{name}` in the path takes that argument, a string, a number or a boolean, percent-encoded whole.
- What is left: GET and DELETE send it as the query, other methods as a JSON body. Without path arguments the body is
  the client's bytes, untouched; with them, each value is.
- In a query an array repeats its key, `null` is sent by leaving the key out, an object is its JSON text, and numbers
  keep their digits.
- Headers are ours and the definition's only. Secrets stand in these and in the query of the definition's URL.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec
from multidict import CIMultiDict
from yarl import URL

from registry_service.errors import ArgumentsInvalidError
from registry_service.telemetry.traces import child_of
from registry_service.tools.active_tool import ActiveTool
from registry_service.tools.http_endpoint import PATH_ARGUMENT, SECRET
from registry_service.tools.json_document import token
from registry_service.tools.violation import Violation
from registry_service.upstreams.answer import Expected
from registry_service.upstreams.upstream import Context

USER_AGENT = "naru"
ACCEPT = "application/json, application/x-ndjson, text/event-stream, */*;q=0.1"

_ORIGIN = re.compile(r"https?://[^/?]+")
_SEPARATOR = re.compile(r"[/\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NO_SECRETS: tuple[str, ...] = ()
# How often a value may be percent-encoded and still be looked through.
_DECODINGS = 4

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode

# Violations of rules that stand in no schema.
_FIXED = Violation("", "is fixed by the tool's endpoint", "fixed")
_PATH_MISSING = Violation("", "is required: it is part of the endpoint's path", "pathMissing")
_PATH_TYPE = Violation("", "must be a string, a number or a boolean: it is part of the endpoint's path", "pathType")
_PATH_EMPTY = Violation("", "must not be empty: it is part of the endpoint's path", "pathEmpty")
_PATH_SEGMENT = Violation("", "must not be or hold the path segment `.` or `..`, or control characters", "pathSegment")
# The limit of the JSON text of arguments that go into a URL. Most servers take no longer URL, and to encode megabytes
# of it would hold up everybody for seconds.
MAX_URL_ARGUMENTS = 16 * 1024
_URL_LENGTH = Violation(
    "",
    f"holds more than {MAX_URL_ARGUMENTS} bytes that go into the endpoint's URL",
    "urlLength",
    {"limit": MAX_URL_ARGUMENTS},
)
_PATH_DOTS = Violation("", "makes `.` or `..` a segment of the endpoint's path", "pathSegment")


class Request(NamedTuple):
    """One request, ready but for the headers that name the call. `body` is None where none is sent."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    body: bytes | None
    expected: Expected
    idempotent: bool
    # No answer may show these, should the endpoint repeat them.
    secrets: tuple[str, ...]


class Route:
    """The endpoint of one tool version in one lane, made ready to build requests quickly."""

    def __init__(self, tool: ActiveTool, lane: str) -> None:
        endpoint = tool.definition.endpoints[lane]
        # Registration admits only URLs whose characters are legal as they are.
        origin = _ORIGIN.match(endpoint.url)
        if origin is None:
            raise ValueError(f"{tool.name} {tool.version}: the endpoint of {lane} is not an http or https URL")
        path, _, query = endpoint.url[origin.end() :].partition("?")
        # Literal text and names of secrets in turn.
        self._query = SECRET.split(query)
        self._fixed = frozenset(_parameter(name) for name, _ in parse_qsl(query, keep_blank_values=True))
        self.tool = tool
        self._method = endpoint.method
        self._sends_query = endpoint.method in ("GET", "DELETE")
        self._origin = origin[0]
        # Literal text and names of arguments in turn.
        self._path = PATH_ARGUMENT.split(path)
        self._static = URL(endpoint.url, encoded=True) if len(self._query) == 1 else None
        self._headers = _headers_of_ours(tool, lane, self._sends_query)
        self._secret_headers: list[tuple[str, list[str]]] = []
        for name, value in endpoint.headers.items():
            parts = SECRET.split(value)
            if len(parts) > 1:
                self._secret_headers.append((name, parts))
            self._headers[name] = value
        self._has_secrets = bool(self._secret_headers) or len(self._query) > 1
        self._expected = Expected(endpoint.result, tool.output)

    def request(self, arguments: bytes, read_secret: Callable[[str], str]) -> Request:
        """Maps arguments: JSON text of an object that has passed its schema check.

        Raises ArgumentsInvalidError for values that cannot be part of a path, and what `read_secret` raises.
        """
        headers = self._headers.copy()
        query, secrets = self._query[0], _NO_SECRETS
        if self._has_secrets:
            query, secrets = self._fill_secrets(headers, read_secret)
        url, body = self._map(arguments, query)
        idempotent = self.tool.definition.idempotent
        return Request(self._method, url, headers, body, self._expected, idempotent, secrets)

    def _fill_secrets(
        self, headers: CIMultiDict[str], read_secret: Callable[[str], str]
    ) -> tuple[str, tuple[str, ...]]:
        """Completes the headers; returns the query, and the secrets that are sent."""
        sent: dict[str, str] = {}

        def secret(name: str) -> str:
            return sent.setdefault(name, read_secret(name))

        for name, parts in self._secret_headers:
            headers[name] = _filled(parts, secret)
        query = _filled(self._query, lambda name: quote(secret(name), safe=""))
        return query, tuple(sent.values())

    def _map(self, arguments: bytes, query: str) -> tuple[URL, bytes | None]:
        if len(self._path) == 1 and not self._sends_query:
            return self._static or self._url(self._path[0], query), arguments
        members = {name: bytes(raw) for name, raw in _decode_members(arguments).items()}
        self._refuse_long(members)
        path = self._fill_path(members)
        if not self._sends_query:
            body = b"{" + b",".join(_encode(name) + b":" + raw for name, raw in members.items()) + b"}"
            return self._url(path, query), body
        self._refuse_fixed(members)
        pairs = [(name, text) for name, raw in members.items() for text in _query_texts(raw)]
        return self._url(path, "&".join(filter(None, (query, urlencode(pairs, quote_via=quote))))), None

    def _refuse_long(self, members: Mapping[str, bytes]) -> None:
        names = members if self._sends_query else self._path[1::2]
        if sum(len(name) + len(members.get(name, b"")) for name in names) > MAX_URL_ARGUMENTS:
            raise ArgumentsInvalidError(tool=self.tool.name, violations=[_URL_LENGTH.fact()])

    def _refuse_fixed(self, members: Iterable[str]) -> None:
        """Refuses parameters that the URL of the definition has: of two of one name most endpoints take the last."""
        told = [_FIXED._replace(pointer=token(name)).fact() for name in members if _parameter(name) in self._fixed]
        if told:
            raise ArgumentsInvalidError(tool=self.tool.name, violations=told)

    def _url(self, path: str, query: str) -> URL:
        """Encoded, so that the URL library changes nothing: it would take even `%2E%2E` for a step in the tree."""
        return URL(f"{self._origin}{path}?{query}" if query else self._origin + path, encoded=True)

    def _fill_path(self, members: dict[str, bytes]) -> str:
        """Takes the path's arguments out of `members`."""
        parts, names = list(self._path), self._path[1::2]
        faults = []
        for index, name in enumerate(names):
            text, fault = _path_text(members.get(name, b""))
            parts[2 * index + 1] = quote(text, safe="")
            if fault is not None:
                faults.append(fault._replace(pointer=token(name)))
        path = "".join(parts)
        if names and not faults and _misread(path):
            faults.append(_PATH_DOTS._replace(pointer=token(names[0])))
        if faults:
            raise ArgumentsInvalidError(tool=self.tool.name, violations=[fault.fact() for fault in faults])
        for name in names:
            members.pop(name, None)
        return path


def _filled(parts: Sequence[str], read: Callable[[str], str]) -> str:
    """Joins literal texts and what is read for the names between them."""
    filled = list(parts)
    filled[1::2] = map(read, parts[1::2])
    return "".join(filled)


def _parameter(name: str) -> str:
    """Returns what endpoints may take the name of a parameter for: in any case, and `a[b]` for an `a`."""
    return re.split(r"[\[\0]", name.strip(), maxsplit=1)[0].casefold()


def _headers_of_ours(tool: ActiveTool, lane: str, sends_query: bool) -> CIMultiDict[str]:
    headers = CIMultiDict(
        {
            "Accept": ACCEPT,
            "User-Agent": USER_AGENT,
            "X-Naru-Tool": tool.name,
            "X-Naru-Version": tool.version,
            "X-Naru-Lane": lane,
        }
    )
    if not sends_query:
        headers["Content-Type"] = "application/json"
    return headers


def call_headers(context: Context) -> dict[str, str]:
    """Returns the headers that name the call, without those that would be empty."""
    headers = {
        "X-Naru-Call-Id": context.call_id,
        "Idempotency-Key": context.call_id,
        "X-Naru-Deadline-Ms": str(max(0, int(context.seconds * 1000))),
    }
    if context.request_id:
        headers["X-Request-Id"] = context.request_id
    if traceparent := child_of(context.traceparent):
        headers["traceparent"] = traceparent
        if context.tracestate:
            headers["tracestate"] = context.tracestate
    return headers


def _path_text(raw: bytes) -> tuple[str, Violation | None]:
    """Returns the text that a JSON value puts into a path, and what forbids it, None where nothing does."""
    if not raw:
        return "", _PATH_MISSING
    if raw[:1] in (b"{", b"[", b"n"):
        return "", _PATH_TYPE
    text = _decode_string(raw) if raw[:1] == b'"' else raw.decode()
    if not text:
        return "", _PATH_EMPTY
    return text, _PATH_SEGMENT if _misread(text) else None


def _misread(text: str) -> bool:
    """Finds what could change the endpoint's path: `.` and `..` as a segment, with parameters too, and control
    characters; also where only an endpoint that decodes once more, or a proxy, would see it."""
    for _ in range(_DECODINGS):
        plain = unicodedata.normalize("NFKC", text)
        if _CONTROL.search(text) or any(_is_step(segment) for segment in _SEPARATOR.split(plain)):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded
    return "%" in text


def _is_step(segment: str) -> bool:
    return segment.partition(";")[0] in (".", "..")


def _query_texts(raw: bytes) -> Iterable[str]:
    """The values that a query gives to one key."""
    if raw.startswith(b"["):
        return [text for item in _decode_items(raw) if (text := _query_text(bytes(item))) is not None]
    text = _query_text(raw)
    return () if text is None else (text,)


def _query_text(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    return _decode_string(raw) if raw.startswith(b'"') else raw.decode()
