"""gateway/http/answers.py, on a real ASGI server and real sockets.

What a test waits for is always something that happened (a frame read, an event set); the timeout is only how long a
broken product may hold it up.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from gateway.frame import Frame, Item, Progress
from gateway.http import answers as frames
from gateway.http.accept import Carriage
from gateway.http.answers import Answer, Answers
from gateway.http.stream_answer import one_line
from gateway.mcp.progress import progress_of

PATIENCE = 10.0
# Longer than any test lasts.
NEVER = 60.0
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'
ACCEPTED = Frame(b"", last=False, headers={"X-Naru-Call-Id": "c1"})
LAST = Frame(RESULT)
STREAMS = [Carriage.SSE, Carriage.NDJSON, Carriage.LATE]


def progress(token: bytes, value: float, total: float | None = None, message: str = "") -> Progress:
    return progress_of(token, value, total, message)


KEEP_ALIVE = b": keep-alive\n\n"


def sse(message: bytes) -> bytes:
    return b"event: message\ndata: " + message + b"\n\n"


def ending(error: Exception | None) -> Frame:
    body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"%b"}}' % type(error).__name__.encode()
    return Frame(body, headers={"Retry-After": "3"})


class Calls:
    """Records what became of the messages of an answer, and holds the gates that a test opens for them."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.closed = asyncio.Event()
        self.produced = 0
        self.completed = False

    async def items(self, *before: Item, then: Item = LAST, gated: bool = False) -> AsyncGenerator[Item, None]:
        try:
            for item in before:
                self.produced += 1
                yield item
            if gated:
                self.waiting.set()
                await self.gate.wait()
            self.completed = True
            yield then
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.closed.set()


