"""`make run` as a person at a terminal meets it: ready, the printed curl lines, Ctrl-C, and a second start."""

import json
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.demo_run import FREE_PORTS, Run, environment

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    # The quotes and the blank would break a curl line that does not quote.
    directory = tmp_path_factory.mktemp("na ru's")
    with Run(directory) as running:
        yield running


def shell(line: str) -> str:
    answer = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=30, check=True, cwd="/")
    return answer.stdout


def curl_lines(run: Run) -> list[str]:
    return [line for line in run.text.splitlines() if line.startswith("curl ")]


def descendants(run: Run) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def test_the_printed_curl_lines_work_when_pasted(run):
    json_line, sse_line = curl_lines(run)
    answer = json.loads(shell(json_line))
    assert answer["result"]["structuredContent"] == {"characters": 5}
    assert answer["result"]["content"] == [{"type": "text", "text": '{"characters":5}'}]

    data = [json.loads(line[6:]) for line in shell(sse_line).splitlines() if line.startswith("data: ")]
    assert [message["params"]["progress"] for message in data[:-1]] == [1, 2, 3, 4, 5, 6]
    assert data[-1]["result"]["structuredContent"]["title"] == "느린 보고서"


def test_the_first_call_is_shown_and_ready_comes_last(run):
    assert run.text.splitlines()[-1] == "ready"
    assert '"structuredContent":{"characters":5}' in run.text


async def test_the_printed_settings_work_in_the_official_client(run):
    printed = re.search(r"URL +(\S+)\n +Header +Authorization: (Bearer \S+)\n", run.text)
    assert printed is not None
    async with (
        httpx2.AsyncClient(headers={"Authorization": printed[2]}, timeout=30) as http,
        Client(streamable_http_client(printed[1], http_client=http), mode="auto") as client,
    ):
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert names == {"text_stats", "kr_holidays", "csv_profile", "slow_report", "qr_code", "echo"}


def test_all_state_lies_in_one_private_directory(run):
    state = run.directory / ".naru"
    assert {path.name for path in run.directory.iterdir()} == {".naru", "run.out"}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for name in ("demo.credentials", "pepper", "admin.token", "service.token"):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
    assert re.fullmatch(r"nrci_[A-Za-z0-9]{21}:nrcs_[A-Za-z0-9]{49}\n", (state / "demo.credentials").read_text())


def test_the_readme_s_own_tool_works_when_pasted(run, tmp_path):
    section = README.read_text().partition("## A tool of your own")[2]
    manifest, commands = re.findall(r"```(?:yaml|sh)\n(.*?)```", section, re.DOTALL)[:2]
    demo = next(line.split()[1] for line in run.text.splitlines() if line.startswith("  demo"))
    (tmp_path / "tools.yaml").write_text(manifest.replace("http://127.0.0.1:9000", demo))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".naru").symlink_to(run.directory / ".naru")
    pasted = subprocess.run(
        ["sh", "-ec", commands],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env=environment({}),
    )
    assert pasted.stdout.endswith('{"characters":13}\n')
    assert commands.rstrip().endswith('# {"characters":13}')


def test_a_second_run_in_the_same_directory_is_refused(run):
    code, said = refused(run.directory, FREE_PORTS)
    assert code == 1
    assert "another `make run` is using .naru/" in said


def refused(directory: Path, settings: dict[str, str]) -> tuple[int, str]:
    """A run that ends by itself: its exit code and what it says on standard error."""
    command = [sys.executable, "-m", "ops.run"]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=directory, env=environment(settings), check=False
    )
    return answer.returncode, answer.stderr


@contextmanager
def slow_call(run: Run, seconds: int) -> Iterator[subprocess.Popen[str]]:
    """A call over SSE whose first progress has come."""
    line = curl_lines(run)[1].replace('"seconds":3', f'"seconds":{seconds}').replace('"steps":6', '"steps":500')
    with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as call:
        try:
            assert call.stdout is not None
            first = next(part for part in call.stdout if part.startswith("data: "))
            assert json.loads(first[6:])["method"] == "notifications/progress"
            yield call
        finally:
            call.kill()


def last_message(call: subprocess.Popen[str]) -> dict[str, Any]:
    text, _ = call.communicate(timeout=30)
    data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert isinstance(data[-1], dict)
    return data[-1]


def test_ctrl_c_lets_running_calls_finish_and_the_next_start_keeps_the_account(tmp_path):
    credential = tmp_path / ".naru" / "demo.credentials"
    with Run(tmp_path) as first, slow_call(first, seconds=2) as call:
        kept = credential.read_text()
        children = descendants(first)
        assert len(children) == 3
        first.signal(signal.SIGINT)
        assert last_message(call)["result"]["structuredContent"]["title"] == "느린 보고서"
        assert first.wait() == 130
        assert not [child for child in children if child.is_running()]
        assert first.text.splitlines()[-1] == "stopped"
    # On other ports: the tools get versions of their own, and the account stays.
    with Run(tmp_path) as second:
        assert credential.read_text() == kept
        assert json.loads(shell(curl_lines(second)[0]))["result"]["isError"] is False


