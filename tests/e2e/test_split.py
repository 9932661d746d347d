"""The registry and the execution of calls in processes of their own: what `naru` makes of it."""

import asyncio
import json
import re
import secrets
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from naru_cli.access import Access
from ops.stack import Process, Stack
from tests.support.scripted_endpoint import ScriptedEndpoint


class Split(NamedTuple):
    stack: Stack
    registry: Process
    execution: Process
    gateway: Process
    environment: dict[str, str]

    def naru(self, *arguments: str, **settings: str) -> tuple[int, str]:
        """Runs the command; returns its exit code and what it says."""
        process = self.stack.run("naru_cli.app", *arguments, name="naru", settings={**self.environment, **settings})
        return process.wait_exit(), process.tail(100)

    def doctor(self, **settings: str) -> tuple[int, dict[str, dict[str, str]]]:
        """Returns the exit code, and what is not ok, by the name of the check."""
        code, said = self.naru("doctor", "--json", **settings)
        return code, {finding["check"]: finding for finding in json.loads(said) if finding["state"] != "ok"}


def started(stack: Stack, **execution_settings: str) -> Split:
    registry = stack.registry(REGISTRY_SERVICES="registry,accounts")
    execution = stack.registry(REGISTRY_SERVICES="execution", **execution_settings)
    gateway = stack.gateway(registry, GATEWAY_EXECUTION=f"ipv4:{execution.address}")
    credential = stack.admin(registry).create_account()
    environment = {
        "NARU_REGISTRY": registry.address,
        "NARU_EXECUTION": execution.address,
        "NARU_ADMIN_TOKEN": stack.admin_token,
        "NARU_URL": f"{gateway.url}/mcp",
        "NARU_CREDENTIALS": f"{credential.client_id}:{credential.secret}",
        "COLUMNS": "200",
    }
    return Split(stack, registry, execution, gateway, environment)


def manifest(*urls: str) -> dict[str, Any]:
    """Tools that are named as the paths of their URLs."""
    tool = {"version": "1", "active": True, "description": "x", "inputSchema": {"type": "object"}}
    named = {url.rpartition("/")[2]: {"production": {"url": url, "method": "POST"}} for url in urls}
    return {"tools": [tool | {"name": name, "endpoint": endpoint} for name, endpoint in named.items()]}


@pytest.fixture
def split(postgresql_stack: Stack) -> Split:
    return started(postgresql_stack)


async def test_a_call_and_its_record(split: Split, tmp_path: Path):
    file = tmp_path / "tools.json"
    async with ScriptedEndpoint() as endpoint:
        file.write_text(json.dumps(manifest(endpoint.url("/echo"), endpoint.url("/missing"))))
        assert await asyncio.to_thread(split.naru, "tool", "apply", "-f", str(file))
        assert await asyncio.to_thread(split.naru, "call", "echo", "--args", '{"a":1}') == (0, '{"a":1}')
        code, said = await asyncio.to_thread(split.naru, "call", "missing")
    assert code == 6
    call_id = re.findall(r"\(call (\S+):", said)[0]
    code, said = split.naru("record", call_id, "--json")
    assert (code, json.loads(said)["reason"]) == (0, "TOOL_UNREACHABLE")


def test_who_serves_no_calls_has_no_record_and_says_which_setting_helps(split: Split):
    code, said = split.naru("record", "some-call", NARU_EXECUTION=split.registry.address)
    assert code == 5
    assert f"{split.registry.address} (NARU_EXECUTION)" in said
    assert "NARU_EXECUTION to one with `execution`" in said


def test_doctor_looks_at_both(split: Split):
    code, wrong = split.doctor()
    assert (code, wrong) == (0, {})
    assert "ok       execution: " in split.naru("doctor")[1]
    code, wrong = split.doctor(NARU_EXECUTION="127.0.0.1:1")
    assert (code, list(wrong), wrong["execution"]["setting"]) == (1, ["execution"], "NARU_EXECUTION")
    code, wrong = split.doctor(NARU_EXECUTION=split.registry.address)
    assert (code, list(wrong), wrong["execution"]["setting"]) == (1, ["execution"], "NARU_EXECUTION")


def test_doctor_names_another_admin_token_of_the_execution(postgresql_stack: Stack):
    split = started(postgresql_stack, REGISTRY_ADMIN_TOKEN=secrets.token_urlsafe(32))
    code, wrong = split.doctor()
    assert (code, list(wrong)) == (1, ["admin token of execution"])
    assert wrong["admin token of execution"]["setting"] == "NARU_ADMIN_TOKEN"


def test_doctor_names_another_service_token_of_the_execution(postgresql_stack: Stack):
    split = started(postgresql_stack, REGISTRY_SERVICE_TOKEN=secrets.token_urlsafe(32))
    code, wrong = split.doctor()
    assert code == 1
    (check,) = wrong
    assert wrong[check]["setting"] in ("GATEWAY_REGISTRY_TOKEN", "GATEWAY_EXECUTION")
    assert "GATEWAY_REGISTRY_TOKEN" in wrong[check]["setting"] + wrong[check]["remedy"]


def test_the_token_of_a_run_is_not_sent_to_an_execution_of_the_environment(tmp_path: Path):
    (tmp_path / ".naru").mkdir()
    (tmp_path / ".naru" / "run.json").write_text('{"registry":"127.0.0.1:1","url":"http://127.0.0.1:1/mcp"}')
    (tmp_path / ".naru" / "admin.token").write_text("of the run")
    access = Access.from_env({"NARU_EXECUTION": "127.0.0.1:2"}, tmp_path)
    assert (access.registry.token, access.execution.token) == ("of the run", None)
    assert Access.from_env({}, tmp_path).execution.token == "of the run"
