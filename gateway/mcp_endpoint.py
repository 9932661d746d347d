"""The MCP endpoint: the checks that come before a message is looked at, and what every answer carries.

The order of the checks is fixed: Host 421, Origin 403, path 404 and method 405, Authorization 400/401/431,
Content-Type 415, Accept 406 (a notification needs none), size 413, then the message itself.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TypeAlias

import structlog

from gateway.failures.table import Failure, Wording
from gateway.http.accept import Carriage, accept, content_type_ok, single
from gateway.http.answers import Answer, Answers, Frame
from gateway.http.authorization import credential_of
from gateway.http.body import (
    App,
    BodyTooLarge,
    ClientGone,
    Event,
    Headers,
    Receive,
    Reply,
    Scope,
    Send,
    each,
    gathered,
    silence,
    text,
    whole_body,
)
from gateway.http.language import preferred_locale
from gateway.mcp import jsonrpc
from gateway.mcp.methods import (
    KNOWN_METHODS,
    METHODS,
    SELF_AUTHENTICATED,
    Edge,
    Request,
    authenticate,
    failure_frame,
    protocol_frame,
)
from gateway.mcp.mirrored_headers import check_modern
from gateway.mcp.params import NO_META, meta_of
from gateway.mcp.revisions import Era, identify
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.traces import accepted_id, continued_trace, fresh_ids, new_trace

_CORS_REQUEST_HEADERS = (
    b"authorization, content-type, accept, accept-language, last-event-id, mcp-method, mcp-name, mcp-protocol-version, "
    b"mcp-session-id, traceparent, tracestate, x-mcp-env-scope, x-request-id"
)
_MIRRORED = re.compile(r"mcp-param-[a-z0-9!#$%&'*+.^_`|~-]+")
_CORS_EXPOSED_HEADERS = b"WWW-Authenticate, Retry-After, X-Naru-Call-Id, X-Request-Id"
_ACCEPTED = Reply(202)
_MAX_SHOWN = 100


_Answer: TypeAlias = Callable[[Request, Scope, Headers, Receive], Awaitable[App]]


class McpEndpoint:
    """The ASGI application behind the MCP paths. `edge` is set when the channels are open, before the first request."""

    edge: Edge

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.open = 0
        self.metrics = Metrics(lambda: self.open)
        self.log = structlog.get_logger().bind()
        self.answers = Answers(
            stream_after=settings.stream_after,
            keepalive=settings.keepalive,
            on_drop=self.metrics.dropped_progress.inc,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.carry(scope, receive, send, self._answer)

    async def carry(self, scope: Scope, receive: Receive, send: Send, answer: _Answer) -> None:
        """Answers one request, whatever comes of it; counts and logs it."""
        started = time.perf_counter()
        self.open += 1
        headers = gathered(scope)
        request = self._begin(scope, headers)
        try:
            app = await self._guarded(request, answer(request, scope, headers, receive))
            await app(scope, receive, _with_headers(request, send))
        finally:
            self.open -= 1
            self._record(request, scope["client"], time.perf_counter() - started)

    def _begin(self, scope: Scope, headers: Headers) -> Request:
        request_id, trace_id, span_id = fresh_ids()
        request_id = accepted_id(text(headers, b"x-request-id")) or request_id
        trace = continued_trace(text(headers, b"traceparent"), text(headers, b"tracestate"), span_id)
        settings = self.settings
        locale = preferred_locale(text(headers, b"accept-language"), settings.locale)
        accepted = accept(text(headers, b"accept") if b"accept" in headers else None)
        return Request(
            request_id=request_id,
            trace=trace or new_trace(trace_id, span_id),
            wording=Wording(locale, settings.meta_prefix),
            accept=accepted,
            dialect=identify(each(scope, headers, b"mcp-protocol-version"), accepted, NO_META),
        )

    async def _guarded(self, request: Request, answer: Awaitable[App]) -> App:
        """Turns whatever goes wrong before an answer exists into one, the end of the grace as well."""
        hold = self.answers.hold()
        try:
            return await answer
        except asyncio.CancelledError:
            if hold.why is None or not hold.release():
                raise
            return self._refusal(request, self._ending(request, None))
        except Failure as failure:
            return self._refusal(request, failure_frame(self.edge, request, failure))
        except jsonrpc.ProtocolError as error:
            return self._refusal(request, protocol_frame(request, error))
        except ClientGone:
            request.outcome = "disconnected"
            return silence
        except Exception as error:  # noqa: BLE001  the outermost border
            return self._refusal(request, self._ending(request, error))
        finally:
            self.answers.holds.discard(hold)

    def _refusal(self, request: Request, frame: Frame) -> App:
        """An error on HTTP 200 is carried as the client has asked for; HTTP errors are JSON for everybody."""
        if frame.status >= 400 or request.carriage in (Carriage.JSON, Carriage.LATE):
            return _reply(request, frame)
        ending = partial(self._ending, request)
        return Answer(self.answers, _alone(frame), request.carriage, cancel_on_disconnect=False, ending=ending)

    async def _answer(self, request: Request, scope: Scope, headers: Headers, receive: Receive) -> App:
        self.check_source(request, headers)
        if scope["method"] != "POST":
            return self._other_method(request, scope, headers)
        return await self._dispatch(request, scope, headers, receive)

    def check_source(self, request: Request, headers: Headers) -> None:
        """Refuses what a web page could make a browser send (DNS rebinding), before anything else is looked at."""
        host = text(headers, b"host").lower()
        hosts = self.settings.allowed_hosts
        if host not in hosts:
            name, colon, port = host.rpartition(":")
            if not colon or name not in hosts or not (port.isascii() and port.isdecimal()):
                raise Failure("HOST_NOT_ALLOWED")
        origin = headers.get(b"origin")
        if origin is None:
            return
        if origin.decode("latin-1").lower() not in self.settings.allowed_origins:
            raise Failure("ORIGIN_NOT_ALLOWED")
        request.headers += (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _CORS_EXPOSED_HEADERS),
            (b"vary", b"Origin"),
        )

    def _other_method(self, request: Request, scope: Scope, headers: Headers) -> App:
        if scope["method"] == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers:
            request.headers += (
                (b"access-control-allow-methods", b"POST"),
                (b"access-control-allow-headers", _allowed_headers(headers)),
                (b"access-control-max-age", b"600"),
            )
            return Reply(204)
        request.headers.append((b"allow", b"POST"))
        raise Failure("METHOD_NOT_ALLOWED")

    async def _dispatch(self, request: Request, scope: Scope, headers: Headers, receive: Receive) -> App:
        request.credential = credential_of(each(scope, headers, b"authorization"))
        if not content_type_ok(text(headers, b"content-type") if b"content-type" in headers else None):
            raise Failure("UNSUPPORTED_MEDIA_TYPE")
        message = await self._message(request, headers, receive)
        if isinstance(message, jsonrpc.Response):
            return await self._posted_response(request, message)
        self._read(request, scope, headers, message)
        if message.id is None or message.method not in SELF_AUTHENTICATED:
            await authenticate(self.edge, request)
            if message.id is None:
                return _ACCEPTED
        modern = request.dialect.era is Era.MODERN
        if modern:
            check_modern(scope["headers"], message, request.meta)
        handler = METHODS[request.dialect.era].get(message.method)
        if handler is None:
            raise Failure("METHOD_NOT_FOUND", {"method": message.method[:_MAX_SHOWN]})
        items = handler(self.edge, request)
        ending = partial(self._ending, request)
        return Answer(self.answers, items, request.carriage, cancel_on_disconnect=modern, ending=ending)

    async def _message(
        self, request: Request, headers: Headers, receive: Receive
    ) -> jsonrpc.Message | jsonrpc.Response:
        """Reads the message. Only a notification, which is answered without a body, may be asked for in no form."""
        acceptable = request.accept.carriage is not None
        try:
            body = await whole_body(headers, receive, self.settings.max_body_bytes)
            request.unread = False
            message = jsonrpc.decode(body)
        except (jsonrpc.ProtocolError, BodyTooLarge) as error:
            if not acceptable:
                raise Failure("NOT_ACCEPTABLE") from error
            if isinstance(error, BodyTooLarge):
                raise Failure("BODY_TOO_LARGE", {"limit_bytes": self.settings.max_body_bytes}) from error
            raise
        if not acceptable and isinstance(message, jsonrpc.Message) and message.id is not None:
            raise Failure("NOT_ACCEPTABLE")
        return message

    async def _posted_response(self, request: Request, response: jsonrpc.Response) -> App:
        await authenticate(self.edge, request)
        if request.dialect.era is Era.MODERN:
            raise jsonrpc.ProtocolError("INVALID_REQUEST", "clients do not post responses", response.id)
        return _ACCEPTED

    def _read(self, request: Request, scope: Scope, headers: Headers, message: jsonrpc.Message) -> None:
        """Takes down what the message and its headers say about how to treat it."""
        request.message = message
        request.meta = meta = meta_of(message)
        versions = each(scope, headers, b"mcp-protocol-version")
        request.dialect = identify(versions, request.accept, meta, message.method)
        carriage = request.accept.carriage or Carriage.JSON
        request.carriage = carriage if message.method == "tools/call" else single(carriage)
        request.lane = text(headers, b"x-mcp-env-scope")[:_MAX_SHOWN]
        request.session_id = accepted_id(text(headers, b"mcp-session-id"))
        if meta.traceparent:
            span_id = request.trace.traceparent[36:52]
            request.trace = continued_trace(meta.traceparent, meta.tracestate, span_id) or request.trace

    def _ending(self, request: Request, error: Exception | None) -> Frame:
        """The last frame of an answer that has none of its own: the grace is over, or something unforeseen happened."""
        trace_id = request.trace.trace_id
        if error is not None:
            self.log.error("unforeseen", exc_info=error, request_id=request.request_id, trace_id=trace_id)
            return failure_frame(self.edge, request, Failure("INTERNAL", {"trace_id": trace_id}))
        reason = "CALL_OUTCOME_UNKNOWN" if request.method == "tools/call" else "SERVICE_UNAVAILABLE"
        return failure_frame(self.edge, request, Failure(reason))

    def _record(self, request: Request, client: tuple[str, int] | None, seconds: float) -> None:
        """Counts and logs a request. Nothing that a client made up becomes a label."""
        method = request.method
        if method and method not in KNOWN_METHODS:
            method = "other" if request.id else "notification"
        era, carriage = request.dialect.era.value, request.carriage.value
        self.metrics.request(method or "none", era, carriage, request.outcome, seconds)
        self.log.info(
            "request",
            request_id=request.request_id,
            trace_id=request.trace.trace_id,
            call_id=request.call_id,
            method=request.method[:_MAX_SHOWN],
            tool=request.tool[:_MAX_SHOWN],
            era=era,
            carriage=carriage,
            status=request.status,
            outcome=request.outcome,
            client=client[0] if client else "",
            duration_ms=round(seconds * 1000, 3),
        )


def _with_headers(request: Request, send: Send) -> Send:
    """Adds the request's own headers to its answer, and notes how it was answered."""

    async def sending(event: Event) -> None:
        if event["type"] == "http.response.start":
            request.status = event["status"]
            headers = event["headers"]
            if request.carriage is Carriage.LATE:
                streamed = (b"content-type", b"text/event-stream") in headers
                request.carriage = Carriage.SSE if streamed else Carriage.JSON
            event["headers"] = [*headers, *request.headers]
        await send(event)

    return sending


