"""Tests what `naru call` makes of an answer: shown, saved, and never taken for more than it is."""

import base64

import pytest

from naru_cli.results import CallResult
from tests.support.naru_command import image_block, text_block


def test_an_image_is_saved(naru, tmp_path):
    file = tmp_path / "code.png"
    said = naru("call", "qr_code", "--arg", "text=나루", "--output", str(file))
    assert said.code == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert f"[image/png, {file.stat().st_size} bytes]" in said.err
    block = naru("call", "qr_code", "--arg", "text=나루", "--json").json["content"][0]
    assert base64.b64decode(block["data"]) == file.read_bytes()


def test_an_answer_of_text_is_saved_as_it_came(naru, tmp_path):
    file = tmp_path / "answer.json"
    said = naru("call", "echo", "--args", '{"b": 1.0, "a": 9007199254740993}', "--output", str(file))
    assert (said.code, said.out) == (0, "")
    assert file.read_text() == '{"b": 1.0, "a": 9007199254740993}'
    assert f"saved in {file}" in said.err


def test_an_answer_of_several_parts_is_saved_whole(answering, tmp_path):
    (tmp_path / "code.2.png").write_bytes(b"mine")
    blocks = [image_block(b"one"), text_block("beside them"), image_block(b"two"), image_block(b"three")]
    said = answering({"content": blocks}, "--output", str(tmp_path / "code.png"))
    assert (said.code, said.out) == (0, "beside them\n")
    saved = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert saved == {"code.png": b"one", "code.2.png": b"mine", "code.3.png": b"two", "code.4.png": b"three"}


def test_an_empty_answer_is_an_empty_file(answering, tmp_path):
    file = tmp_path / "answer"
    assert answering({"content": []}, "--output", str(file)).code == 0
    assert file.read_bytes() == b""


def test_a_failure_is_shown_and_replaces_no_file(answering, tmp_path):
    file = tmp_path / "answer"
    file.write_text("of an earlier call")
    said = answering({}, "--output", str(file), path="/no.such")
    assert (said.code, said.out) == (6, "")
    assert "Not Found" in said.err
    assert "TOOL_HTTP_ERROR" in said.err
    assert "naru record" in said.err
    assert file.read_text() == "of an earlier call"


def test_the_bytes_of_a_failure_are_saved_too(answering, tmp_path):
    result = {"isError": True, "content": [text_block("as drawn"), image_block(b"why")]}
    said = answering(result, "--output", str(tmp_path / "answer"))
    assert (said.code, said.out, "as drawn" in said.err) == (6, "", True)
    assert (tmp_path / "answer").read_bytes() == b"why"


@pytest.mark.parametrize("name", ["no/such/directory/file", "."])
def test_nothing_is_called_for_a_file_that_cannot_be_written(naru, tmp_path, name):
    said = naru("call", "echo", "--output", str(tmp_path / name), NARU_URL="http://127.0.0.1:1/mcp")
    assert (said.code, "--output: " in said.err) == (2, True)


def test_an_answer_that_cannot_be_saved_after_all_is_shown(answering, naru):
    said = naru("call", "echo", "--args", '{"a":1}', "--output", "/dev/full")
    assert (said.code, said.json["structuredContent"]) == (1, {"a": 1})
    assert "cannot write /dev/full: No space left" in said.err
    said = answering({"isError": True, "content": [image_block(b"x")]}, "--output", "/dev/full")
    assert (said.code, said.json["isError"]) == (6, True)


def test_bytes_that_are_not_base64_are_shown_as_they_came(answering, tmp_path):
    block = {"type": "image", "mimeType": "image/png", "data": "a"}
    said = answering({"content": [block]}, "--output", str(tmp_path / "answer"))
    assert said.code != 0
    assert block["data"] in said.out or "TOOL_RESPONSE_INVALID" in said.err


OURS = {"reason": "PERMISSION_DENIED", "error_code": "E1403", "safe_to_retry": False, "next_action": "x"}


@pytest.mark.parametrize("key", ["evil/error", "xdata.kr/error", "XDATA.KR/error", "error", "a.xdata.kr/error"])
def test_what_a_tool_says_is_never_taken_for_naru_s_own_advice(answering, key):
    said = answering({"isError": True, "content": [text_block("no")], "_meta": {key: OURS}})
    assert (said.code, "PERMISSION_DENIED" in said.err) == (6, False)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"reason": "PERMISSION_DENIED"},
        OURS | {"error_code": "E14"},
        OURS | {"reason": "NO_SUCH_REASON"},
        OURS | {"safe_to_retry": "no"},
    ],
)
def test_only_what_has_the_shape_of_a_failure_is_one(value):
    assert CallResult(is_error=True, meta={"xdata.kr/error": OURS}).failure("xdata.kr") == OURS
    assert CallResult(is_error=True, meta={"xdata.kr/error": value}).failure("xdata.kr") == {}
    assert CallResult(is_error=False, meta={"xdata.kr/error": OURS}).failure("xdata.kr") == {}


def test_the_gateway_s_own_prefix_is_a_setting(naru):
    assert naru("call", "text_stats", NARU_META_PREFIX="xdata.kr").code == 7
    # Of another gateway's prefix nothing is believed: all that is known is that the tool failed.
    assert naru("call", "text_stats", NARU_META_PREFIX="example.com").code == 6
