"""Makes one HTTP call of a tool's endpoint. In this service only this module and connector.py import aiohttp."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import ParamSpec

import aiohttp

from naru.v1 import errors_pb2
from registry_service.errors import (
    Fact,
    ServiceUnavailableError,
    ToolRefusedError,
    ToolResponseInvalidError,
    ToolUnreachableError,
)
from registry_service.telemetry.metrics import FRAMES_PASSED_OVER, PROGRESS_DROPPED
from registry_service.tools.active_tool import ActiveTool
from registry_service.tools.checks import Checks
from registry_service.tools.schema_check import SchemaCheck
from registry_service.upstreams.answer import Answer, from_json, from_nothing, refuse
from registry_service.upstreams.egress import Guard, Network
from registry_service.upstreams.http.body import Body
from registry_service.upstreams.http.connector import EXCHANGE, MAX_HEAD_BYTES, Connector, Exchange
from registry_service.upstreams.http.event_stream import STREAM_FACTOR, Final, StreamedAnswer
from registry_service.upstreams.http.media_type import Kind, Media, parse_media
from registry_service.upstreams.http.request import Request, Route, call_headers
from registry_service.upstreams.http.response import ERROR_BODY_BYTES, from_body, from_http_error, from_stream_error
from registry_service.upstreams.http.turns import Pace, Turns
from registry_service.upstreams.secrets import SecretFiles, without_secrets
from registry_service.upstreams.upstream import Attempt, Context, OnProgress

P = ParamSpec("P")

# How long one address may take to accept a connection. The call's own deadline holds besides.
CONNECT_SECONDS = 10.0
# How long the body of an HTTP error may take, once its status is known.
ERROR_BODY_SECONDS = 5.0
# Too early, too many, took too long: the statuses below 500 that may be another one later.
_MAY_PASS = frozenset({408, 425, 429})
_ROUTES = 4096
# From here on, the endpoint has to wait until what it sent was read.
_READ_BYTES = 64 * 1024
# More than fit into a head, unless they say nothing.
_MAX_HEADERS = 4096
_TOO_MANY_HEADERS = "Too many headers received"
_MAX_LOCATION = 2048
_MAX_RETRY_AFTER = 999_999
# Created, and accepted: what was made or will be has a place of its own.
_WITHOUT_CONTENT = frozenset({201, 202})
# Above this, an answer is mapped in a thread.
_LARGE = 256 * 1024
# At most so much of a stream is cut to frames at a time.
_STREAM_SLICE = 4 * 1024


class _BrokenOffError(Exception):
    """The connection was lost before an answer began."""


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keeps aiohttp from sending GET, PUT and DELETE again by itself: a call is executed once, or by our decision."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ClientConnectionResetError, aiohttp.ServerDisconnectedError) as error:
        raise _BrokenOffError from error


class EndpointClient:
    """The upstream for HTTP endpoints, with one shared session.

    `networks` admits addresses that are not public; `max_result_bytes` bounds a body after decompression; `authority`
    are certificates (PEM) that are trusted beside those of the system.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        secrets_dir: Path | None,
        max_result_bytes: int,
        checks: Checks,
        authority: bytes | None = None,
    ) -> None:
        self._guard = Guard(networks)
        self._secrets = SecretFiles(secrets_dir)
        self._limit = max_result_bytes
        self._checks = checks
        self._authority = authority
        self._routes: dict[tuple[str, str, str], Route] = {}
        self._session: aiohttp.ClientSession | None = None
        self._turns = Turns()

    async def open(self) -> None:
        """Needs a running event loop."""
        connector = Connector(self._guard, authority=self._authority)
        self._turns = connector.turns
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers={"Accept-Encoding": "gzip, deflate, br"},
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
            # The connector bounds the whole head.
            max_line_size=2 * MAX_HEAD_BYTES,
            max_field_size=2 * MAX_HEAD_BYTES,
            max_headers=_MAX_HEADERS,
            middlewares=(_send_once,),
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def prepare(self, tool: ActiveTool, lane: str, arguments: bytes) -> Request:
        key = (tool.name, tool.version, lane)
        route = self._routes.get(key)
        if route is None or route.tool.definition is not tool.definition:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            route = self._routes[key] = Route(tool, lane)
        return route.request(arguments, self._secrets.read)

    async def call(
        self, prepared: Request, context: Context, attempt: Attempt, on_progress: OnProgress | None
    ) -> Answer:
        exchange = Exchange(attempt)
        EXCHANGE.set(exchange)
        prepared.headers.update(call_headers(context))
        response = await self._send(prepared, exchange)
        attempt.status = response.status
        content = _Content(response, exchange, self._turns)
        try:
            answer = await self._read(content, prepared, context.call_id, on_progress)
        except (aiohttp.ClientError, OSError) as error:
            raise _broken_off("the connection was lost during the answer") from error
        finally:
            # Closes the connection, unless the body was read to its end: then it has been handed back already.
            response.close()
        if answer.unchecked is not None:
            await self._check(answer.unchecked, answer.structured, prepared.headers["X-Naru-Tool"])
        return answer

    async def _check(self, output: SchemaCheck, structured: bytes, tool: str) -> None:
        """Holds a large answer to its schema. The tool did its work: nobody may hear that nothing happened."""
        try:
            refuse(await self._checks.violations(output, structured, tool))
        except ServiceUnavailableError as error:
            raise ToolResponseInvalidError(str(error), detail="too large to be checked in time") from None

    async def _send(self, request: Request, exchange: Exchange) -> aiohttp.ClientResponse:
        try:
            return await self._send_as_often_as_right(request)
        except _BrokenOffError as error:
            raise _broken_off("the connection was lost before the answer") from error
        except aiohttp.InvalidURL as error:
            raise ToolUnreachableError(detail="address not allowed", safe_to_retry=False) from error
        except aiohttp.ClientResponseError as error:
            too_many = error.message == _TOO_MANY_HEADERS
            raise ToolResponseInvalidError(
                detail=exchange.fault or ("headers too large" if too_many else "malformed HTTP")
            ) from error
        except aiohttp.ClientError as error:
            raise _no_connection(error, exchange) from error

    async def _send_as_often_as_right(self, request: Request) -> aiohttp.ClientResponse:
        """Once; once more if the connection broke before the answer and the tool says that this does no harm."""
        try:
            return await self._send_to_socket(request)
        except _BrokenOffError:
            if not request.idempotent:
                raise
        return await self._send_to_socket(request)

    async def _send_to_socket(self, request: Request) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("open() comes first")
        return await self._session.request(
            request.method, request.url, data=request.body, headers=request.headers, allow_redirects=False
        )

    async def _read(
        self, content: "_Content", request: Request, call_id: str, on_progress: OnProgress | None
    ) -> Answer:
        response = content.response
        status, headers = response.status, response.headers
        media = parse_media(headers.get("Content-Type"))
        if status in (401, 403):
            raise ToolRefusedError(http_status=status, safe_to_retry=False)
        if not 200 <= status < 300:
            return await _read_refusal(content, media, request.secrets)
        if status in (204, 205):
            return from_nothing(request.expected)
        if media.kind is Kind.NDJSON or media.kind is Kind.SSE:
            return await self._read_stream(content, media, request, on_progress)
        whole = await content.body(self._limit).read_all(self._limit)
        if not whole and status in _WITHOUT_CONTENT:
            return from_nothing(request.expected, content.location)
        uri = f"naru://calls/{call_id}/result"
        return await _mapped(len(whole), from_body, whole, media, request.expected, uri, self._limit)

    async def _read_stream(
        self, content: "_Content", media: Media, request: Request, on_progress: OnProgress | None
    ) -> Answer:
        body, stream = content.body(self._limit * STREAM_FACTOR), StreamedAnswer(media, self._limit, on_progress)
        try:
            first = await body.read()
            if not first and content.response.status in _WITHOUT_CONTENT:
                return from_nothing(request.expected, content.location)
            final = await _read_frames(first, body, stream)
        finally:
            if stream.passed_over:
                FRAMES_PASSED_OVER.inc(stream.passed_over)
            if stream.spared:
                PROGRESS_DROPPED.inc(stream.spared)
        if final.is_error:
            return await _mapped(len(final.text), from_stream_error, final.text, request.secrets)
        return await _mapped(len(final.text), from_json, final.text, request.expected)


