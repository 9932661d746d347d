"""The `naru` command against a running demo: what it prints and changes, and the exit codes it promises."""

import base64
import errno
import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from naru_cli import app as cli
from naru_cli.failures import with_facts
from naru_cli.results import CallResult
from ops.registration import MANIFEST
from tests.support.demo_run import Run, environment


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with Run(tmp_path_factory.mktemp("cli")) as running:
        yield running


@pytest.fixture
def naru(run, monkeypatch):
    """Runs the command where the demo's `.naru/` is; keyword arguments are environment variables."""
    monkeypatch.chdir(run.directory)
    for name in [name for name in os.environ if name.startswith("NARU_")]:
        monkeypatch.delenv(name)

    def invoke(*arguments: str, stdin: str | None = None, **variables: str) -> Said:
        result = CliRunner().invoke(cli.app, arguments, input=stdin, env={"LC_ALL": "C.UTF-8", **variables})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def account(naru):
    """A new account: its client id and its credential."""
    made = naru("account", "create", "someone", "--json").json
    return made["client_id"], made["credential"]


def manifest(name: str, version: str, url: str = "http://127.0.0.1:1/x", **members: Any) -> str:
    tool = {"name": name, "version": version, "description": "a test", "inputSchema": {"type": "object"}}
    return json.dumps({"tools": [tool | {"endpoint": {"production": {"url": url}}} | members]})


def read_all(terminal: int) -> str:
    """What is drawn at a terminal until its other end is closed."""
    drawn = b""
    try:
        while chunk := os.read(terminal, 4096):
            drawn += chunk
    except OSError:  # Linux's way of saying that it is over
        pass
    os.close(terminal)
    return drawn.decode()


def switched(naru, name: str, *versions: str) -> None:
    """A new tool, with these versions active."""
    for version in versions:
        assert naru("tool", "apply", "-f", "-", stdin=manifest(name, version)).code == 0
        assert naru("tool", "activate", name, version, "--keep-others").code == 0


# Tools


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
    """A manifest of so many tools of 5 kB, as JSON or YAML."""
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


# Accounts


def test_an_account_from_its_making_to_its_suspension(naru, account):
    client_id, credential = account
    call = ["call", "text_stats", "--arg", "text=가나다"]
    assert naru(*call, NARU_CREDENTIALS=credential).out == '{"characters":3}\n'
    assert naru("account", "suspend", client_id, "--json").json["state"] == "suspended"
    assert naru(*call, NARU_CREDENTIALS=credential).code == 4
    assert naru("account", "resume", client_id, "--json").json["state"] == "active"
    assert naru(*call, NARU_CREDENTIALS=credential).code == 0


def test_an_account_is_shown_without_its_secret(naru, account):
    client_id, credential = account
    secret = credential.partition(":")[2]
    shown = naru("account", "show", client_id)
    assert client_id in shown.out
    assert secret[-4:] in shown.out
    assert secret not in shown.out
    listed = naru("account", "list", "--json")
    assert client_id in {item["client_id"] for item in listed.json}
    assert secret not in listed.out
    assert client_id in naru("account", "list").out


def test_the_credential_of_a_new_account_is_printed_once(naru):
    said = naru("account", "create", "shown", "--plan", "lite")
    credential = said.out.rpartition("credential, shown this once: ")[2].strip()
    assert naru("call", "text_stats", "--arg", "text=a", NARU_CREDENTIALS=credential).code == 0


def test_secrets_are_rotated_and_revoked(naru, account, tmp_path):
    client_id, first = account
    file = tmp_path / "credential"
    said = naru("account", "rotate", client_id, "--save", str(file), "--json")
    second = file.read_text().strip()
    assert second.partition(":")[2] not in said.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secrets = said.json["secrets"]
    assert [secret["hint"] for secret in secrets] == [first[-4:], second[-4:]]

    call = ["call", "text_stats", "--arg", "text=a"]
    assert naru(*call, NARU_CREDENTIALS=first).code == 0
    assert naru("account", "revoke", client_id, secrets[0]["id"]).code == 0
    assert naru(*call, NARU_CREDENTIALS=first).code == 4
    assert naru(*call, NARU_CREDENTIALS=str(file)).code == 0
    assert naru("account", "rotate", client_id, "--revoke-others", "--json").json["secrets"][0]["hint"] != second[-4:]
    assert naru(*call, NARU_CREDENTIALS=str(file)).code == 4


