"""The MCP endpoint: the checks that come before a message is looked at, and what every answer carries.

The order of the checks is fixed: Host 421, Origin 403, path 404 and method 405, Authorization 400/401/431,
Content-Type 415, Accept 406 (a notification needs none), size 413, then the message itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import NamedTuple, TypeAlias

import structlog

from gateway.failures.table import Failure, Wording
from gateway.frame import Frame
from gateway.http.accept import Accept, Carriage, accept, content_type_ok, single
from gateway.http.answers import Answer, Answers
from gateway.http.authorization import challenges, credential_of
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
from gateway.http.origin import check_host, checked_origin, is_preflight, preflight_lines
from gateway.mcp import jsonrpc
from gateway.mcp.failed import failure_frame, protocol_frame
from gateway.mcp.methods import KNOWN_METHODS, METHODS, SELF_AUTHENTICATED, one
from gateway.mcp.mirrored_headers import Mirrored, check_modern
from gateway.mcp.params import NO_META, meta_of
from gateway.mcp.request import Request
from gateway.mcp.results import Server, Shapes
from gateway.mcp.revisions import identify, progress_token
from gateway.mcp.scans import Scans, is_large
from gateway.registry_client import RegistryClient, Sender
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import Record
from gateway.telemetry.traces import Trace, accepted_id, continued_trace, fresh_ids, new_trace

_ACCEPTED = Reply(202)
_MAX_SHOWN = 100
_MAX_SESSION_SHOWN = 1024
_NO_CODING = frozenset({"", "identity"})
# Faults of a message itself, rather than of what it asks for.
_UNREADABLE = frozenset({"PARSE_ERROR", "INVALID_REQUEST"})


class Arrival(NamedTuple):
    """Holds what arrived: an HTTP request before its body was read."""

    scope: Scope
    headers: Headers
    receive: Receive
    accept: Accept
    request_id: str
    trace: Trace

    def text(self, name: bytes) -> str:
        """Returns a header's value, empty where there is none."""
        return text(self.headers, name)

    def each(self, name: bytes) -> Sequence[str]:
        """Returns the value of every line of a header that may come once only."""
        return each(self.scope, self.headers, name)


class Exchange:
    """One request on its way to its answer: what arrived, the MCP request as far as it was read, and the record of it.

    `headers` are added to whatever answer there will be; `unread` says that the body has not been read.
    """

    __slots__ = ("arrival", "headers", "record", "request", "unread")

    def __init__(self, arrival: Arrival, request: Request) -> None:
        self.arrival = arrival
        self.request = request
        self.record = Record()
        self.headers: list[tuple[bytes, bytes]] = [(b"x-request-id", arrival.request_id.encode())]
        self.unread = True

    def chose(self, carriage: Carriage) -> None:
        """Notes how the answer travels."""
        self.record.carriage = carriage.value


_Answer: TypeAlias = Callable[[Exchange], Awaitable[App]]


