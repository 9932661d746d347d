"""Tests `naru call`: arguments, progress, failures and their exit codes."""

import json
import os
import pty
import subprocess
import sys

import pytest

from naru_cli.failures import with_facts
from tests.support.demo_run import environment
from tests.support.naru_command import manifest, read_all, switched, text_block


def test_arguments_take_the_types_of_the_schema(naru):
    said = naru("call", "slow_report", "--arg", "seconds=0.01", "--arg", "steps=2", "--json")
    assert said.json["structuredContent"]["sections"] == ["1장", "2장"]
    assert (
        naru("call", "text_stats", "--arg", "text=123", "--arg", "details=true", "--json").json["structuredContent"][
            "bytes"
        ]
        == 3
    )
    assert (
        naru("call", "kr_holidays", "-a", "year=2026", "-a", "month=5", "--json").json["structuredContent"]["count"]
        == 4
    )


def test_exact_arguments_arrive_and_return_digit_for_digit(naru):
    exact = '{"b":9007199254740993,"a":1.0,"c":[1e2,null,"1"]}'
    assert naru("call", "echo", "--args", exact).out == exact + "\n"
    said = naru("call", "echo", "--arg", "b:=9007199254740993", "--arg", "a:=1.0", "--arg", "c=x=1")
    assert said.out == '{"b":9007199254740993,"a":1.0,"c":"x=1"}\n'


def test_an_error_of_the_tool_is_code_6_with_the_call_to_look_up(naru):
    # Longer than the tool's schema can tell.
    said = naru("call", "qr_code", "--arg", "text=" + "가" * 2000)
    assert said.code == 6
    assert said.out == ""
    call_id = said.err.rpartition("(call ")[2].partition(":")[0]
    record = naru("record", call_id, "--json").json
    assert (record["tool"], record["state"], record["reason"]) == ("qr_code", "TOOL_ERROR", "TOOL_HTTP_ERROR")
    assert record["settle_time"] >= record["create_time"]
    assert "TOOL_ERROR" in naru("record", call_id).out
    as_json = naru("call", "qr_code", "--arg", "text=" + "가" * 2000, "--json")
    assert (as_json.code, as_json.json["isError"]) == (6, True)


def test_bad_arguments_are_told_in_the_terminal_s_language(naru):
    korean = naru("call", "text_stats", LC_ALL="ko_KR.UTF-8")
    english = naru("call", "text_stats", LC_ALL="en_US.UTF-8")
    assert (korean.code, english.code) == (7, 7)
    assert english.err.isascii()
    assert naru("call", "text_stats", LC_ALL="C.UTF-8").err == english.err
    assert not korean.err.isascii()


@pytest.mark.parametrize(
    ("url", "headers", "detail", "remedy"),
    [
        ("http://10.255.255.1/x", {}, "address not allowed", "REGISTRY_ENDPOINT_NETWORKS"),
        ("http://127.0.0.1:1/x", {}, "no connection", "nothing answers at the endpoint's url"),
        ("http://127.0.0.1:1/x", {"X-Key": "${secret:lost}"}, "secret not available", "REGISTRY_SECRETS_DIR"),
    ],
)
def test_it_is_told_once_why_a_tool_could_not_be_asked(naru, url, headers, detail, remedy):
    name = detail.replace(" ", ".")
    tool = json.loads(manifest(name, "1"))["tools"][0] | {"active": True}
    tool["endpoint"] = {"production": {"url": url, "headers": headers}}
    assert naru("tool", "apply", "-f", "-", stdin=json.dumps({"tools": [tool]})).code == 0
    said = naru("call", name)
    assert said.code == 6
    assert said.err.count(f"({detail})") == 1
    assert "TOOL_UNREACHABLE" in said.err
    assert remedy in said.err


def test_the_setting_that_helps_is_named_in_a_korean_terminal_too(naru):
    switched(naru, "korean.port", "1")
    said = naru("call", "korean.port", LC_ALL="ko_KR.UTF-8")
    assert (said.code, "TOOL_UNREACHABLE" in said.err) == (6, True)
    assert "nothing answers at the endpoint's url" in said.err


def test_what_cannot_be_called_names_the_command_that_helps(naru):
    switched(naru, "two.active", "1.0", "2.0")
    said = naru("call", "two.active")
    assert (said.code, "`naru tool activate two.active " in said.err) == (1, True)
    naru("tool", "deactivate", "two.active", "1.0")
    naru("tool", "deactivate", "two.active", "2.0")
    said = naru("call", "two.active")
    assert (said.code, "`naru tool activate two.active VERSION`" in said.err) == (3, True)


def test_lanes_and_plans_have_their_exit_codes(naru, account):
    switched(naru, "one.lane", "1")
    assert naru("call", "one.lane", "--lane", "real_test").code == 7
    tool = json.loads(manifest("for.pro", "1"))["tools"][0] | {"access": {"plans": ["pro"]}, "active": True}
    assert naru("tool", "apply", "-f", "-", stdin=json.dumps({"tools": [tool]})).code == 0
    said = naru("call", "for.pro", NARU_CREDENTIALS=account[1])
    assert (said.code, "PERMISSION_DENIED" in said.err) == (4, True)


def test_facts_are_not_repeated():
    facts = {"detail": "not allowed", "plan": "x", "plans": ["lite", "pro"], "seconds": 3.0, "version": "1"}
    assert with_facts("no plan x", facts) == "no plan x (not allowed, plans lite, pro, seconds 3, version 1)"
    assert with_facts("no x of lite and pro in 3 s: not allowed (1.0)", facts).endswith("(1.0) (version 1)")
    assert with_facts("no x of lite and pro in 3 s: not allowed. 1.", facts).endswith("1.")


def test_errors_are_json_too(naru):
    error = json.loads(naru("call", "no.such", "--json").err)["error"]
    assert (error["reason"], error["exit_code"]) == ("TOOL_NOT_FOUND", 3)
    error = json.loads(naru("tool", "show", "no.such", "--json").err)["error"]
    assert (error["reason"], error["tool"], error["exit_code"]) == ("TOOL_NOT_FOUND", "no.such", 3)


def test_progress_is_a_bar_at_a_terminal(run):
    """Runs a process with a terminal of its own: nothing else can show it."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "naru_cli.app", "call", "slow_report", "--arg", "seconds=1", "--json"]
    variables = environment({"TERM": "xterm", "COLUMNS": "100"})
    with subprocess.Popen(command, cwd=run.directory, env=variables, stdout=subprocess.PIPE, stderr=end) as process:
        os.close(end)
        drawn = read_all(terminal)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "5장 가운데 3장을 썼습니다" in drawn
    assert "3/5" in drawn
    assert json.loads(out)["structuredContent"]["title"] == "느린 보고서"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_a_terminal_would_obey_does_not_reach_it(run, answering, options):
    obeyed = "\x1b\x07\x7f\x9b\u061c\u200e\u200f\u202a\u202e\u2066\u2069"
    result = {"content": [text_block(f"first{obeyed}last")]}
    assert obeyed in answering(result).out  # into a pipe everything goes as it came
    command = [sys.executable, "-m", "naru_cli.app", "call", "echo.mcp", "--args", json.dumps(result)]
    terminal, end = pty.openpty()
    variables = environment({"TERM": "dumb", "COLUMNS": "200"})
    with subprocess.Popen([*command, *options], cwd=run.directory, env=variables, stdout=end, stderr=end) as call:
        os.close(end)
        drawn = read_all(terminal)
        assert call.wait(30) == 0
    assert not set(drawn) & set(obeyed)
    assert json.loads(drawn) == result | {"isError": False} if options else "first" in drawn