def clients(naru) -> list[str]:
    return [account["client_id"] for account in naru("account", "list", "--json").json]


def test_a_credential_is_saved_and_never_overwritten_by_another(naru, tmp_path):
    file = tmp_path / "credential"
    assert naru("account", "create", "first", "--save", str(file)).code == 0
    first, known = file.read_text(), clients(naru)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = naru("account", "create", "second", "--save", str(file))
    assert (said.code, f"{file} exists" in said.err, "--force" in said.err) == (2, True, True)
    assert (file.read_text(), clients(naru)) == (first, known)
    assert naru("account", "create", "third", "--save", str(file), "--force").code == 0
    assert file.read_text() != first
    assert [path.name for path in tmp_path.iterdir()] == ["credential"]


@pytest.mark.parametrize("name", ["no/such/directory/file", "."])
def test_no_account_is_made_for_a_file_that_cannot_be_written(naru, tmp_path, name):
    known = clients(naru)
    said = naru("account", "create", "nobody", "--save", str(tmp_path / name))
    assert (said.code, "--save: " in said.err) == (2, True)
    assert clients(naru) == known


def test_nothing_is_left_of_a_file_whose_account_was_refused(naru, tmp_path):
    assert naru("account", "create", "x", "--plan", "golden", "--save", str(tmp_path / "file")).code == 7
    assert list(tmp_path.iterdir()) == []


def test_a_credential_that_cannot_be_saved_after_all_is_shown(naru, tmp_path, monkeypatch):
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("naru_cli.secret_file.os.write", full)
    said = naru("account", "create", "saved", "--save", str(tmp_path / "file"), "--json")
    assert (said.code, "No space left" in said.err) == (1, True)
    monkeypatch.undo()
    assert said.json["credential"].startswith(said.json["client_id"] + ":nrcs_")
    assert list(tmp_path.iterdir()) == []


def test_ids_are_whole_in_a_narrow_terminal(run, account):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "naru_cli.app", "account", "list"]
    variables = environment({"TERM": "dumb", "COLUMNS": "80"})
    with subprocess.Popen(command, cwd=run.directory, env=variables, stdout=end, stderr=subprocess.STDOUT) as process:
        os.close(end)
        drawn = read_all(terminal)
        assert process.wait(30) == 0
    assert account[0] in drawn
    assert "…" not in drawn
    assert max(map(len, drawn.splitlines())) <= 80


def test_an_account_is_updated(naru, account):
    client_id, _ = account
    updated = naru("account", "update", client_id, "--plan", "pro", "--name", "새 이름", "--json").json
    assert (updated["plan"], updated["display_name"]) == ("pro", "새 이름")


def test_usage_counts_calls_by_day_and_month(naru, account):
    client_id, credential = account
    assert naru("usage", client_id).err == f"{client_id}: no calls\n"
    naru("call", "text_stats", "--arg", "text=a", NARU_CREDENTIALS=credential)
    naru("call", "text_stats", "--arg", "text=a", "--lane", "real_test", NARU_CREDENTIALS=credential)
    counters = naru("usage", client_id, "--json").json["counters"]
    assert sorted((len(item["period"]), item["lane"], item["calls"]) for item in counters) == [
        (7, "production", 1),
        (7, "real_test", 1),
        (10, "production", 1),
        (10, "real_test", 1),
    ]
    assert "production" in naru("usage", client_id).out


# Calls


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


def test_an_image_is_saved(naru, tmp_path):
    file = tmp_path / "code.png"
    said = naru("call", "qr_code", "--arg", "text=나루", "--output", str(file))
    assert said.code == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert f"[image/png, {file.stat().st_size} bytes]" in said.err
    block = naru("call", "qr_code", "--arg", "text=나루", "--json").json["content"][0]
    assert base64.b64decode(block["data"]) == file.read_bytes()


@pytest.fixture
def answering(naru, run):
    """Makes the demo's `echo` a tool that answers with any CallToolResult; `path` leads it elsewhere in the demo."""
    demo = next(line.split()[1] for line in run.text.splitlines() if line.startswith("  demo"))

    def answer(result: Any, *options: str, path: str = "/echo") -> Said:
        if naru("tool", "show", path[1:] + ".mcp").code == 3:
            tool = json.loads(manifest(path[1:] + ".mcp", "1"))["tools"][0] | {"active": True}
            tool["endpoint"] = {"production": {"url": demo + path, "method": "POST", "result": "mcp"}}
            assert naru("tool", "apply", "-f", "-", stdin=json.dumps({"tools": [tool]})).code == 0
        said: Said = naru("call", path[1:] + ".mcp", "--args", json.dumps(result), *options)
        return said

    return answer


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def image_block(data: bytes) -> dict[str, str]:
    return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(data).decode()}


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


