"""Tests `naru tool`: manifests, versions, and the exit codes of whatever fails."""

import json
import re

import pytest

from ops.registration import MANIFEST
from tests.support.naru_command import manifest


def test_tools_are_listed_without_any_setting(naru):
    listed = naru("tool", "list")
    assert listed.code == 0
    lines = {words[0]: words for line in listed.out.splitlines() if (words := line.split())}
    assert {"csv_profile", "echo", "kr_holidays", "qr_code", "slow_report", "text_stats"} <= set(lines)
    assert lines["text_stats"][1].startswith("1.0.0")


def test_tools_are_listed_as_json(naru):
    echo = next(tool for tool in naru("tool", "list", "--json").json if tool["name"] == "echo")
    assert len(echo["active_versions"]) == 1
    assert echo["version_count"] == 1
    assert echo["create_time"].endswith("Z")


def test_a_definition_is_shown_digit_for_digit(naru, tmp_path):
    file = tmp_path / "tools.yaml"
    file.write_text(
        "tools:\n- name: digits\n  version: 1.10\n  description: x\n"
        "  inputSchema: {type: object, properties: {n: {const: 9007199254740993, multipleOf: 1.0}}}\n"
        "  endpoint: {production: {url: '${URL}/x'}}\n"
    )
    applied = naru("tool", "apply", "-f", str(file), "--set", "URL=http://tools.example", "--json")
    assert applied.json == {
        "dry_run": False,
        "changes": [{"tool": "digits", "version": "1.10", "action": "CREATED"}],
        "warnings": [],
    }
    shown = naru("tool", "show", "digits", "--version", "1.10").out
    assert '"const": 9007199254740993' in shown
    assert '"multipleOf": 1.0' in shown
    assert "http://tools.example/x" in shown
    assert json.loads(shown)["active"] is False
    assert naru("tool", "show", "digits", "1.10").out == shown


def test_the_arguments_of_a_tool_are_shown(naru):
    lines = {words[0]: words for line in naru("tool", "show", "text_stats").out.splitlines() if (words := line.split())}
    assert lines["text"][1:3] == ["string", "required"]
    assert lines["details"][1] == "boolean"
    assert "required" not in lines["details"]


def test_a_variable_that_fills_nothing_is_told(naru):
    source = "tools:\n- {name: unfilled, version: 1, description: '${FOO}', inputSchema: {type: object}, "
    source += "endpoint: {production: {url: 'http://tools.example/'}}}\n"
    said = naru("tool", "apply", "-f", "-", "--set", "FOO=1", stdin=source)
    assert said.code == 0
    assert "--set FOO fills in nothing" in said.err


def test_the_version_of_the_command_is_shown(naru):
    assert re.fullmatch(r"naru [0-9.]+\n", naru("--version").out)


def test_a_dry_run_changes_nothing(naru):
    said = naru("tool", "apply", "-f", "-", "--dry-run", stdin=manifest("dry", "1", active=True))
    assert (said.code, "created and activated" in said.out) == (0, True)
    assert naru("tool", "show", "dry").code == 3


def test_versions_are_activated_and_deactivated(naru):
    for version in ("1.0", "2.0"):
        assert naru("tool", "apply", "-f", "-", stdin=manifest("switch", version)).code == 0
    assert naru("tool", "activate", "switch", "1.0").out == "switch: active: 1.0\n"
    assert naru("tool", "activate", "switch", "2.0", "--json").json["active_versions"] == ["2.0"]
    both = naru("tool", "activate", "switch", "1.0", "--keep-others-active", "--json").json
    assert sorted(both["active_versions"]) == ["1.0", "2.0"]
    assert naru("tool", "deactivate", "switch", "2.0").out == "switch: active: 1.0\n"
    assert naru("tool", "deactivate", "switch", "1.0").out == "switch: active: none\n"
    versions = naru("tool", "show", "switch", "--json").json["versions"]
    assert [version["version"] for version in versions] == ["2.0", "1.0"]


def test_deleting_asks_first(naru):
    naru("tool", "apply", "-f", "-", stdin=manifest("short.lived", "1"))
    asked = naru("tool", "delete", "short.lived")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert naru("tool", "delete", "short.lived", "--yes").out == "short.lived: deleted\n"
    assert naru("tool", "show", "short.lived").code == 3


def test_every_fault_of_a_manifest_is_told_with_its_line_and_nothing_changes(naru, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        "tools:\n- name: good.one\n  version: 1\n  description: x\n  inputSchema: {type: object}\n"
        "  endpoint: {production: {url: http://tools.example/}}\n"
        "- name: bad.one\n  version: one\n  description: x\n  inputSchema: {type: array}\n"
        "  endpoint: {production: {url: ftp://tools.example/}}\n"
    )
    said = naru("tool", "apply", "-f", str(file))
    assert said.code == 7
    for line in (8, 10, 11):
        assert f"{file}:{line}:" in said.err
    assert "nothing was changed" in said.err
    assert naru("tool", "show", "good.one").code == 3
    faults = json.loads(naru("tool", "apply", "-f", str(file), "--json").err)["error"]["faults"]
    assert {(fault["tool"], fault["line"]) for fault in faults} >= {("bad.one", 8), ("bad.one", 10), ("bad.one", 11)}


