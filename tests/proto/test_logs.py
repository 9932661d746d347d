"""Both services log in one form: one JSON object a line."""

import asyncio
import json
import logging
import os
from datetime import datetime, timedelta

import pytest
import structlog

from naru import logs


@pytest.fixture
def lines():
    """Logs into a pipe; returns a function that reads the records written so far."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    logs.configure("registry", "info").drain()  # what earlier tests have left
    logs.configure("registry", "info", descriptor=writer, quiet=["noisy.library"])
    yield lambda: [json.loads(line) for line in raw(reader).splitlines()]
    os.close(reader)
    os.close(writer)
    structlog.reset_defaults()
    logging.basicConfig(force=True)


def raw(reader: int) -> bytes:
    try:
        return os.read(reader, 1 << 16)
    except BlockingIOError:
        return b""


def test_a_record_is_one_line_of_json(lines):
    structlog.get_logger().info("사건", text="두\n줄", count=1, missing=None)
    (record,) = lines()
    assert list(record)[:4] == ["time", "level", "service", "event"]
    time = record.pop("time")
    assert time.endswith("Z")
    assert datetime.fromisoformat(time).utcoffset() == timedelta(0)
    assert record == {
        "level": "info", "service": "registry", "event": "사건", "text": "두\n줄", "count": 1, "missing": None,
    }  # fmt: skip


def test_the_level_is_kept(lines):
    log = structlog.get_logger()
    log.debug("unheard")
    log.warning("heard")
    assert [record["event"] for record in lines()] == ["heard"]


def test_values_that_are_not_json_are_shown_as_text(lines):
    structlog.get_logger().info("odd", value=ValueError("x"), lone="\ud800")
    structlog.get_logger().info("odd", value=ValueError("x"))
    first, second = lines()
    assert (first["value"], first["lone"], second["value"]) == ("x", "\ud800", "x")
    assert datetime.fromisoformat(first["time"]).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "control", ["\x7f", "\x9b", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028", "\x1b", "\x00", "\n"]
)
def test_no_control_character_reaches_a_terminal_raw(control):
    reader, writer = os.pipe()
    logs.configure("registry", "info", descriptor=writer)
    structlog.get_logger().info("odd", text=f"가{control}나")
    line = os.read(reader, 1 << 16)
    os.close(reader)
    os.close(writer)
    structlog.reset_defaults()
    logging.basicConfig(force=True)
    assert control not in line.decode().rstrip("\n")
    assert json.loads(line)["text"] == f"가{control}나"


def test_an_exception_is_shown_with_its_traceback(lines):
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().error("failed", exc_info=True)
    structlog.get_logger().error("failed", exc_info=KeyError("lost"))
    first, second = lines()
    assert "test_logs.py" in first["exception"]
    assert first["exception"].endswith("ValueError: invalid literal for int() with base 10: 'broken'")
    assert "KeyError: 'lost'" in second["exception"]


def test_libraries_are_heard_in_the_same_form(lines):
    logging.getLogger("some.library").info("unheard")
    logging.getLogger("some.library").warning("heard %s", "it")
    (record,) = lines()
    assert (record["event"], record["logger"], record["level"]) == ("heard it", "some.library", "warning")
    assert record["service"] == "registry"


def test_noisy_libraries_are_heard_from_errors_on(lines):
    logging.getLogger("noisy.library").warning("Invalid HTTP request received.")
    logging.getLogger("noisy.library").error("heard")
    assert [record["event"] for record in lines()] == ["heard"]


def test_a_sink_that_is_gone_does_not_stop_the_service():
    reader, writer = os.pipe()
    os.close(reader)
    lost: list[int] = []
    sink = logs.LineSink(writer)
    sink.on_lost = lost.append
    sink.info(b"lost")
    os.close(writer)
    assert lost == [1]


def test_a_record_longer_than_the_pipe_is_written_whole(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        logs.LineSink(file.fileno()).info(b"x" * 300_000)
    assert (tmp_path / "log").read_bytes() == b"x" * 300_000 + b"\n"


class TestGathering:
    async def test_a_line_waits_for_others_but_not_for_long(self, tmp_path):
        with (tmp_path / "log").open("wb") as file:
            sink = logs.LineSink(file.fileno())
            sink.info(b"one")
            sink.info(b"two")
            assert (tmp_path / "log").read_bytes() == b""
            async with asyncio.timeout(2):
                while (tmp_path / "log").read_bytes() != b"one\ntwo\n":
                    await asyncio.sleep(0)

    async def test_what_waits_can_be_drained(self, tmp_path):
        with (tmp_path / "log").open("wb") as file:
            sink = logs.LineSink(file.fileno())
            sink.info(b"last words")
            sink.drain()
            assert (tmp_path / "log").read_bytes() == b"last words\n"