class McpEndpoint:
    """The ASGI application behind the MCP paths. `client` is set when its links are open, before the first request."""

    client: RegistryClient

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.shapes = Shapes(Server("naru", version("naru"), title="Naru", prefix=settings.meta_prefix))
        self.open = 0
        self.metrics = Metrics(lambda: self.open)
        self.log = structlog.get_logger().bind()
        self.scans = Scans()
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
        exchange = self._begin(scope, receive)
        try:
            app = await self._guarded(exchange, answer(exchange))
            await app(scope, receive, _with_headers(exchange, send))
        finally:
            self.open -= 1
            self._report(exchange, scope["client"], time.perf_counter() - started)

    def _begin(self, scope: Scope, receive: Receive) -> Exchange:
        headers = gathered(scope)
        request_id, trace_id, span_id = fresh_ids()
        request_id = accepted_id(text(headers, b"x-request-id")) or request_id
        trace = continued_trace(text(headers, b"traceparent"), text(headers, b"tracestate"), span_id)
        trace = trace or new_trace(trace_id, span_id)
        accepted = accept(text(headers, b"accept") if b"accept" in headers else None)
        arrival = Arrival(scope, headers, receive, accepted, request_id, trace)
        locale = preferred_locale(text(headers, b"accept-language"), self.settings.locale)
        request = Request(
            dialect=identify(arrival.each(b"mcp-protocol-version"), NO_META, json_only=accepted.json_only),
            wording=Wording(locale, self.settings.meta_prefix),
            sender=Sender("", request_id, *trace),
        )
        return Exchange(arrival, request)

    async def _guarded(self, exchange: Exchange, answer: Awaitable[App]) -> App:
        """Turns whatever goes wrong before an answer exists into one, the end of the grace as well."""
        hold = self.answers.hold()
        try:
            return await answer
        except asyncio.CancelledError:
            if hold.why is None or not hold.release():
                raise
            return self._refusal(exchange, self._ending(exchange, None))
        except Failure as failure:
            return self._refusal(exchange, failure_frame(self.shapes, exchange.request, failure))
        except jsonrpc.ProtocolError as error:
            return self._refusal(exchange, self._protocol_frame(exchange, error))
        except ClientGone:
            exchange.record.outcome = "disconnected"
            return silence
        except Exception as error:  # noqa: BLE001  the outermost border
            return self._refusal(exchange, self._ending(exchange, error))
        finally:
            self.answers.holds.discard(hold)

    def _protocol_frame(self, exchange: Exchange, error: jsonrpc.ProtocolError) -> Frame:
        """MCP answers a message that cannot be read with HTTP 400, and the other contracts with 200.

        Their clients take one form of answer. Those of MCP take both, as it demands, or name a modern revision.
        """
        frame = protocol_frame(exchange.request, error)
        request, accepted = exchange.request, exchange.arrival.accept
        mcp = accepted.both or accepted.carriage is None or request.modern
        return frame if mcp or error.reason not in _UNREADABLE else frame._replace(status=200)

    def _refusal(self, exchange: Exchange, frame: Frame) -> App:
        """Carries an error on HTTP 200 as the client has asked for, and HTTP errors as JSON for everybody."""
        record = exchange.record
        carriage = single(exchange.arrival.accept.carriage or Carriage.JSON)
        if frame.status >= 400 or carriage is Carriage.JSON:
            record.carriage = Carriage.JSON.value
            record.sent(frame)
            return _reply(exchange, frame)
        record.carriage = carriage.value
        ending = partial(self._ending, exchange)
        observe = record.sent
        return Answer(self.answers, one(frame), carriage, cancel_on_disconnect=False, ending=ending, observe=observe)

    async def _answer(self, exchange: Exchange) -> App:
        self.check_source(exchange)
        if exchange.arrival.scope["method"] != "POST":
            return self._other_method(exchange)
        return await self._dispatch(exchange)

    def check_source(self, exchange: Exchange, *, any_address: bool = False) -> None:
        """Refuses what a web page could make a browser send, before anything else is looked at."""
        headers = exchange.arrival.headers
        check_host(headers, self.settings.allowed_hosts, any_address=any_address)
        exchange.headers += checked_origin(headers, self.settings.allowed_origins)

    def _other_method(self, exchange: Exchange) -> App:
        if is_preflight(exchange.arrival.scope["method"], exchange.arrival.headers):
            exchange.headers += preflight_lines(exchange.arrival.headers)
            return Reply(204)
        exchange.headers.append((b"allow", b"POST"))
        raise Failure("METHOD_NOT_ALLOWED", {"allow": "POST"})

    async def _dispatch(self, exchange: Exchange) -> App:
        arrival = exchange.arrival
        credential = credential_of(arrival.each(b"authorization"))
        if not content_type_ok(arrival.text(b"content-type") if b"content-type" in arrival.headers else None):
            raise Failure("UNSUPPORTED_MEDIA_TYPE")
        if arrival.text(b"content-encoding").lower() not in _NO_CODING:
            exchange.headers.append((b"accept-encoding", b"identity"))
            raise Failure("UNSUPPORTED_MEDIA_TYPE", {"detail": "it has a Content-Encoding"})
        message = await self._message(exchange, credential.metadata)
        if isinstance(message, jsonrpc.Response):
            return await self._posted_response(exchange, message, credential.metadata)
        carriage = arrival.accept.carriage or Carriage.JSON
        carriage = carriage if message.method == "tools/call" else single(carriage)
        exchange.record.carriage = carriage.value
        exchange.request = request = self._read(
            arrival, exchange.request.wording, message, carriage, credential.metadata
        )
        if message.id is None or message.method not in SELF_AUTHENTICATED:
            await self.client.authenticate(request.sender)
            if message.id is None:
                return _ACCEPTED
        if request.modern:
            names = (arrival.each(name) for name in (b"mcp-protocol-version", b"mcp-method", b"mcp-name"))
            check_modern(Mirrored(*names), message, request.meta)
        handler = METHODS[request.dialect.era].get(message.method)
        if handler is None:
            raise Failure("METHOD_NOT_FOUND", {"method": message.method[:_MAX_SHOWN]})
        items, tool = handler(self.client, self.shapes, request)
        exchange.record.handled(tool)
        return Answer(
            self.answers,
            items,
            carriage,
            cancel_on_disconnect=request.modern,
            ending=partial(self._ending, exchange),
            observe=exchange.record.sent,
            chosen=exchange.chose,
        )

    async def _message(self, exchange: Exchange, authorization: str) -> jsonrpc.Message | jsonrpc.Response:
        """Reads the message. Only a notification, which is answered without a body, may be asked for in no form.

        A large body, whose scan is much work, is only looked at for somebody who has an account.
        """
        arrival = exchange.arrival
        acceptable = arrival.accept.carriage is not None
        try:
            body = await whole_body(arrival.headers, arrival.receive, self.settings.max_body_bytes)
            exchange.unread = False
            if is_large(body):
                await self.client.authenticate(exchange.request.sender._replace(authorization=authorization))
                message = await self.scans.decode(body, authorization)
                await asyncio.sleep(0)  # others come to their turn before its parameters are read
            else:
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

    async def _posted_response(self, exchange: Exchange, response: jsonrpc.Response, authorization: str) -> App:
        await self.client.authenticate(exchange.request.sender._replace(authorization=authorization))
        if exchange.request.modern:
            raise jsonrpc.ProtocolError("INVALID_REQUEST", "clients do not post responses", response.id)
        return _ACCEPTED

    def _read(
        self, arrival: Arrival, wording: Wording, message: jsonrpc.Message, carriage: Carriage, authorization: str
    ) -> Request:
        """Reads what the message and its headers say about how to treat it."""
        meta = meta_of(message)
        versions = arrival.each(b"mcp-protocol-version")
        dialect = identify(versions, meta, message.method, json_only=arrival.accept.json_only)
        trace = arrival.trace
        if meta.traceparent:
            trace = continued_trace(meta.traceparent, meta.tracestate, trace.traceparent[36:52]) or trace
        streams = carriage is not Carriage.JSON
        negotiated = carriage in (Carriage.SSE, Carriage.NDJSON)
        return Request(
            dialect,
            wording,
            Sender(authorization, arrival.request_id, *trace),
            message,
            meta,
            lane=arrival.text(b"x-mcp-env-scope")[:_MAX_SHOWN],
            session_id=accepted_id(arrival.text(b"mcp-session-id")),
            streams=streams,
            progress_token=progress_token(dialect, meta, message.id or b"", negotiated=negotiated) if streams else None,
        )

    def _ending(self, exchange: Exchange, error: Exception | None) -> Frame:
        """Returns the last frame of an answer that has none: the grace is over, or something unforeseen happened."""
        request = exchange.request
        trace_id = request.sender.trace_id
        if error is not None:
            self.log.error("unforeseen", exc_info=error, request_id=request.sender.request_id, trace_id=trace_id)
            failure = Failure("INTERNAL", {"trace_id": trace_id})
        else:
            failure = Failure("CALL_OUTCOME_UNKNOWN" if request.method == "tools/call" else "SERVICE_UNAVAILABLE")
        return failure_frame(self.shapes, request, failure, exchange.record.call_id)

    def _report(self, exchange: Exchange, client: tuple[str, int] | None, seconds: float) -> None:
        """Counts and logs a request. Nothing that a client made up becomes a label."""
        request, record = exchange.request, exchange.record
        method = request.method
        if method and method not in KNOWN_METHODS:
            method = "other" if request.id else "notification"
        era = request.dialect.era.value
        self.metrics.request(method or "none", era, record.carriage, record.outcome, seconds)
        self.log.info(
            "request",
            request_id=request.sender.request_id,
            trace_id=request.sender.trace_id,
            call_id=record.call_id,
            method=request.method[:_MAX_SHOWN],
            tool=record.tool[:_MAX_SHOWN],
            era=era,
            carriage=record.carriage,
            status=record.status,
            outcome=record.outcome,
            session_id=exchange.arrival.text(b"mcp-session-id")[:_MAX_SESSION_SHOWN],
            client=client[0] if client else "",
            duration_ms=round(seconds * 1000, 3),
        )


def _with_headers(exchange: Exchange, send: Send) -> Send:
    """Adds the request's own headers to its answer, and notes how it was answered."""
    record = exchange.record
    renamed = exchange.arrival.accept.renamed

    async def sending(event: Event) -> None:
        if event["type"] == "http.response.start":
            record.status = event["status"]
            headers = event["headers"]
            if record.status == 401:
                exchange.headers += challenges(exchange.arrival.each(b"authorization"))
            if renamed:
                headers = [(name, renamed.get(value, value)) for name, value in headers]
            event["headers"] = [*headers, *exchange.headers]
        await send(event)

    return sending


def _reply(exchange: Exchange, frame: Frame) -> Reply:
    headers = [(name.lower().encode(), value.encode()) for name, value in frame.headers.items()]
    return Reply(frame.status, frame.body, headers, exchange.unread, closing=frame.outcome == "BODY_TOO_LARGE")