def test_times_have_milliseconds(naru, account):
    shown = naru("account", "show", account[0], "--json").json
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["create_time"])


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
    """Only a process with a terminal of its own can show it."""
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


# Settings


def state_file(run: Run, name: str) -> Path:
    return run.directory / ".naru" / name


def addresses(run: Run) -> dict[str, str]:
    found: dict[str, str] = json.loads(state_file(run, "run.json").read_text())
    return found


def test_settings_of_the_environment_are_used(naru, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_run = addresses(run)
    registry = {"NARU_REGISTRY": of_run["registry"]}
    token = state_file(run, "admin.token")
    assert naru("tool", "list", **registry, NARU_ADMIN_TOKEN=token.read_text().strip()).code == 0
    registry["NARU_REGISTRY"] = "dns:///" + of_run["registry"]
    assert naru("tool", "list", **registry, NARU_ADMIN_TOKEN_FILE=str(token)).code == 0
    credential = state_file(run, "demo.credentials")
    call = ["call", "text_stats", "--arg", "text=a"]
    assert naru(*call, NARU_URL=of_run["url"], NARU_CREDENTIALS=str(credential)).code == 0
    assert naru(*call, NARU_URL=of_run["url"], NARU_CREDENTIALS=credential.read_text().strip()).code == 0


def test_a_variable_that_nothing_reads_is_named_with_the_nearest_one(naru):
    said = naru("tool", "list", NARU_ADMIN_TOKN="x", NARU_SOMETHING="y")
    assert said.code == 0
    assert "nothing reads NARU_ADMIN_TOKN: is NARU_ADMIN_TOKEN meant?" in said.err
    assert "nothing reads NARU_SOMETHING" in said.err
    assert naru("tool", "list", NARU_URL="http://127.0.0.1:1/mcp", NARU_ENDPOINT_CA_FILE="/x").err == ""


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NARU_ADMIN_TOKEN": "x", "NARU_ADMIN_TOKEN_FILE": "/x"}, "NARU_ADMIN_TOKEN: is set, and so is"),
        ({"NARU_ADMIN_TOKEN": "토큰"}, "NARU_ADMIN_TOKEN: holds something other than visible ASCII"),
        ({"NARU_ADMIN_TOKEN_FILE": "/no/such/file"}, "NARU_ADMIN_TOKEN_FILE: cannot read /no/such/file"),
        ({"NARU_REGISTRY_CA_FILE": "/no/such/file"}, "NARU_REGISTRY_CA_FILE: cannot read /no/such/file"),
        ({"NARU_REGISTRY_KEY_FILE": __file__}, "NARU_REGISTRY_CERT_FILE: is not set, but NARU_REGISTRY_KEY_FILE is"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(naru, variables, words):
    said = naru("tool", "list", **variables)
    assert (said.code, words in said.err) == (2, True), said


def test_secrets_of_the_run_are_not_sent_elsewhere(naru):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        only = "is not set; the one in .naru/ is only used with the address of that run"
        said = naru("tool", "list", NARU_REGISTRY=address)
        assert (said.code, f"NARU_ADMIN_TOKEN {only}, not NARU_REGISTRY's" in said.err) == (4, True)
        said = naru("call", "echo", NARU_URL=f"http://{address}/mcp")
        assert (said.code, f"NARU_CREDENTIALS {only}, not NARU_URL's" in said.err) == (4, True)


def test_from_another_directory_it_is_told_where_naru_looks(naru, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["tool", "list"], ["call", "echo"]):
        said = naru(*arguments)
        assert said.code == 4
        assert f"in the current directory ({tmp_path})" in said.err


def test_a_damaged_run_file_says_how_to_start_anew(naru, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".naru").mkdir()
    (tmp_path / ".naru" / "run.json").write_text("{")
    said = naru("tool", "list")
    assert (said.code, "removing .naru/" in said.err) == (2, True)
    (tmp_path / ".naru" / "run.json").write_text('{"registry":"127.0.0.1:1"}')
    (tmp_path / ".naru" / "admin.token").write_bytes(b"\xff")
    said = naru("tool", "list")
    assert (said.code, "removing .naru/" in said.err) == (2, True)


def test_wrong_secrets_are_code_4_and_name_their_setting(naru, run):
    said = naru("tool", "list", NARU_ADMIN_TOKEN="wrong-wrong-wrong")
    assert (said.code, "NARU_ADMIN_TOKEN" in said.err) == (4, True)
    client_id = state_file(run, "demo.credentials").read_text().partition(":")[0]
    said = naru("call", "echo", NARU_CREDENTIALS=f"{client_id}:nrcs_wrong")
    assert (said.code, "NARU_CREDENTIALS" in said.err) == (4, True)
    said = naru("call", "echo", NARU_CREDENTIALS="/no/such/file")
    assert (said.code, "/no/such/file" in said.err) == (2, True)


def test_what_is_out_of_reach_is_code_5_and_names_its_setting(naru):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    said = naru("tool", "list", NARU_REGISTRY=address, NARU_ADMIN_TOKEN="x" * 20)
    assert (said.code, f"{address} (NARU_REGISTRY)" in said.err) == (5, True)
    said = naru("call", "echo", NARU_URL=f"http://{address}/mcp", NARU_CREDENTIALS="a:b")
    assert (said.code, f"{address}/mcp (NARU_URL)" in said.err) == (5, True)


def test_a_server_that_is_no_gateway_is_code_5(naru, run):
    # The metrics server: it answers HTTP, and no JSON-RPC.
    metrics = next(line for line in run.text.splitlines() if line.startswith("  metrics")).split()[2]
    said = naru("call", "echo", NARU_URL=f"http://{metrics}/mcp", NARU_CREDENTIALS="a:b")
    assert (said.code, "NARU_URL" in said.err) == (5, True)
    assert naru("call", "echo", NARU_URL="127.0.0.1:1", NARU_CREDENTIALS="a:b").code == 2


def test_a_call_that_takes_too_long_is_given_up(naru):
    said = naru("call", "slow_report", "--arg", "seconds=2", "--timeout", "0.5")
    assert (said.code, "within 0.5 seconds; the call may still run" in said.err) == (5, True)
    call_id = said.err.partition("`naru record ")[2].partition("`")[0]
    assert naru("record", call_id, "--json").json["tool"] == "slow_report"


def test_ctrl_c_names_the_call(run):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "naru_cli.app", "call", "slow_report"]
    command += ["--args", '{"seconds":5,"steps":600}']
    variables = environment({"TERM": "xterm", "COLUMNS": "200"})
    with subprocess.Popen(command, cwd=run.directory, env=variables, stdout=subprocess.DEVNULL, stderr=end) as call:
        os.close(end)
        drawn = b""
        while b"/600" not in drawn:  # the first progress: the call runs
            drawn += os.read(terminal, 4096)
        call.send_signal(signal.SIGINT)
        said = read_all(terminal)
        assert call.wait(30) == 130
    assert "interrupted; the call may still run: `naru record " in said
    assert "Traceback" not in said


def test_help_tells_the_exit_codes(naru):
    for command in ([], ["tool"], ["tool", "apply"], ["call"], ["doctor"]):
        said = naru(*command, "--help", COLUMNS="200")
        assert said.code == 0
        assert "5 registry or gateway out of reach" in " ".join(said.out.split())


def test_the_installed_command_is_this_one(run):
    command = Path(sys.executable).with_name("naru")
    said = subprocess.run(
        [command, "tool", "list", "--json"],
        cwd=run.directory,
        env=environment({}),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert len(json.loads(said.stdout)) >= 6


def test_an_address_without_the_mcp_path_is_told(naru, run):
    credential = state_file(run, "demo.credentials").read_text().strip()
    url = addresses(run)["url"].removesuffix("/mcp")
    said = naru("call", "echo", NARU_URL=url, NARU_CREDENTIALS=credential)
    assert f"The path of {url} (NARU_URL) is /; the gateway's is /mcp" in said.err


@pytest.mark.parametrize("url", ["http://[", "http://", "ftp://127.0.0.1/mcp", "127.0.0.1:8080", "http:///mcp"])
def test_an_address_that_is_none_is_named(naru, url):
    said = naru("call", "echo", NARU_URL=url)
    assert said.code == 2
    assert "NARU_URL" in said.err
    assert url in said.err.replace("\n", "")
