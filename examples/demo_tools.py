"""Serves the demo's tools: plain HTTP, as any team would write it. Nothing here knows MCP or gRPC.

Six tools, none of which needs the network. Bad input is answered with 4xx and `{"error": "<what is wrong>"}`.
Streamed answers are frames: `{"progress": n, "total"?: n, "message"?: "…"}`, then `{"result": …}` or `{"error": {…}}`.

    DEMO_BIND=127.0.0.1:9000 python -m examples.demo_tools
"""

import asyncio
import csv
import io
import math
import os
import re
import sys
import unicodedata
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

import holidays
import msgspec
import segno
import uvicorn
from msgspec import Meta
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

# A client's body may be 4 MiB; escapes of another JSON writer can make it longer.
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_COLUMNS = 1000

FIRST_YEAR = holidays.country_holidays("KR").start_year
LAST_YEAR = holidays.country_holidays("KR").end_year
WEEKDAYS = {"ko": "월화수목금토일", "en": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")}
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
LANGUAGES = {"ko": "ko", "en": "en_US"}

NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)
INTEGER = re.compile(r"-?[0-9]{1,15}", re.ASCII)
DATE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", re.ASCII)


class Input(msgspec.Struct, forbid_unknown_fields=True):
    """Holds what a tool takes; unknown members are refused, so that a typo is not taken for a default."""


InputT = TypeVar("InputT", bound=Input)

# JSON Schema takes 5.0 for an integer, msgspec does not; hence whole numbers are floats here.


class TextStats(Input):
    text: Annotated[str, Meta(max_length=1_000_000)]
    details: bool = False


class CsvProfile(Input):
    csv: str
    delimiter: Literal[",", ";", "\t", "|"] = ","
    header: bool = True


class SlowReport(Input):
    seconds: Annotated[float, Meta(ge=0, le=600)] = 3.0
    steps: Annotated[float, Meta(ge=1, le=1000, multiple_of=1)] = 5


class QrCode(Input):
    text: Annotated[str, Meta(min_length=1, max_length=2000)]
    scale: Annotated[float, Meta(ge=1, le=20, multiple_of=1)] = 8
    error_correction: Literal["L", "M", "Q", "H"] = "M"


class KrHolidays(Input):
    year: Annotated[int, Meta(ge=FIRST_YEAR, le=LAST_YEAR)]
    month: Annotated[int, Meta(ge=1, le=12)] | None = None
    language: Literal["ko", "en"] = "ko"


async def read_body(request: Request) -> bytes:
    """Returns the body, never more than MAX_BODY_BYTES of it; raises HTTPException 413."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def read_input(request: Request, shape: type[InputT]) -> InputT:
    """Returns the JSON body as `shape`; raises HTTPException 400 (not JSON), 413 or 422 (JSON of another shape)."""
    body = await read_body(request)
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise HTTPException(422, str(error)) from error
    except NOT_JSON as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error


def ndjson(frame: object) -> bytes:
    return msgspec.json.encode(frame) + b"\n"


def server_sent_event(frame: object) -> bytes:
    return b"data: " + msgspec.json.encode(frame) + b"\n\n"


async def echo(request: Request) -> Response:
    """Answers with the very bytes of the body, so that a caller sees what became of its arguments on the way."""
    body = await read_body(request) or b"{}"
    try:
        msgspec.json.decode(body.decode(), type=dict[str, msgspec.Raw])
    except NOT_JSON as error:
        raise HTTPException(400, f"the body is not a JSON object: {error}") from error
    return Response(body, media_type="application/json")


def is_hangul(character: str) -> bool:
    return "가" <= character <= "힣"


async def text_stats(request: Request) -> Response:
    """Counts Unicode code points of the text in NFC, in which a Hangul syllable is one."""
    asked = await read_input(request, TextStats)
    text = unicodedata.normalize("NFC", asked.text)
    stats = {"characters": len(text)}
    if asked.details:
        stats |= {
            "characters_without_spaces": sum(not character.isspace() for character in text),
            "hangul_syllables": sum(map(is_hangul, text)),
            "words": len(text.split()),
            "lines": len(text.splitlines()),
            "bytes": len(asked.text.encode()),
        }
    return JSONResponse(stats)


async def kr_holidays(request: Request) -> Response:
    """Lists the public holidays of South Korea, from the query `year`, `month`? and `language`?."""
    try:
        asked = msgspec.convert(dict(request.query_params), KrHolidays, strict=False)
    except msgspec.ValidationError as error:
        raise HTTPException(422, str(error)) from error
    calendar = holidays.country_holidays("KR", years=asked.year, language=LANGUAGES[asked.language])
    weekdays = WEEKDAYS[asked.language]
    days = [
        {"date": day.isoformat(), "weekday": weekdays[day.weekday()], "name": name}
        for day, name in sorted(calendar.items())
        if asked.month in (None, day.month)
    ]
    return JSONResponse({"year": asked.year, "count": len(days), "holidays": days})


@dataclass(slots=True)
class Column:
    """Holds what has been seen of one column; the lists and sets are bounded by the body's size."""

    name: str
    empty: int = 0
    values: set[str] = field(default_factory=set)
    numbers: list[float] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def add(self, value: str) -> None:
        value = value.strip()
        if not value:
            self.empty += 1
            return
        self.values.add(value)
        kind = kind_of(value)
        self.kinds.add(kind)
        if kind in ("integer", "number"):
            self.numbers.append(float(value))

    def profile(self) -> dict[str, object]:
        kind = self.kind()
        profile: dict[str, object] = {"name": self.name, "type": kind, "empty": self.empty}
        profile["distinct"] = len(self.values)
        if kind in ("integer", "number"):
            exact = int if kind == "integer" else float
            profile |= {"min": exact(min(self.numbers)), "max": exact(max(self.numbers))}
            profile["mean"] = round(math.fsum(self.numbers) / len(self.numbers), 6)
        elif self.values:
            profile |= {"min": min(self.values)[:200], "max": max(self.values)[:200]}
        return profile

    def kind(self) -> str:
        if not self.kinds:
            return "empty"
        if self.kinds <= {"integer", "number"}:
            return "number" if "number" in self.kinds else "integer"
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "text"


