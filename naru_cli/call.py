"""Talks to the gateway: an MCP client of revision 2025-11-25, for one request at a time."""

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from naru_cli.access import Access
from naru_cli.failures import EXITS_BY_REASON, CliError, Exit, with_facts

PROTOCOL_VERSION = "2025-11-25"
CONNECT_SECONDS = 10.0
# For everything but tools/call, which may take as long as the tool may.
REQUEST_SECONDS = 30.0
CALL_ID = "X-Naru-Call-Id"
NOT_TELLING = frozenset(
    ["reason", "error_code", "safe_to_retry", "next_action", "tool", "call_id", "trace_id", "violations"]
)
MEBIBYTE = 1 << 20
MAX_ANSWER = 64 * MEBIBYTE


class Progress(msgspec.Struct):
    progress: float = 0
    total: float | None = None
    message: str = ""


class RpcError(msgspec.Struct):
    code: int
    message: str
    data: dict[str, Any] = {}


class Message(msgspec.Struct):
    """Holds a JSON-RPC message of the gateway. `result` is left as it came: digits and the order of keys survive."""

    method: str = ""
    params: Progress = msgspec.field(default_factory=Progress)
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    error: RpcError | None = None


class Reply(NamedTuple):
    """Holds a result, as JSON text and as it came. `call_id` is empty for what was not a call.

    `failure` is what Naru knows of a failure, where that comes beside the result; None where the result holds it.
    """

    result: bytes
    call_id: str
    failure: Mapping[str, Any] | None = None


Report = Callable[[Progress], None]


@dataclass
class Course:
    """Holds what is known of a call whose result has not come; the id as soon as it was admitted."""

    call_id: str = ""

    def failure(self, message: str, code: Exit) -> CliError:
        """Says that the result isn't waited for any more, and where to find out what became of the call."""
        known = f"`naru record {self.call_id}` shows what becomes of it"
        unknown = "it has no id yet, so that it was probably not admitted"
        facts = {"call_id": self.call_id} if self.call_id else {}
        message = f"{message}; the call may still run: {known if self.call_id else unknown}"
        return CliError(message, code, facts=facts)


def basic(credential: str) -> str:
    return "Basic " + base64.b64encode(credential.encode()).decode()


