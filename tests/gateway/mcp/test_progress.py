"""gateway/mcp/progress.py: the notification, and its numbers."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.progress import number, progress_message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, b"0"),
        (-0.0, b"0"),
        (3.0, b"3"),
        (3, b"3"),
        (-7.0, b"-7"),
        (0.5, b"0.5"),
        (33.3, b"33.3"),
        (9007199254740992.0, b"9007199254740992"),
        (9999999999999998.0, b"9999999999999998"),
        (1e16, b"1e+16"),
        (1e300, b"1e+300"),
        (9007199254740993, b"9007199254740993"),
        (-(10**300) + 1, b"-" + b"9" * 300),
        (1e-7, b"1e-07"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_their_value_and_show_no_idle_fraction(value):
    text = number(value).decode()
    assert float(json.loads(text)) == value
    assert not text.endswith(".0")


def test_messages():
    assert json.loads(progress_message(b'"p1"', 0.5, 1.0, "반쯤")) == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "p1", "progress": 0.5, "total": 1, "message": "반쯤"},
    }
    assert json.loads(progress_message(b"0", 2.0))["params"] == {"progressToken": 0, "progress": 2}
    assert json.loads(progress_message(b"0", 2.0, 0.0))["params"]["total"] == 0
    assert "total" not in json.loads(progress_message(b"0", 2.0, math.inf))["params"]
    assert "total" not in json.loads(progress_message(b"0", 2.0, math.nan))["params"]
