"""Tests `naru calls list`, `naru record` and `naru call --version`: what became of calls, and versions on trial."""

import json
import re
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from naru_cli.calls import time_of
from naru_cli.failures import CliError
from tests.support.naru_command import manifest, switched


def listed(naru, *options: str, **variables: str) -> list[dict[str, Any]]:
    said = naru("calls", "list", "--json", *options, **variables)
    assert said.code == 0, said
    found: list[dict[str, Any]] = said.json
    return found


@pytest.fixture
def made(naru, account):
    """Makes an account that made a call that succeeded and one that did not."""
    client_id, credential = account
    assert naru("call", "text_stats", "--arg", "text=a", NARU_CREDENTIALS=credential).code == 0
    switched(naru, "refused.port", "1")
    assert naru("call", "refused.port", NARU_CREDENTIALS=credential).code == 6
    return client_id


def test_calls_are_listed_newest_first(naru, made):
    calls = listed(naru, "--account", made)
    assert [(call["tool"], call["state"]) for call in calls] == [
        ("refused.port", "FAILED"),
        ("text_stats", "SUCCEEDED"),
    ]
    assert calls[0]["create_time"] >= calls[1]["create_time"]
    assert calls[0]["reason"] == "TOOL_UNREACHABLE"
    table = naru("calls", "list", "--account", made).out
    assert "TOOL_UNREACHABLE" in table
    assert str(calls[1]["call_id"]) in table


def test_a_record_says_how_long_the_call_ran_and_what_went_wrong(naru, made):
    failed, succeeded = listed(naru, "--account", made)
    for call in (failed, succeeded):
        duration = call["duration_ms"]
        assert isinstance(duration, float)
        assert 0 < duration < 60_000
    assert failed["detail"]
    assert (failed["http_status"], succeeded["http_status"]) == (None, 200)
    shown = naru("record", str(failed["call_id"])).out
    assert str(failed["detail"]) in shown
    assert naru("record", str(succeeded["call_id"]), "--json").json == succeeded


@pytest.mark.parametrize(
    ("options", "tools"),
    [
        (["--tool", "text_stats"], ["text_stats"]),
        (["--outcome", "failed"], ["refused.port"]),
        (["--outcome", "SUCCEEDED"], ["text_stats"]),
        (["--reason", "tool_unreachable"], ["refused.port"]),
        (["--reason", "TOOL_TIMED_OUT"], []),
        (["--since", "1h"], ["refused.port", "text_stats"]),
        (["--until", "1h"], []),
        (["--since", "2099-01-01"], []),
        (["--limit", "1"], ["refused.port"]),
    ],
)
def test_calls_are_filtered(naru, made, options, tools):
    assert [call["tool"] for call in listed(naru, "--account", made, *options)] == tools


def test_it_is_said_that_there_are_more_calls(naru, made):
    said = naru("calls", "list", "--account", made, "--limit", "1")
    assert "more calls than these 1" in said.err
    assert naru("calls", "list", "--account", made, "--limit", "2").err == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--outcome", "lost"], "--outcome lost: want one of RUNNING, SUCCEEDED"),
        (["--reason", "TOOL"], "--reason TOOL: want one of "),
        (["--since", "yesterday"], "--since yesterday: want 30m, 2h"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_a_filter_that_is_none_is_named(naru, options, words):
    said = naru("calls", "list", *options)
    assert (said.code, words in said.err) == (2, True), said


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-12-01", "2026-12-01T00:00:00Z"),
        ("2026-12-01T09:00", "2026-12-01T09:00:00Z"),
        ("2026-12-01T09:00:00.5+09:00", "2026-12-01T00:00:00.500Z"),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text, time):
    expected = Timestamp()
    expected.FromJsonString(time)
    assert time_of("--since", text) == expected


def test_a_time_beyond_all_times_is_refused():
    with pytest.raises(CliError):
        time_of("--since", "999999d")