async def _read_frames(chunk: bytes, body: Body, stream: StreamedAnswer) -> Final:
    while chunk:
        for start in range(0, len(chunk), _STREAM_SLICE):
            part = chunk[start : start + _STREAM_SLICE]
            if final := stream.feed(part, sparing=body.pace.in_turns):
                return final
            if b"\n" not in part and b"\r" not in part:
                body.pace.credit(len(part))  # of a large frame
            await body.pace.rest()
        chunk = await body.read()
    return stream.finish()


async def _mapped(size: int, to_answer: Callable[P, Answer], *arguments: P.args, **named: P.kwargs) -> Answer:
    """Maps what came. Much of it is mapped in a thread, so that others have their turn between its steps."""
    if size <= _LARGE:
        return to_answer(*arguments, **named)
    return await asyncio.to_thread(to_answer, *arguments, **named)


class _Content:
    """The content of an answer whose head has come."""

    def __init__(self, response: aiohttp.ClientResponse, exchange: Exchange, turns: Turns) -> None:
        self.response = response
        self._exchange = exchange
        self._turns = turns

    @property
    def location(self) -> str:
        """The `Location` of the answer, as text; empty where there is none."""
        value = self.response.headers.get("Location", "")[:_MAX_LOCATION]
        return value.encode(errors="surrogateescape").decode(errors="replace")

    def body(self, limit: int) -> Body:
        """Returns what reads the body, of which `limit` bytes may come. Raises ToolResponseInvalidError."""
        encoding = self.response.headers.get("Content-Encoding", "")
        return Body(self._read_raw, encoding, limit, Pace(self._exchange.effort, self._turns))

    async def _read_raw(self, pace: Pace) -> bytes:
        content = self.response.content
        raw = content.read_nowait()
        if not raw and not content.at_eof():
            raw = await content.readany()
            pace.waited()
        if raw or not self._exchange.fault:
            return raw
        if self._exchange.fault == "broken off":
            raise _broken_off("the connection was lost during the answer")
        raise ToolResponseInvalidError(detail=self._exchange.fault)


