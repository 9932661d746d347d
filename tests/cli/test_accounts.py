"""Tests `naru account` and `naru usage`."""

import errno
import os
import pty
import re
import stat
import subprocess
import sys

import pytest

from tests.support.demo_run import environment
from tests.support.naru_command import read_all


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


def test_times_have_milliseconds(naru, account):
    shown = naru("account", "show", account[0], "--json").json
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["create_time"])


def test_usage_is_counted_by_tool_and_over_all_accounts(naru, account):
    client_id, credential = account
    for tool, arguments in (("text_stats", '{"text":"a"}'), ("text_stats", '{"text":"b"}'), ("echo", "{}")):
        assert naru("call", tool, "--args", arguments, NARU_CREDENTIALS=credential).code == 0
    counters = naru("usage", client_id, "--by-tool", "--json").json["counters"]
    counted = {(len(item["period"]), item["tool"]): item["calls"] for item in counters}
    assert counted == {(7, "text_stats"): 2, (7, "echo"): 1, (10, "text_stats"): 2, (10, "echo"): 1}
    everybody = naru("usage", "--all-accounts", "--by-tool", "--json").json
    assert everybody["client_id"] is None
    assert next(item["calls"] for item in everybody["counters"] if item["tool"] == "text_stats") > 2
    assert "text_stats" in naru("usage", "--all-accounts", "--by-tool").out
    said = naru("usage", client_id, "--all-accounts")
    assert (said.code, "use one" in said.err) == (2, True)
