"""The demo's endpoints over real sockets: what they answer, and what they say to bad input."""

import asyncio
import json
import socket
import struct
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import uvicorn

from examples import demo_tools


@asynccontextmanager
async def running_app() -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(demo_tools.app, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 10)
        listener.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client():
    timeout = aiohttp.ClientTimeout(total=20)
    async with running_app() as url, aiohttp.ClientSession(url, timeout=timeout) as session:
        yield session


async def post(client: aiohttp.ClientSession, path: str, body: object) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.post(path, data=data) as response:
        return response.status, await response.read()


async def frames(client: aiohttp.ClientSession, path: str, body: object) -> list[dict[str, Any]]:
    status, answer = await post(client, path, body)
    assert status == 200
    return [json.loads(line) for line in answer.decode().splitlines() if line]


async def test_text_stats_answers_what_the_agent_builder_contract_shows(client):
    status, answer = await post(client, "/text_stats", {"text": "안녕하세요"})
    assert (status, answer) == (200, b'{"characters":5}')


async def test_text_stats_counts_composed_syllables(client):
    _, answer = await post(client, "/text_stats", {"text": unicodedata.normalize("NFD", "안녕하세요")})
    assert json.loads(answer) == {"characters": 5}


async def test_text_stats_details(client):
    _, answer = await post(client, "/text_stats", {"text": "나루 naru\n둘째 줄", "details": True})
    assert json.loads(answer) == {
        "characters": 12,
        "characters_without_spaces": 9,
        "hangul_syllables": 5,
        "words": 4,
        "lines": 2,
        "bytes": 22,
    }


@pytest.mark.parametrize(
    "body", [b'{"id":9007199254740993,"x":1.0,"y":1.50e2,"a":{"b":[null,"\\u0000"]}}', b'{ "b" : 1,\n"a":2 }', b"{}"]
)
async def test_echo_answers_with_the_bytes_that_came(client, body):
    assert await post(client, "/echo", body) == (200, body)


async def test_echo_of_nothing_is_an_empty_object(client):
    assert await post(client, "/echo", b"") == (200, b"{}")


async def test_kr_holidays_of_a_month(client):
    async with client.get("/kr_holidays", params={"year": "2026", "month": "10"}) as response:
        answer = await response.json()
    assert answer == {
        "year": 2026,
        "count": 3,
        "holidays": [
            {"date": "2026-10-03", "weekday": "토", "name": "개천절"},
            {"date": "2026-10-05", "weekday": "월", "name": "개천절 대체 휴일"},
            {"date": "2026-10-09", "weekday": "금", "name": "한글날"},
        ],
    }


async def test_kr_holidays_in_english_takes_a_year_as_a_float(client):
    async with client.get("/kr_holidays", params={"year": "2026.0", "month": "3", "language": "en"}) as response:
        answer = await response.json()
    assert answer["holidays"][0]["weekday"] == "Sun"
    assert answer["holidays"][0]["name"].isascii()


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({}, "year"),
        ({"year": "1900"}, "1948"),
        ({"year": "2101"}, "2100"),
        ({"year": "soon"}, "$.year"),
        ({"year": "2026", "month": "13"}, "12"),
        ({"year": "2026", "language": "fr"}, "$.language"),
        ({"year": "2026", "moon": "1"}, "moon"),
    ],
)
async def test_kr_holidays_names_what_is_wrong(client, query, word):
    async with client.get("/kr_holidays", params=query) as response:
        assert response.status == 422
        assert word in (await response.json())["error"]


CSV = "이름,나이,키,생일,회원\n영희,20,160.5,2006-01-02,true\n철수,31,170,1995-12-30,false\n민수,,,,\n"


async def test_csv_profile_tells_types_and_progress(client):
    *progress, last = await frames(client, "/csv_profile", {"csv": CSV})
    assert [frame["progress"] for frame in progress] == [2, 3, 4]
    assert {frame["total"] for frame in progress} == {4}
    assert last["result"] == {
        "rows": 3,
        "ragged_rows": 0,
        "columns": [
            {"name": "이름", "type": "text", "empty": 0, "distinct": 3, "min": "민수", "max": "철수"},
            {"name": "나이", "type": "integer", "empty": 1, "distinct": 2, "min": 20, "max": 31, "mean": 25.5},
            {"name": "키", "type": "number", "empty": 1, "distinct": 2, "min": 160.5, "max": 170.0, "mean": 165.25},
            {
                "name": "생일",
                "type": "date",
                "empty": 1,
                "distinct": 2,
                "min": "1995-12-30",
                "max": "2006-01-02",
            },
            {"name": "회원", "type": "boolean", "empty": 1, "distinct": 2, "min": "false", "max": "true"},
        ],
    }


async def test_csv_profile_reports_about_twenty_times(client):
    text = "n\n" + "".join(f"{number}\n" for number in range(2000))
    *progress, last = await frames(client, "/csv_profile", {"csv": text})
    assert len(progress) == 20
    assert sorted({frame["progress"] for frame in progress}) == [frame["progress"] for frame in progress]
    assert last["result"]["rows"] == 2000


