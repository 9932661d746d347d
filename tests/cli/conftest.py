"""Holds one running demo for the tests of the `naru` command, and the command where that demo's `.naru/` is."""

import json
import os
from typing import Any

import pytest
from typer.testing import CliRunner

from naru_cli import app as cli
from tests.support.demo_run import Run
from tests.support.naru_command import Said, manifest


@pytest.fixture(scope="session")
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
    """Makes an account; returns its client id and its credential."""
    made = naru("account", "create", "someone", "--json").json
    return made["client_id"], made["credential"]


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