class Client:
    """One HTTP/1.1 connection, read by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    async def head(self) -> "Client":
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
        return self

    async def chunk(self) -> bytes:
        """Returns what one send wrote, and b"" at the end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def rest(self) -> bytes:
        if "content-length" in self.headers:
            return await self.reader.readexactly(int(self.headers["content-length"]))
        chunks = b""
        while chunk := await self.chunk():
            chunks += chunk
        return chunks

    async def json(self) -> object:
        await self.head()
        assert self.headers["content-type"] == "application/json"
        return json.loads(await self.rest())

    def hang_up(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


class House:
    """A server whose every request is answered by what the test puts there."""

    def __init__(self) -> None:
        self.answers = Answers(stream_after=NEVER, keepalive=NEVER)
        self.make: Callable[[], Answer] = lambda: Answer(
            self.answers, Calls().items(), Carriage.JSON, cancel_on_disconnect=False, ending=ending
        )
        self.done: list[asyncio.Event] = []
        self.clients: list[asyncio.StreamWriter] = []
        self.port = 0
        self.server: Server

    def patience(self, *, stream_after: float = NEVER, keepalive: float = NEVER) -> None:
        self.answers = Answers(stream_after=stream_after, keepalive=keepalive)

    def serve(self, items: AsyncGenerator[Item, None], carriage: Carriage, modern: bool = False) -> None:
        self.make = lambda: Answer(self.answers, items, carriage, cancel_on_disconnect=modern, ending=ending)

    async def app(self, scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        finished = asyncio.Event()
        self.done.append(finished)
        try:
            await self.make()(scope, receive, send)
        finally:
            finished.set()

    async def connect(self, **options) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self.clients.append(writer)
        return Client(reader, writer)

    async def post(self, **options) -> Client:
        client = await self.connect(**options)
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        return client


class Server(uvicorn.Server):
    """Runs until it is told to stop, without looking at the clock ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()

    async def main_loop(self) -> None:
        self.ready.set()
        await self.stop.wait()


@asynccontextmanager
async def running(house: House) -> AsyncIterator[None]:
    listener = socket.create_server(("127.0.0.1", 0))
    house.port = listener.getsockname()[1]
    config = uvicorn.Config(
        house.app,
        interface="asgi3",
        http="httptools",
        lifespan="off",
        log_level="error",
        timeout_graceful_shutdown=1,
    )
    house.server = Server(config)
    task = asyncio.create_task(house.server.serve([listener]))
    await house.server.ready.wait()
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    finally:
        for writer in house.clients:
            writer.close()
        house.server.stop.set()
        await task


@pytest.fixture
async def house():
    house = House()
    async with running(house):
        yield house
        assert house.answers.open == 0


class Line:
    """The ASGI side of a client that takes its time over what holds `held_by`. One at a time may send."""

    def __init__(self, held_by: bytes) -> None:
        self.held_by = held_by
        self.held = asyncio.Event()
        self.free = asyncio.Event()
        self.sent: list[bytes] = []
        self.times: list[float] = []
        self.sending = 0
        self.overlaps = 0
        self.inbox: asyncio.Queue[dict[str, object]] = asyncio.Queue()

    async def send(self, message) -> None:
        self.overlaps += self.sending
        self.sending += 1
        try:
            if self.held_by in message.get("body", b""):
                self.held.set()
                await self.free.wait()
            self.sent.append(message.get("body", b""))
            self.times.append(asyncio.get_running_loop().time())
        finally:
            self.sending -= 1

    def carry(self, answers: Answers, items: AsyncGenerator[Item, None], modern: bool = False) -> asyncio.Task[None]:
        answer = Answer(answers, items, Carriage.SSE, cancel_on_disconnect=modern, ending=ending)
        return asyncio.create_task(answer({}, self.inbox.get, self.send))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what announces itself by no event."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def seen_by_the_server(house: House, connections: int) -> None:
    """Waits until the server knows of so many connections."""
    await until(lambda: len(house.server.server_state.connections) == connections)


# --- JSON -----------------------------------------------------------------------------------------------------------


async def test_json_is_one_object_with_what_the_markers_said(house):
    calls = Calls()
    last = Frame(RESULT, status=418, headers={"Retry-After": "7"})
    house.serve(calls.items(ACCEPTED, progress(b"1", 1.0), then=last), Carriage.JSON)
    client = await house.post()
    assert await client.json() == json.loads(RESULT)
    assert (client.status, client.headers["x-naru-call-id"], client.headers["retry-after"]) == (418, "c1", "7")
    await calls.closed.wait()
    assert not calls.cancelled.is_set()


async def test_one_connection_carries_one_answer_after_the_other(house):
    client = await house.connect()
    for carriage in (Carriage.JSON, Carriage.SSE, Carriage.LATE, Carriage.NDJSON, Carriage.JSON):
        for modern in (False, True):
            house.serve(Calls().items(ACCEPTED), carriage, modern)
            client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            await client.head()
            assert RESULT in await client.rest()


@pytest.mark.parametrize("carriage", [Carriage.JSON, Carriage.LATE])
async def test_a_legacy_answer_that_waits_for_nothing_makes_no_task(house, carriage):
    inside: list[set[asyncio.Task[object]]] = []

    async def items() -> AsyncGenerator[Item, None]:
        await asyncio.sleep(0)
        inside.append(asyncio.all_tasks())
        yield LAST

    outside: list[set[asyncio.Task[object]]] = []

    def make() -> Answer:
        outside.append(asyncio.all_tasks())
        return Answer(house.answers, items(), carriage, cancel_on_disconnect=False, ending=ending)

    house.make = make
    assert await (await house.post()).json() == json.loads(RESULT)
    assert inside == outside


# --- SSE ------------------------------------------------------------------------------------------------------------


async def test_sse_opens_when_the_call_is_accepted(house):
    calls = Calls()
    house.serve(calls.items(ACCEPTED, gated=True), Carriage.SSE)
    client = await (await house.post()).head()
    assert client.status == 200
    assert client.headers["content-type"] == "text/event-stream"
    assert client.headers["cache-control"] == "no-cache, no-transform"
    assert client.headers["x-accel-buffering"] == "no"
    assert client.headers["x-naru-call-id"] == "c1"
    calls.gate.set()
    assert await client.rest() == sse(RESULT)


async def test_sse_has_progress_then_the_result(house):
    calls = Calls()
    house.serve(calls.items(ACCEPTED, progress(b'"t"', 1.0, 2.0, "x"), progress(b'"t"', 2.0, 2.0)), Carriage.SSE)
    events = (await (await (await house.post()).head()).rest()).split(b"\n\n")
    frames_ = [json.loads(event.removeprefix(b"event: message\ndata: ")) for event in events if event]
    assert [frame.get("params") for frame in frames_] == [
        {"progressToken": "t", "progress": 1, "total": 2, "message": "x"},
        {"progressToken": "t", "progress": 2, "total": 2},
        None,
    ]
    assert frames_[-1] == json.loads(RESULT)


async def test_other_messages_are_written_where_they_come(house):
    house.serve(Calls().items(Frame(b'{"a":1}', last=False)), Carriage.LATE)
    assert await (await (await house.post()).head()).rest() == sse(b'{"a":1}') + sse(RESULT)


async def test_a_stream_may_end_without_a_message(house):
    house.serve(Calls().items(ACCEPTED, then=Frame(b"")), Carriage.SSE)
    assert await (await (await house.post()).head()).rest() == b""


@pytest.mark.parametrize("carriage", STREAMS)
async def test_an_error_that_comes_first_is_json_with_its_status(house, carriage):
    error = Frame(b'{"error":{}}', status=401, headers={"WWW-Authenticate": "Bearer"})
    house.serve(Calls().items(then=error), carriage)
    client = await house.post()
    assert await client.json() == {"error": {}}
    assert (client.status, client.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_single_message_is_one_frame(house):
    house.serve(Calls().items(), Carriage.SSE)
    client = await (await house.post()).head()
    assert (client.status, client.headers["content-type"]) == (200, "text/event-stream")
    assert await client.rest() == sse(RESULT)


@pytest.mark.parametrize("modern", [False, True])
async def test_keep_alives_go_on_and_leave_the_read_alone(house, modern):
    house.patience(keepalive=0.02)
    calls = Calls()
    house.serve(calls.items(ACCEPTED, gated=True), Carriage.SSE, modern)
    client = await (await house.post()).head()
    for _ in range(5):
        assert await client.chunk() == KEEP_ALIVE
    calls.gate.set()
    rest = await client.rest()
    assert rest.endswith(sse(RESULT))
    assert rest.replace(KEEP_ALIVE, b"") == sse(RESULT)
    assert calls.completed
    assert not calls.cancelled.is_set()


# --- NDJSON ---------------------------------------------------------------------------------------------------------


async def test_ndjson_is_a_message_a_line(house):
    house.serve(Calls().items(ACCEPTED, progress(b"7", 1.5), then=Frame(b'{"a":\r\n"\xe2\x80\xa8"}')), Carriage.NDJSON)
    client = await (await house.post()).head()
    assert client.headers["content-type"] == "application/x-ndjson"
    assert client.headers["x-naru-call-id"] == "c1"
    lines = (await client.rest()).decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 7, "progress": 1.5}},
        {"a": "\u2028"},
    ]


async def test_ndjson_keeps_alive_with_blank_lines_but_never_before_the_first_frame(house):
    house.patience(keepalive=0.02, stream_after=0.02)
    second = asyncio.Event()

    async def items() -> AsyncGenerator[Item, None]:
        yield ACCEPTED
        await asyncio.sleep(0.2)  # the tool is busy for ten keep-alives
        yield progress(b"1", 1.0)
        await second.wait()
        yield LAST

    house.serve(items(), Carriage.NDJSON)
    client = await (await house.post()).head()
    assert json.loads(await client.chunk())["method"] == "notifications/progress"
    assert await client.chunk() == b"\n"
    assert await client.chunk() == b"\n"
    second.set()
    assert (await client.rest()).replace(b"\n", b"") == RESULT


# --- late commit ----------------------------------------------------------------------------------------------------


async def test_late_commit_is_json_if_the_result_comes_first(house):
    house.serve(Calls().items(ACCEPTED), Carriage.LATE)
    client = await house.post()
    assert await client.json() == json.loads(RESULT)
    assert client.headers["x-naru-call-id"] == "c1"


async def test_late_commit_is_sse_from_the_first_progress(house):
    calls = Calls()
    house.serve(calls.items(ACCEPTED, progress(b"1", 1.0), gated=True), Carriage.LATE)
    client = await (await house.post()).head()
    assert client.headers["content-type"] == "text/event-stream"
    assert client.headers["x-naru-call-id"] == "c1"
    assert b"notifications/progress" in await client.chunk()
    calls.gate.set()
    assert await client.rest() == sse(RESULT)


@pytest.mark.parametrize("modern", [False, True])
async def test_late_commit_is_sse_after_some_silence(house, modern):
    house.patience(stream_after=0.05, keepalive=0.02)
    calls = Calls()
    house.serve(calls.items(gated=True), Carriage.LATE, modern)
    client = await (await house.post()).head()
    assert client.headers["content-type"] == "text/event-stream"
    assert await client.chunk() == KEEP_ALIVE
    assert await client.chunk() == KEEP_ALIVE
    calls.gate.set()
    assert (await client.rest()).replace(KEEP_ALIVE, b"") == sse(RESULT)
    assert not calls.cancelled.is_set()


# --- progress -------------------------------------------------------------------------------------------------------


async def read_progress(client: Client) -> float:
    chunk = await client.chunk()
    value = json.loads(chunk.removeprefix(b"event: message\ndata: "))["params"]["progress"]
    assert isinstance(value, int | float)
    return value


async def test_the_last_progress_is_flushed_before_the_result(house):
    house.serve(Calls().items(*(progress(b"1", float(n)) for n in range(200))), Carriage.LATE)
    events = (await (await (await house.post()).head()).rest()).strip().split(b"\n\n")
    messages = [json.loads(event.removeprefix(b"event: message\ndata: ")) for event in events]
    assert [message["params"]["progress"] for message in messages[:-1]] == [*range(20), 199]
    assert messages[-1] == json.loads(RESULT)


async def test_progress_that_waits_is_sent_in_its_time(house):
    calls = Calls()
    house.serve(calls.items(*(progress(b"1", float(n)) for n in range(30)), gated=True), Carriage.SSE)
    client = await (await house.post()).head()
    assert [await read_progress(client) for _ in range(21)] == [*range(20), 29]
    calls.gate.set()
    assert await client.rest() == sse(RESULT)


async def test_progress_that_does_not_rise_is_dropped_and_counted(house):
    drops: list[None] = []
    house.answers = Answers(stream_after=NEVER, keepalive=NEVER, on_drop=lambda: drops.append(None))
    values = [1.0, 1.0, 0.5, float("nan"), 2.0, 2.0]
    house.serve(Calls().items(*(progress(b"1", value) for value in values)), Carriage.SSE)
    client = await (await house.post()).head()
    assert [await read_progress(client) for _ in range(2)] == [1, 2]
    assert await client.rest() == sse(RESULT)
    assert len(drops) == 4


# --- disconnect -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [Client.hang_up, Client.reset])
@pytest.mark.parametrize("carriage", list(Carriage))
async def test_a_modern_client_that_goes_cancels_at_once(house, carriage, leave):
    calls = Calls()
    house.serve(calls.items(ACCEPTED, gated=True), carriage, modern=True)
    client = await house.post()
    await calls.waiting.wait()
    leave(client)
    await calls.cancelled.wait()
    await house.done[0].wait()
    assert not calls.completed


async def test_a_modern_client_that_goes_in_the_middle_of_progress_cancels(house):
    calls = Calls()
    house.serve(calls.items(ACCEPTED, progress(b"1", 1.0), gated=True), Carriage.SSE, modern=True)
    client = await (await house.post()).head()
    await client.chunk()
    client.hang_up()
    await calls.cancelled.wait()


@pytest.mark.parametrize("carriage", list(Carriage))
async def test_a_legacy_client_that_goes_cancels_nothing(house, carriage):
    house.patience(keepalive=0.01, stream_after=0.01)
    calls = Calls()
    house.serve(calls.items(ACCEPTED, gated=True), carriage)
    client = await house.post()
    await calls.waiting.wait()
    client.hang_up()
    await seen_by_the_server(house, 0)
    await asyncio.sleep(0.05)  # keep-alives into the void harm nobody
    calls.gate.set()
    await house.done[0].wait()
    assert calls.completed
    assert not calls.cancelled.is_set()


async def test_many_that_go_leave_nothing_behind(house):
    gone: list[Calls] = []

    def make() -> Answer:
        gone.append(Calls())
        items = gone[-1].items(ACCEPTED, gated=True)
        return Answer(house.answers, items, Carriage.SSE, cancel_on_disconnect=True, ending=ending)

    before = asyncio.all_tasks()
    house.make = make
    clients = [await (await house.post()).head() for _ in range(50)]
    for client in clients:
        client.reset()
    for calls in gone:
        await calls.closed.wait()
    await seen_by_the_server(house, 0)
    await until(lambda: not asyncio.all_tasks() - before)


async def test_the_rest_of_a_body_is_no_disconnect():
    line, calls = Line(b"never"), Calls()
    line.inbox.put_nowait({"type": "http.request", "body": b"late", "more_body": False})
    task = line.carry(Answers(stream_after=NEVER, keepalive=NEVER), calls.items(gated=True), modern=True)
    async with asyncio.timeout(PATIENCE):
        await calls.waiting.wait()
        await until(line.inbox.empty)
        calls.gate.set()
        await task
    assert line.sent == [b"", sse(RESULT)]


# --- slow readers ---------------------------------------------------------------------------------------------------

BIG = Frame(b'"' + b"x" * 1_000_000 + b'"', last=False)


async def test_who_does_not_read_is_waited_for_and_nobody_else(house):
    calls = Calls()
    house.serve(calls.items(*[BIG] * 64), Carriage.SSE)
    slow = await house.post(limit=2**16)
    await slow.head()
    for _ in range(100):
        house.serve(Calls().items(), Carriage.JSON)
        client = await house.post()
        assert await client.json() == json.loads(RESULT)
        client.hang_up()
    assert calls.produced < 64
    total = 0
    while chunk := await slow.chunk():
        total += len(chunk)
    assert total == 64 * len(sse(BIG.body)) + len(sse(RESULT))
    assert calls.completed


@pytest.mark.parametrize("modern", [False, True])
async def test_who_does_not_read_and_goes_is_let_go(house, modern):
    calls = Calls()
    house.serve(calls.items(*[BIG] * 64), Carriage.SSE, modern)
    slow = await (await house.post(limit=2**16)).head()
    await slow.reader.readexactly(10)
    slow.reset()
    await calls.closed.wait()
    assert calls.completed is not modern


# --- the end of the grace -------------------------------------------------------------------------------------------

FAREWELL = json.loads(ending(None).body)


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("carriage", list(Carriage))
async def test_the_end_of_the_grace_ends_answers_with_their_ending(house, carriage, modern):
    calls = Calls()
    house.serve(calls.items(ACCEPTED, gated=True), carriage, modern)
    client = await house.post()
    await calls.waiting.wait()
    assert house.answers.open == 1
    house.answers.end_all()
    await calls.cancelled.wait()
    await client.head()
    assert ("retry-after" in client.headers) is (carriage is not Carriage.SSE)
    body = (await client.rest()).removeprefix(b"event: message\ndata: ")
    assert json.loads(body) == FAREWELL
    assert not calls.completed


async def test_after_the_grace_answers_end_before_they_begin(house):
    calls = Calls()
    house.answers.end_all()
    house.serve(calls.items(), Carriage.JSON)
    assert await (await house.post()).json() == FAREWELL
    assert not calls.completed


async def test_the_grace_does_not_wait_for_who_does_not_read(house, monkeypatch):
    monkeypatch.setattr(frames, "FAREWELL_SECONDS", 0.05)
    calls = Calls()
    house.serve(calls.items(*[BIG] * 64), Carriage.SSE)
    await (await house.post(limit=2**16)).head()
    house.answers.end_all()
    await house.done[0].wait()
    await calls.closed.wait()
    assert not calls.completed


async def test_a_keep_alive_that_is_stuck_does_not_hold_up_the_end():
    """A helper that waits for the client is dropped, and the last frame is still the ending."""
    line, calls = Line(KEEP_ALIVE), Calls()
    answers = Answers(stream_after=NEVER, keepalive=0.01)
    task = line.carry(answers, calls.items(ACCEPTED, gated=True))
    async with asyncio.timeout(PATIENCE):
        await line.held.wait()
        answers.end_all()
        await task
    assert line.sent == [b"", sse(ending(None).body)]


async def test_the_task_and_its_helper_take_turns():
    first, last = progress(b"1", 1.0), progress(b"1", 2.0)

    async def items() -> AsyncGenerator[Item, None]:
        yield ACCEPTED
        await line.held.wait()
        yield first
        yield last
        yield LAST

    line = Line(KEEP_ALIVE)
    task = line.carry(Answers(stream_after=NEVER, keepalive=0.01), items())
    async with asyncio.timeout(PATIENCE):
        await line.held.wait()
        await asyncio.sleep(0.05)  # the client takes its time
        assert line.sent == [b""]
        line.free.set()
        await task
    assert line.sent == [b"", KEEP_ALIVE, *(sse(each.message()) for each in (first, last)), sse(RESULT)]
    assert line.overlaps == 0


async def test_the_result_waits_for_the_helper():
    line, calls = Line(KEEP_ALIVE), Calls()
    task = line.carry(Answers(stream_after=NEVER, keepalive=0.01), calls.items(ACCEPTED, gated=True))
    async with asyncio.timeout(PATIENCE):
        await line.held.wait()
        calls.gate.set()
        await until(lambda: calls.completed)
        assert line.sent == [b""]
        line.free.set()
        await task
    assert line.sent == [b"", KEEP_ALIVE, sse(RESULT)]
    assert line.overlaps == 0


async def test_keep_alives_break_silence_and_nothing_else():
    async def items() -> AsyncGenerator[Item, None]:
        for value in range(4):
            yield progress(b"1", float(value))
            await asyncio.sleep(0.06)  # the tool works
        await until(lambda: line.sent.count(KEEP_ALIVE) >= 3)
        yield LAST

    line = Line(b"never")
    async with asyncio.timeout(PATIENCE):
        await line.carry(Answers(stream_after=NEVER, keepalive=0.1), items())
    assert sum(b"progress" in body for body in line.sent) == 4
    assert line.sent[-1] == sse(RESULT)
    for index, body in enumerate(line.sent):
        if body == KEEP_ALIVE:
            assert line.times[index] - line.times[index - 1] >= 0.095


@pytest.mark.parametrize("held_by", [b"progress", b"result"])
async def test_nobody_speaks_while_the_task_is_writing(held_by):
    line = Line(held_by)
    task = line.carry(Answers(stream_after=NEVER, keepalive=0.01), Calls().items(ACCEPTED, progress(b"1", 1.0)))
    async with asyncio.timeout(PATIENCE):
        await line.held.wait()
        await asyncio.sleep(0.05)  # the client takes its time
        line.free.set()
        await task
    assert line.sent == [b"", sse(progress(b"1", 1.0).message()), sse(RESULT)]
    assert line.overlaps == 0


@pytest.mark.parametrize("modern", [False, True])
async def test_nothing_is_left_behind_and_nothing_said_after_the_end(modern):
    before = asyncio.all_tasks()
    line = Line(b"never")
    answers = Answers(stream_after=NEVER, keepalive=0.05)
    values = [progress(b"1", float(value)) for value in range(30)]
    async with asyncio.timeout(PATIENCE):
        await line.carry(answers, Calls().items(ACCEPTED, *values), modern)
        assert line.sent[-1] == sse(values[-1].message()) + sse(RESULT)
        said = len(line.sent)
        await until(lambda: asyncio.all_tasks() == before)
        await asyncio.sleep(0.1)  # two keep-alives
    assert len(line.sent) == said


async def test_any_other_cancellation_goes_through():
    calls = Calls()
    answers = Answers(stream_after=NEVER, keepalive=NEVER)
    sent: list[object] = []

    async def send(message) -> None:
        sent.append(message)

    for modern in (False, True):
        answer = Answer(answers, calls.items(gated=True), Carriage.LATE, cancel_on_disconnect=modern, ending=ending)
        task = asyncio.create_task(answer({}, asyncio.Queue[dict[str, object]]().get, send))
        await calls.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (sent, answers.open) == ([], 0)
        calls = Calls()


# --- messages that fail ---------------------------------------------------------------------------------------------


async def failing(*before: Item) -> AsyncGenerator[Item, None]:
    for item in before:
        yield item
    raise ZeroDivisionError


@pytest.mark.parametrize("carriage", [Carriage.JSON, Carriage.LATE])
async def test_what_fails_before_the_first_byte_is_answered_in_json(house, carriage):
    house.serve(failing(ACCEPTED), carriage)
    assert await (await house.post()).json() == json.loads(ending(ZeroDivisionError()).body)


@pytest.mark.parametrize("carriage", STREAMS)
async def test_what_fails_on_a_stream_ends_it_with_a_frame(house, carriage):
    house.serve(failing(ACCEPTED, progress(b"1", 1.0)), carriage)
    lines = (await (await (await house.post()).head()).rest()).strip().split(b"\n")
    assert json.loads(lines[-1].removeprefix(b"data: ")) == json.loads(ending(ZeroDivisionError()).body)


@pytest.mark.parametrize("carriage", list(Carriage))
async def test_messages_without_an_end_are_a_failure(house, carriage):
    async def endless() -> AsyncGenerator[Item, None]:
        yield ACCEPTED

    house.serve(endless(), carriage)
    client = await (await house.post()).head()
    assert b"RuntimeError" in await client.rest()


async def test_a_server_that_tells_of_a_lost_client_by_an_error_cancels_no_legacy_call():
    async def send(message) -> None:
        raise OSError

    for carriage in Carriage:
        calls = Calls()
        answers = Answers(stream_after=NEVER, keepalive=0.01)
        items = calls.items(ACCEPTED, progress(b"1", 1.0))
        await Answer(answers, items, carriage, cancel_on_disconnect=False, ending=ending)({}, None, send)  # type: ignore[arg-type]
        assert calls.completed
        assert not calls.cancelled.is_set()


async def test_items_that_swallow_the_interruption_leave_the_task_usable(house):
    waiting = asyncio.Event()

    async def stubborn() -> AsyncGenerator[Item, None]:
        waiting.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        yield LAST

    cancelling: list[int] = []

    async def carry() -> None:
        answer = Answer(house.answers, stubborn(), Carriage.JSON, cancel_on_disconnect=False, ending=ending)
        await answer({}, None, send)  # type: ignore[arg-type]
        task = asyncio.current_task()
        assert task is not None
        cancelling.append(task.cancelling())
        await asyncio.sleep(0)

    sent: list[object] = []

    async def send(message) -> None:
        sent.append(message)

    task = asyncio.create_task(carry())
    await waiting.wait()
    house.answers.end_all()
    await task
    assert cancelling == [0]
    assert len(sent) == 2


# --- lines ----------------------------------------------------------------------------------------------------------

line_ends = st.text(
    alphabet=st.sampled_from(list('a"\\é가\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029😀')) | st.characters()
)


@given(st.dictionaries(line_ends, line_ends | st.floats(allow_nan=False) | st.lists(line_ends)), st.booleans())
def test_a_message_is_one_line_to_every_reader_and_says_the_same(value, indent):
    message = json.dumps(value, ensure_ascii=False, indent=2 if indent else None).encode("utf-8", "replace")
    line = one_line(message)
    assert len(line.decode().splitlines()) == 1
    assert len(line.splitlines()) == 1
    assert json.loads(line) == json.loads(message)


def test_line_ends_outside_strings_become_spaces():
    assert one_line(b'{\r\n"a":\r1.0}') == b'{  "a": 1.0}'
    assert one_line('{"a":"\u2028\u2029\u0085"}'.encode()) == b'{"a":"\\u2028\\u2029\\u0085"}'
