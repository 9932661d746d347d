"""Tests what the `naru` command talks to and with which secrets, and what it says of settings that are wrong."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.demo_run import Run, environment
from tests.support.naru_command import read_all


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
    with subprocess.Popen(
        command, cwd=run.directory, env=variables, stdout=subprocess.DEVNULL, stderr=end,
        # Tests that run in the background of a shell inherit that Ctrl-C is ignored; a terminal's command doesn't.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as call:  # fmt: skip
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