def kind_of(value: str) -> str:
    if INTEGER.fullmatch(value):
        return "integer"
    if NUMBER.fullmatch(value):
        return "number"
    if DATE.fullmatch(value):
        return "date"
    return "boolean" if value.lower() in ("true", "false") else "text"


class CsvError(Exception):
    """Says that a text is not CSV; `str(error)` names the line."""


def csv_rows(asked: CsvProfile) -> Iterator[tuple[int, list[str]]]:
    """Yields each row that is not blank with the number of its last line; raises CsvError."""
    reader = csv.reader(io.StringIO(asked.csv, newline=""), delimiter=asked.delimiter, strict=True)
    try:
        for row in reader:
            if len(row) > MAX_COLUMNS:
                raise CsvError(f"line {reader.line_num}: more than {MAX_COLUMNS} columns")
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise CsvError(f"line {reader.line_num}: {error}") from error


async def profile_frames(asked: CsvProfile) -> AsyncIterator[bytes]:
    """Progress in lines, about twenty times, then the profile. Gives way to other requests at each step."""
    total = sum(1 for _ in io.StringIO(asked.csv, newline=""))
    step = max(1, total // 20)
    reported = 0
    rows = ragged = 0
    columns: list[Column] = []
    try:
        for line, row in csv_rows(asked):
            if not columns:
                names = row if asked.header else [f"column{number + 1}" for number in range(len(row))]
                columns = [Column(name.strip()) for name in names]
                if asked.header:
                    continue
            rows += 1
            ragged += len(row) != len(columns)
            for column, value in zip(columns, row, strict=False):
                column.add(value)
            if line - reported >= step:
                reported = line
                yield ndjson({"progress": line, "total": total, "message": f"{rows:,}행을 읽었습니다"})
                await asyncio.sleep(0)
    except CsvError as error:
        yield ndjson({"error": {"message": str(error)}})
        return
    profiles = [column.profile() for column in columns]
    yield ndjson({"result": {"rows": rows, "ragged_rows": ragged, "columns": profiles}})


async def csv_profile(request: Request) -> Response:
    asked = await read_input(request, CsvProfile)
    if not asked.csv.strip():
        raise HTTPException(422, "csv is empty - at `$.csv`")
    return StreamingResponse(profile_frames(asked), media_type="application/x-ndjson")


async def report_frames(asked: SlowReport) -> AsyncIterator[bytes]:
    sections = []
    steps = int(asked.steps)
    for step in range(1, steps + 1):
        await asyncio.sleep(asked.seconds / steps)
        sections.append(f"{step}장")
        message = f"{steps}장 가운데 {step}장을 썼습니다"
        yield server_sent_event({"progress": step, "total": steps, "message": message})
    yield server_sent_event({"result": {"title": "느린 보고서", "seconds": asked.seconds, "sections": sections}})


async def slow_report(request: Request) -> Response:
    """Takes as long as it is asked to; stops at once when its caller goes away."""
    asked = await read_input(request, SlowReport)
    return StreamingResponse(report_frames(asked), media_type="text/event-stream")


def draw_qr_code(asked: QrCode) -> bytes:
    """Returns a PNG; raises segno.DataOverflowError when the text does not fit."""
    code = segno.make_qr(asked.text, error=asked.error_correction, encoding="utf-8", boost_error=False)
    image = io.BytesIO()
    code.save(image, kind="png", scale=int(asked.scale))
    return image.getvalue()


async def qr_code(request: Request) -> Response:
    asked = await read_input(request, QrCode)
    try:
        image = await run_in_threadpool(draw_qr_code, asked)
    except segno.DataOverflowError as error:
        detail = f"the text does not fit with error correction {asked.error_correction} - at `$.text`"
        raise HTTPException(422, detail) from error
    return Response(image, media_type="image/png")


async def healthz(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def explain(_: Request, error: Exception) -> Response:
    """Gives every refusal the same shape."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


app = Starlette(
    routes=[
        Route("/healthz", healthz),
        Route("/echo", echo, methods=["POST"]),
        Route("/text_stats", text_stats, methods=["POST"]),
        Route("/kr_holidays", kr_holidays),
        Route("/csv_profile", csv_profile, methods=["POST"]),
        Route("/slow_report", slow_report, methods=["POST"]),
        Route("/qr_code", qr_code, methods=["POST"]),
    ],
    exception_handlers={HTTPException: explain},
)


def main() -> None:
    host, _, port = os.environ.get("DEMO_BIND", "127.0.0.1:9000").rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        sys.exit("DEMO_BIND: want HOST:PORT, such as 127.0.0.1:9000")
    uvicorn.run(
        app, host=host.strip("[]"), port=int(port), access_log=False, log_level="info", timeout_graceful_shutdown=5
    )


if __name__ == "__main__":
    main()