def test_a_second_ctrl_c_does_not_wait_for_the_call(tmp_path):
    with Run(tmp_path) as run, slow_call(run, seconds=300) as call:
        children = descendants(run)
        run.signal(signal.SIGINT)
        run.wait_line("stopping; running calls may finish (Ctrl-C again to stop at once)")
        run.signal(signal.SIGINT)
        # The grace alone would be twenty.
        assert run.wait(15) == 130
        assert not [child for child in children if child.is_running()]
        assert "error" in last_message(call)


def test_when_one_process_dies_the_rest_is_stopped_and_the_reason_shown(tmp_path):
    with Run(tmp_path) as run:
        children = descendants(run)
        registry = next(child for child in children if "registry_service" in child.cmdline())
        registry.kill()
        assert run.wait() == 1
        assert not [child for child in children if child.is_running()]
    assert "the registry ended (signal SIGKILL). The end of .naru/logs/registry.log:" in run.text
    assert '"registry ready"' in run.text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can bind a process's life to its parent's")
def test_kill_9_leaves_no_process_behind(tmp_path):
    with Run(tmp_path) as run:
        children = descendants(run)
        run.process.kill()
        gone, alive = psutil.wait_procs(children, timeout=40)
    assert len(gone) == 3
    assert not alive


@pytest.mark.parametrize("variable", ["GATEWAY_BIND", "REGISTRY_BIND", "DEMO_BIND", "REGISTRY_METRICS_BIND"])
def test_a_port_in_use_is_told_with_the_variable_that_moves_it(tmp_path, variable):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = refused(tmp_path, FREE_PORTS | {variable: address})
    assert code == 1
    assert said.startswith(f"make run: {variable}: {address} is in use; set another")


@pytest.mark.parametrize("value", ["8080", "localhost", "127.0.0.1:http", "127.0.0.1:65536", "no.such.host.invalid:1"])
def test_a_wrong_address_is_told_with_its_variable(tmp_path, value):
    code, said = refused(tmp_path, FREE_PORTS | {"DEMO_BIND": value})
    assert code == 1
    assert said.startswith("make run: DEMO_BIND: ")


def test_what_a_service_says_of_a_wrong_setting_is_shown(tmp_path):
    code, said = refused(tmp_path, FREE_PORTS | {"REGISTRY_DEFAULT_TIMEOUT_SECONDS": "soon"})
    assert code == 1
    assert "the registry ended (exit code 2)" in said
    assert "REGISTRY_DEFAULT_TIMEOUT_SECONDS" in said


def a_file_instead(state: Path) -> None:
    state.write_text("")


def a_directory_instead_of_the_lock(state: Path) -> None:
    (state / "run.lock").mkdir(parents=True)


def a_directory_instead_of_a_log(state: Path) -> None:
    (state / "logs" / "gateway.log").mkdir(parents=True)


@pytest.mark.parametrize("spoil", [a_file_instead, a_directory_instead_of_the_lock, a_directory_instead_of_a_log])
def test_a_state_directory_that_cannot_be_written_is_told_in_one_line(tmp_path, spoil):
    spoil(tmp_path / ".naru")
    code, said = refused(tmp_path, FREE_PORTS)
    assert code == 1
    assert said.startswith("make run: cannot write .naru/: ")
    assert said.count("\n") == 1


def test_a_damaged_database_says_how_to_start_anew(tmp_path):
    (tmp_path / ".naru").mkdir()
    (tmp_path / ".naru" / "naru.db").write_bytes(b"not a database" * 1000)
    code, said = refused(tmp_path, FREE_PORTS)
    assert code == 1
    assert "file is not a database" in said
    assert "Removing .naru/ and a new `make run` start anew" in said


def test_a_damaged_credential_is_replaced_by_that_of_a_new_account(tmp_path):
    (tmp_path / ".naru").mkdir()
    (tmp_path / ".naru" / "demo.credentials").write_text("x\n")
    (tmp_path / ".naru" / "run.json").write_text("{")
    with Run(tmp_path) as run:
        assert json.loads(shell(curl_lines(run)[0]))["result"]["isError"] is False


def test_a_lost_pepper_says_what_cannot_be_used_any_more(tmp_path):
    with Run(tmp_path) as run:
        run.process.terminate()
        assert run.wait() == 143
    (tmp_path / ".naru" / "pepper").unlink()
    run = Run(tmp_path)
    assert run.wait() == 1
    assert "REGISTRY_PEPPER" in run.text
    assert "Removing .naru/ and a new `make run` start anew" in run.text
    assert "Traceback" not in run.text
