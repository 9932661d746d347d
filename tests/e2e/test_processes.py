"""The harness itself: what it must notice, or every end-to-end test would hang or pass for nothing."""

import signal
import time
from pathlib import Path

import pytest

from ops.stack import Process, ProcessError, Stack, wait_for

READY = "import json; print(json.dumps({'event': 'thing ready', 'address': '127.0.0.1:1'}), flush=True)\n"


def script(directory: Path, stack: Stack, text: str) -> Process:
    (directory / "script_under_test.py").write_text(text)
    return stack.run("script_under_test", settings={"PYTHONPATH": str(directory)})


def test_process_that_dies_early_is_reported_with_its_log(tmp_path: Path, stack: Stack):
    process = script(tmp_path, stack, "import sys; sys.exit('no such setting')")
    with pytest.raises(ProcessError, match=r"(?s)ended with 1 before its ready line.*no such setting"):
        process.wait_ready()


def test_ready_line_tells_the_address(tmp_path: Path, stack: Stack):
    process = script(tmp_path, stack, READY + "import time; time.sleep(60)")
    assert process.wait_ready() == "127.0.0.1:1"
    assert process.stop() == -signal.SIGTERM


def test_process_that_never_gets_ready_is_reported_in_time(tmp_path: Path, stack: Stack):
    process = script(tmp_path, stack, "print('still busy', flush=True)\nimport time; time.sleep(60)")
    wait_for(process.tail, 10, "the first output")
    started = time.monotonic()
    with pytest.raises(ProcessError, match=r"(?s)in vain for.*ready line.*still busy"):
        process.wait_ready(0.2)
    assert time.monotonic() - started < 5


def test_process_that_ignores_sigterm_is_killed_and_reported(tmp_path: Path):
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with Stack(tmp_path) as stack:
        process = script(tmp_path, stack, ignore + READY + "signal.pause()")
        process.wait_ready()
        with pytest.raises(ProcessError, match=r"did not end within 0\.2 s"):
            process.stop(0.2)
        assert process.popen.returncode == -signal.SIGKILL


def test_settings_of_the_environment_do_not_reach_processes(
    tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GATEWAY_BIND", "127.0.0.1:8080")
    monkeypatch.setenv("REGISTRY_PEPPER", "leak")
    process = script(tmp_path, stack, "import os; print(sorted(os.environ), flush=True)")
    assert process.wait_exit() == 0
    assert "GATEWAY_BIND" not in process.tail()
    assert "REGISTRY_PEPPER" not in process.tail()