def cause(error: BaseException) -> str:
    """Returns the error in few words: aiohttp's own text repeats the address and its TLS settings."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def envelope(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params)


@dataclass(frozen=True)
class Gateway:
    """Speaks to one gateway. `call_seconds` limits tools/call; None leaves it to the tool's own limit.

    Each method raises CliError.
    """

    access: Access
    language: str = ""
    call_seconds: float | None = None

    async def request(self, method: str, params: bytes = b"{}") -> bytes:
        """Returns the `result` of a method other than tools/call, as JSON text."""
        headers = {"Accept": "application/json, text/event-stream"}
        return (await self.exchange(envelope(method, params), headers, REQUEST_SECONDS)).result

    async def call_tool(
        self, name: str, arguments: bytes, lane: str = "", report: Report | None = None, course: Course | None = None
    ) -> Reply:
        """Calls a tool over SSE; the result is a CallToolResult. `course` gets what is known before that."""
        headers = {"Accept": "text/event-stream"}
        if lane:
            headers["X-MCP-Env-Scope"] = lane
        params = b'{"name":%b,"arguments":%b,"_meta":{"progressToken":1}}' % (msgspec.json.encode(name), arguments)
        course = course or Course()
        return await self.exchange(envelope("tools/call", params), headers, self.call_seconds, report, course)

    async def exchange(
        self,
        body: bytes,
        headers: Mapping[str, str],
        seconds: float | None,
        report: Report | None = None,
        course: Course | None = None,
    ) -> Reply:
        access = self.access
        try:
            async with (
                self.session(seconds) as client,
                client.post(access.url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                if course is not None:
                    course.call_id = response.headers.get(CALL_ID, "")
                return await last_result(access, response, report)
        except aiohttp.InvalidURL as error:
            raise CliError(f"{access.url_from}: {access.url} is not a URL", Exit.USAGE) from error
        except (TimeoutError, aiohttp.ClientError) as error:
            raise self.lost(error, seconds, course) from error

    def lost(self, error: TimeoutError | aiohttp.ClientError, seconds: float | None, course: Course | None) -> CliError:
        """Says what it means that no result came."""
        where = f"{self.access.url} ({self.access.url_from})"
        if isinstance(error, TimeoutError):
            message = f"no answer from {where} within {seconds or CONNECT_SECONDS:g} seconds"
        elif course is None or not course.call_id:
            message = f"the gateway at {where} is out of reach: {cause(error)}"
        else:
            message = f"the connection to {where} was lost: {cause(error)}"
        never_sent = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
        if course is None or never_sent:
            return CliError(message, Exit.UNREACHABLE)
        return course.failure(message, Exit.UNREACHABLE)

    def session(self, seconds: float | None) -> aiohttp.ClientSession:
        headers = {
            "Authorization": basic(self.access.require_credential()),
            "Content-Type": "application/json",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
        }
        if self.language:
            headers["Accept-Language"] = self.language
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        return aiohttp.ClientSession(headers=headers, timeout=limits)


async def last_result(access: Access, response: aiohttp.ClientResponse, report: Report | None) -> Reply:
    read = events if response.content_type == "text/event-stream" else whole
    async for text in read(response.content):
        message = decode(access, response, text)
        if message.error is not None:
            raise rpc_failure(access, response, message.error)
        if message.method == "notifications/progress":
            if report is not None:
                report(message.params)
        elif bytes(message.result):
            return Reply(bytes(message.result), response.headers.get(CALL_ID, ""))
    raise CliError(f"{access.url} answered HTTP {response.status} without a result", Exit.UNREACHABLE)


def decode(access: Access, response: aiohttp.ClientResponse, text: bytes) -> Message:
    try:
        return msgspec.json.decode(text, type=Message)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"{access.url} answered HTTP {response.status} with something other than JSON-RPC"
        raise CliError(f"{what}: is {access.url_from} the gateway's?", Exit.UNREACHABLE) from error


def rpc_failure(access: Access, response: aiohttp.ClientResponse, error: RpcError) -> CliError:
    reason = str(error.data.get("reason", ""))
    code = EXITS_BY_REASON.get(reason, Exit.FAILURE)
    message = with_facts(error.message, telling(error.data)) + remedy(access, reason, error.data)
    if response.status in (401, 403) and code is Exit.FAILURE:
        code = Exit.REFUSED
    if reason == "UNAUTHENTICATED":
        message = f"{message} ({access.credential_from})"
    facts = {"code": error.code, "call_id": response.headers.get(CALL_ID, ""), **error.data}
    return CliError(message, code, reason, {name: value for name, value in facts.items() if value != ""})


def telling(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that people need: neither what every failure has, nor what is shown in another way."""
    return {
        name: value
        for name, value in data.items()
        if name not in NOT_TELLING and "/" not in name and not isinstance(value, dict) and not has_objects(value)
    }


def has_objects(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict | list) for item in value)


def remedy(access: Access, reason: str, data: Mapping[str, Any]) -> str:
    """Returns the command or the setting that helps, where the CLI knows better than a sentence for every client."""
    tool = data.get("tool", "TOOL")
    if reason == "TOOL_VERSION_AMBIGUOUS":
        versions = data.get("active_versions") or ["VERSION"]
        return f" `naru tool activate {tool} {versions[0]}` leaves that one active"
    if reason == "TOOL_NOT_ACTIVE":
        return f"; `naru tool show {tool}` lists its versions, `naru tool activate {tool} VERSION` makes one active"
    if reason == "TOOL_NOT_FOUND":
        return "; `naru tool list` shows which there are"
    if reason == "PATH_NOT_FOUND":
        path = urlsplit(access.url).path or "/"
        return f" The path of {access.url} ({access.url_from}) is {path}; the gateway's is /mcp or in GATEWAY_MCP_PATHS"
    return ""


async def whole(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    buffer = bytearray()
    async for chunk in content.iter_any():
        buffer += chunk
        check_size(buffer)
    yield bytes(buffer)


async def events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yields the data of each server-sent event. `content.readline` would refuse lines above 64 KiB."""
    data: list[bytes] = []
    async for line in lines(content):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield b"\n".join(data)
            data = []


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    buffer = bytearray()
    async for chunk in content.iter_any():
        searched = len(buffer)
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            yield bytes(buffer[:end]).removesuffix(b"\r")
            del buffer[: end + 1]
            searched = 0
        check_size(buffer)


def check_size(buffer: bytearray) -> None:
    if len(buffer) > MAX_ANSWER:
        raise CliError(f"the answer is larger than {MAX_ANSWER // MEBIBYTE} MiB")