def _allowed_headers(headers: Headers) -> bytes:
    """Lists the headers that a page may send: those we read, and the arguments that MCP mirrors there."""
    wanted = text(headers, b"access-control-request-headers").lower().split(",")
    mirrored = [name.strip().encode() for name in wanted if _MIRRORED.fullmatch(name.strip())]
    return b", ".join([_CORS_REQUEST_HEADERS, *mirrored])


def _reply(request: Request, frame: Frame) -> Reply:
    headers = [(name.lower().encode(), value.encode()) for name, value in frame.headers.items()]
    return Reply(frame.status, frame.body, headers, request.unread, closing=request.outcome == "BODY_TOO_LARGE")


async def _alone(frame: Frame) -> AsyncGenerator[Frame, None]:
    yield frame


class Elsewhere:
    """The ASGI application behind what is not served: a path, or a method of a path (`allow` names those that are)."""

    def __init__(self, endpoint: McpEndpoint, reason: str, allow: bytes = b"") -> None:
        self._endpoint = endpoint
        self._reason = reason
        self._allow = allow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint.carry(scope, receive, send, self._answer)

    async def _answer(self, request: Request, _scope: Scope, headers: Headers, _receive: Receive) -> App:
        self._endpoint.check_source(request, headers)
        if self._allow:
            request.headers.append((b"allow", self._allow))
        raise Failure(self._reason)


class Document:
    """The ASGI application behind a fixed JSON text."""

    def __init__(self, endpoint: McpEndpoint, text: bytes) -> None:
        self._endpoint = endpoint
        self._reply = Reply(200, text)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint.carry(scope, receive, send, self._answer)

    async def _answer(self, request: Request, _scope: Scope, headers: Headers, _receive: Receive) -> App:
        self._endpoint.check_source(request, headers)
        return self._reply