async def test_csv_profile_without_header_counts_ragged_rows(client):
    *_, last = await frames(client, "/csv_profile", {"csv": "1;2\n3\n\n4;5;6", "delimiter": ";", "header": False})
    assert (last["result"]["rows"], last["result"]["ragged_rows"]) == (3, 2)
    assert [column["name"] for column in last["result"]["columns"]] == ["column1", "column2"]


async def test_csv_profile_of_a_header_alone(client):
    *_, last = await frames(client, "/csv_profile", {"csv": "a,b"})
    assert last["result"]["rows"] == 0
    assert [column["type"] for column in last["result"]["columns"]] == ["empty", "empty"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('a,b\n1,"2', "line 2: unexpected end of data"),
        ('a,b\n"1"x,2', "line 2:"),
        ("x" * 140_000, "line 1: field larger than field limit"),
        ("," * 1001, "line 1: more than 1000 columns"),
    ],
)
async def test_csv_profile_ends_its_stream_with_the_error(client, text, words):
    *_, last = await frames(client, "/csv_profile", {"csv": text})
    assert words in last["error"]["message"]


async def test_slow_report_streams_its_steps_then_the_report(client):
    async with client.post("/slow_report", json={"seconds": 0.2, "steps": 4.0}) as response:
        assert response.content_type == "text/event-stream"
        events = (await response.text()).split("\n\n")
    *progress, last = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert [(frame["progress"], frame["total"]) for frame in progress] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert last["result"]["sections"] == ["1장", "2장", "3장", "4장"]


async def test_slow_report_sends_each_step_when_it_is_done(client):
    async with client.post("/slow_report", json={"seconds": 600, "steps": 1000}) as response:
        first = await asyncio.wait_for(response.content.readline(), 10)
    assert json.loads(first.removeprefix(b"data: "))["progress"] == 1


async def test_qr_code_is_a_png_of_the_size_asked_for(client):
    sides = []
    for scale in (1, 4):
        async with client.post("/qr_code", json={"text": "https://naru.example/한글", "scale": scale}) as response:
            assert response.content_type == "image/png"
            image = await response.read()
        assert image.startswith(b"\x89PNG\r\n\x1a\n")
        sides.append(struct.unpack(">II", image[16:24]))
    assert sides[1] == (4 * sides[0][0], 4 * sides[0][1])


async def test_qr_code_refuses_what_does_not_fit(client):
    status, answer = await post(client, "/qr_code", {"text": "가" * 2000})
    assert status == 422
    assert "does not fit" in json.loads(answer)["error"]


POSTED = ["/text_stats", "/csv_profile", "/slow_report", "/qr_code"]


@pytest.mark.parametrize("path", [*POSTED, "/echo"])
@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"text":"\xff"}', b'{"a":' + b"[" * 100_000])
async def test_what_is_not_json_is_a_400(client, path, body):
    status, answer = await post(client, path, body)
    # The shape may be wrong before the text is.
    assert status == 400 or (status == 422 and path != "/echo" and b"unknown field" in answer)
    assert json.loads(answer)["error"]


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize(("body", "word"), [(b"[]", "Expected"), (b"1", "Expected"), (b'{"surprise":1}', "surprise")])
async def test_another_shape_is_a_422(client, path, body, word):
    status, answer = await post(client, path, body)
    assert status == 422
    assert word in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/slow_report", {"seconds": 601}),
        ("/slow_report", {"seconds": -1}),
        ("/slow_report", {"steps": 0}),
        ("/slow_report", {"steps": 2.5}),
        ("/qr_code", {"text": ""}),
        ("/qr_code", {"text": "x", "scale": 21}),
        ("/qr_code", {"text": "x", "error_correction": "Z"}),
        ("/csv_profile", {"csv": "  \n "}),
        ("/csv_profile", {"csv": "a", "delimiter": "ab"}),
        ("/text_stats", {}),
        ("/text_stats", {"text": 1}),
        ("/csv_profile", {"csv": ["a"]}),
        ("/slow_report", {"seconds": "1"}),
    ],
)
async def test_values_out_of_range_are_a_422_that_names_the_member(client, path, body):
    status, answer = await post(client, path, body)
    assert status == 422
    assert "`" in json.loads(answer)["error"]


async def test_a_body_above_the_limit_is_a_413(client):
    status, answer = await post(client, "/echo", b'{"a":"' + b"x" * demo_tools.MAX_BODY_BYTES + b'"}')
    assert status == 413
    assert str(demo_tools.MAX_BODY_BYTES) in json.loads(answer)["error"]


async def test_other_paths_and_methods_answer_in_json(client):
    async with client.get("/nothing") as response:
        assert (response.status, await response.json()) == (404, {"error": "Not Found"})
    async with client.get("/echo") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