SLIPS = """tools:
- name: slips
  version: 1
  description: x
  inputSchema:
    type: object
    properties: {month: {type: integer, requried: true}}
  endpoint: {production: {url: http://tools.example/, headers: {X-Key: "${secret:nowhere}"}}}
"""


def test_a_slip_is_warned_of_with_its_line_and_refused_when_strict(naru, tmp_path):
    file = tmp_path / "slips.yaml"
    file.write_text(SLIPS)
    refused = naru("tool", "apply", "-f", str(file), "--strict")
    assert refused.code == 7
    assert f"{file}:7:" in refused.err
    assert naru("tool", "show", "slips").code == 3
    said = naru("tool", "apply", "-f", str(file))
    assert (said.code, "created" in said.out) == (0, True)
    assert f"warning: {file}:7:" in said.err
    assert "requried" in said.err
    assert f"warning: {file}:8:" in said.err
    assert "nowhere" in said.err
    shown = naru("tool", "apply", "-f", str(file), "--dry-run", "--json").json["warnings"]
    assert {warning["line"] for warning in shown} == {7, 8}


def test_the_demo_s_own_manifest_has_no_slips(naru):
    said = naru(
        "tool", "apply", "-f", str(MANIFEST), "--set", "DEMO_URL=http://127.0.0.1:9000", "--strict", "--dry-run"
    )
    assert said.code == 0, said


def test_a_file_that_is_no_manifest_is_told_with_its_line(naru, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("tools:\n- name: a\n  name: b\n")
    said = naru("tool", "apply", "-f", str(file))
    assert said.code == 7
    assert f"{file}:3:3: the key 'name' is here a second time" in said.err


def giant(suffix: str, tools: int) -> str:
    """Returns a manifest of so many tools of 5 kB, as JSON or YAML."""
    entries = [json.loads(manifest(f"giant.{number}", "1"))["tools"][0] for number in range(tools)]
    described = [json.dumps(entry | {"description": "x" * 5000}) for entry in entries]
    if suffix == ".json":
        return f'{{"tools":[{",".join(described)}]}}'
    return "tools:\n" + "".join(f"- {entry}\n" for entry in described)


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_manifest_that_is_too_large_is_refused_with_its_size_and_the_limit(naru, tmp_path, suffix):
    file = tmp_path / f"tools{suffix}"
    file.write_text(giant(suffix, 3400))
    said = naru("tool", "apply", "-f", str(file), "--json")
    error = json.loads(said.err)["error"]
    assert (said.code, error["reason"], error["limit_bytes"]) == (7, "MANIFEST_TOO_LARGE", 16 << 20)
    assert error["size_bytes"] > error["limit_bytes"]
    assert f"{error['size_bytes']:,} bytes" in error["message"]
    assert "split it" in error["message"]


def test_a_manifest_of_megabytes_is_applied(naru, tmp_path):
    file = tmp_path / "tools.yaml"
    file.write_text(giant(".yaml", 1000))
    assert naru("tool", "apply", "-f", str(file), "--dry-run").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tool", "apply", "-f", "/no/such/file"], 2, "cannot read /no/such/file: No such file"),
        (["tool", "apply"], 2, "--file"),
        (["tool", "apply", "-f", "-", "--set", "URL"], 2, "NAME=VALUE"),
        (["tool", "show", "no.such"], 3, "no.such"),
        (["tool", "show", "echo", "--version", "9"], 3, "9"),
        (["tool", "activate", "echo", "9"], 3, "9"),
        (["tool", "deactivate", "no.such", "1"], 3, "no.such"),
        (["tool", "delete", "no.such", "--yes"], 3, "no.such"),
        (["account", "show", "nrci_0000000000000000000AA"], 3, "nrci_0000000000000000000AA"),
        (["account", "create", "x", "--plan", "golden"], 7, "golden"),
        (["account", "update", "nrci_0000000000000000000AA"], 2, "--plan"),
        (["usage", "nrci_0000000000000000000AA"], 3, "nrci_0000000000000000000AA"),
        (["usage", "--month", "May"], 7, "month"),
        (["record", "no-such-call"], 3, "no-such-call"),
        (["no-such-command"], 2, "no-such-command"),
        (["call", "echo", "--arg", "x"], 2, "NAME=VALUE"),
        (["call", "echo", "--arg", "x:={"], 2, "not JSON"),
        (["call", "echo", "--args", "[]"], 2, "not a JSON object"),
        (["call", "echo", "--args", "{}", "--arg", "a=b"], 2, "use one"),
        (["call", "echo", "--lane", "moon"], 7, ""),
        (["call", "text_stats"], 7, "ARGUMENTS_INVALID"),
        (["tool", "show", "echo", "1.0.0", "--version", "2.0.0"], 2, "two versions"),
        (["call", "no.such"], 3, "naru tool list"),
    ],
)
def test_failures_have_their_exit_codes(naru, arguments, code, words):
    said = naru(*arguments, stdin="")
    assert said.code == code, said
    assert words in said.err
    assert said.out == ""