@pytest.fixture
def two_versions(naru, run):
    """Makes a tool whose version 1 echoes, and whose version 2, inactive, counts characters."""
    demo = next(line.split()[1] for line in run.text.splitlines() if line.startswith("  demo"))
    if naru("tool", "show", "two.versions").code == 3:
        for version, path, kind in (("1.0", "echo", "string"), ("2.0", "text_stats", "integer")):
            source = json.loads(manifest("two.versions", version, f"{demo}/{path}"))
            source["tools"][0]["inputSchema"] = {"type": "object", "properties": {"text": {}, "n": {"type": kind}}}
            source["tools"][0]["endpoint"]["production"]["method"] = "POST"
            assert naru("tool", "apply", "-f", "-", stdin=json.dumps(source)).code == 0
        assert naru("tool", "activate", "two.versions", "1.0").code == 0
    return "two.versions"


def test_an_inactive_version_is_tried_by_the_admin_and_recorded_as_a_trial(naru, account, two_versions):
    client_id, credential = account
    tried = naru("call", two_versions, "--version", "2.0", "--arg", "text=나루", NARU_CREDENTIALS=credential)
    assert (tried.code, tried.out) == (0, '{"characters":2}\n'), tried
    assert naru("call", two_versions, "--arg", "text=나루", NARU_CREDENTIALS=credential).out == '{"text":"나루"}\n'
    asked, trial = listed(naru, "--account", client_id)
    assert (asked["version"], asked["trial"]) == ("1.0", False)
    assert (trial["version"], trial["trial"]) == ("2.0", True)
    assert "2.0 (trial)" in naru("calls", "list", "--account", client_id).out
    assert naru("tool", "show", two_versions, "--json").json["active_versions"] == ["1.0"]


def test_a_trial_takes_the_types_of_its_own_version_and_streams_progress(naru, two_versions):
    # The endpoint refuses members that it does not know: the error shows what it got.
    said = naru("call", two_versions, "--version", "2.0", "--arg", "n=1")
    assert said.code == 6
    assert "TOOL_HTTP_ERROR" in said.err
    assert re.search(r"\(call \S+: `naru record`", said.err)
    version = naru("tool", "show", "slow_report", "--json").json["active_versions"][0]
    slow = naru("call", "slow_report", "--version", version, "--args", '{"seconds":0.1,"steps":2}', "--json")
    assert slow.json["structuredContent"]["sections"] == ["1장", "2장"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["two.versions", "--version", "9"], 3, "9"),
        (["no.such", "--version", "1"], 3, "no.such"),
        (["two.versions", "--version", "2.0", "--args", '{"n":"x"}'], 7, "n"),
        (["two.versions", "--version", "2.0", "--lane", "moon"], 7, "moon"),
        (["two.versions", "--version", "2.0", "--lane", "real_test"], 7, "real_test"),
        (["refused.port", "--version", "1"], 6, "no connection"),
    ],
)
def test_a_trial_that_fails_has_the_exit_code_of_a_call(naru, two_versions, made, arguments, code, words):
    said = naru("call", *arguments)
    assert (said.code, words in said.err) == (code, True), said


def test_a_trial_needs_both_the_admin_s_token_and_a_credential(naru, two_versions):
    arguments = ["call", two_versions, "--version", "2.0", "--args", "{}"]
    said = naru(*arguments, NARU_ADMIN_TOKEN="wrong-wrong-wrong")
    assert (said.code, "admin token" in said.err) == (4, True)
    said = naru(*arguments, NARU_CREDENTIALS="nrci_0000000000000000000AA:nrcs_wrong")
    assert said.code == 4


def test_a_trial_that_takes_too_long_ends_and_names_the_call(naru):
    version = naru("tool", "show", "slow_report", "--json").json["active_versions"][0]
    slow = ["call", "slow_report", "--version", version, "--args", '{"seconds":30}', "--timeout", "0.5"]
    said = naru(*slow)
    # Either the registry says first that the time is over, or the command does.
    assert said.code in (5, 6)
    (call_id,) = re.findall(r"`naru record (\w+)`|call id (\w+)", said.err)
    assert naru("record", "".join(call_id), "--json").json["tool"] == "slow_report"
