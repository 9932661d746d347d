"""Does what ASGI leaves to its applications: header look-ups, whole replies, bodies with a limit."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers: TypeAlias = Mapping[bytes, bytes]
HeaderLines: TypeAlias = Sequence[tuple[bytes, bytes]]

# The key in the scope of the connection. The connection hears how many bytes of an answer cannot be written yet
# (`waiting`), and that an answer ends when its client goes (`expect_departure`).
CONNECTION: Final = "naru.connection"
# So much more of a refused body is read, and for so long, so that the client gets to see the refusal.
_LINGER_BYTES = 16 << 20
_LINGER_SECONDS = 2.0


class ClientGone(Exception):  # noqa: N818  nothing went wrong here
    """The client left before its request was whole."""


class BodyTooLarge(Exception):  # noqa: N818  the client's mistake, reported as a failure by the caller
    """The body exceeds the limit."""


def gathered(scope: Scope) -> Headers:
    """Returns the headers by name (lower case); repeated lines are joined with `, ` as RFC 9110 says."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def text(headers: Headers, name: bytes) -> str:
    """Returns a header's value, empty where there is none. What is said twice alike counts once."""
    value = headers.get(name, b"").decode("latin-1").strip(" \t")
    return _once(value) if "," in value else value


def each(scope: Scope, headers: Headers, name: bytes) -> Sequence[str]:
    """Returns the values of a header that may come once only: more than one where the lines differ.

    Proxies join lines with a comma, so that one line may hold the same value twice as well.
    """
    value = headers.get(name)
    if value is None:
        return ()
    only = text(headers, name)
    if b"," not in value or "," not in only:
        return (only,)
    return tuple(dict.fromkeys(line.strip(b" \t").decode("latin-1") for key, line in scope["headers"] if key == name))


def _once(value: str) -> str:
    parts = {part.strip(" \t") for part in value.split(",")}
    return parts.pop() if len(parts) == 1 else value


async def whole_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """Reads the request's body. Raises BodyTooLarge as soon as it is known to exceed the limit, and ClientGone.

    A body whose Content-Length says so is not asked for at all.
    """
    if int(headers.get(b"content-length", b"0")) > limit:
        raise BodyTooLarge
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            raise ClientGone
        more = event.get("more_body", False)
        chunk = event.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response, as an ASGI application.

    `unread` says that the request's body has not been read yet; `closing` ends the connection.
    """

    status: int
    body: bytes = b""
    headers: HeaderLines = ()
    unread: bool = False
    closing: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [*self.headers]
        # A client that waits for leave to send its body does not send it now: there is nothing to be read.
        waits = self.unread and any(name == b"expect" for name, _ in scope["headers"])
        if self.body:
            headers.append((b"content-type", b"application/json"))
        if self.status != 204:
            headers.append((b"content-length", b"%d" % len(self.body)))
        if self.closing or waits:
            headers.append((b"connection", b"close"))
        lingering = self.unread and not waits
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": lingering})
        if lingering:
            await _linger(receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _linger(receive: Receive) -> None:
    """Reads on for a moment: closing a socket with unread data resets it, and takes the reply down with it."""
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            while left > 0:
                event = await receive()
                if not event.get("more_body", False):
                    return
                left -= len(event["body"])
    except TimeoutError:
        return


async def silence(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Answers nothing: there is nobody to hear it."""