def _no_connection(error: aiohttp.ClientError, exchange: Exchange) -> ToolUnreachableError:
    if exchange.refused and not exchange.tried:
        return ToolUnreachableError(detail="address not allowed", safe_to_retry=False)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or type(error).__name__
        return ToolUnreachableError(f"certificate: {reason}", detail="certificate not trusted", safe_to_retry=False)
    if isinstance(error, aiohttp.ClientSSLError):
        return ToolUnreachableError(_told(error), detail="no TLS", safe_to_retry=False)
    detail = "name not resolved" if isinstance(error, aiohttp.ClientConnectorDNSError) else "no connection"
    return ToolUnreachableError(_told(error), detail=detail, safe_to_retry=not exchange.attempt.connected)


def _broken_off(message: str) -> ToolUnreachableError:
    return ToolUnreachableError(message, detail="broken off")


def _told(error: aiohttp.ClientError) -> str:
    """Describes the error for the log. aiohttp's own words may hold the URL, which may hold arguments of the call."""
    kind = type(error).__name__
    cause = error.os_error.strerror if isinstance(error, aiohttp.ClientConnectorError) else None
    return f"{kind}: {cause}" if cause else kind


async def _read_refusal(content: _Content, media: Media, secrets: Sequence[str]) -> Answer:
    """Maps what is neither a 2xx nor a refusal of our credential: redirects too, which are never followed."""
    response = content.response
    status = response.status
    facts: dict[str, Fact] = {"http_status": status}
    if status < 500 and status not in _MAY_PASS:
        # Whatever the tool says of itself: the identical request would fail again.
        facts["safe_to_retry"] = False
    seconds = retry_after(response.headers.get("Retry-After", ""), time.time())
    if seconds is not None:
        facts["retry_after_seconds"] = seconds
    start = b""
    # An unknown encoding, a body that breaks off or does not come: the status matters more.
    with contextlib.suppress(ToolResponseInvalidError, aiohttp.ClientError, OSError):
        # A secret that stands across the end of what is shown must be seen whole.
        size = ERROR_BODY_BYTES + 4 * max(map(len, secrets), default=0)
        start = await content.body(size).read_start(size, ERROR_BODY_SECONDS)
    # Its query may hold what lets whoever has it in.
    target = without_secrets(content.location, secrets).partition("?")[0] if 300 <= status < 400 else ""
    return Answer(
        from_http_error(start, media, secrets),
        is_error=True,
        reason=errors_pb2.TOOL_HTTP_ERROR,
        facts=facts,
        note=f"Location: {target}" if target else "",
    )


def retry_after(value: str, now: float) -> int | None:
    """Returns the seconds that a `Retry-After` names, as a number or as a date; None for what is neither."""
    if value.isascii() and value.isdigit():
        return int(value[:6])
    try:
        date = parsedate_to_datetime(value)
        at = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0, min(_MAX_RETRY_AFTER, math.ceil(at - now)))
