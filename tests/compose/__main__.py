"""`make compose-test`: builds the images, and proves both shapes of the deployment in containers.

    python -m tests.compose [together|split]

Together: three registries that do everything. Split: tools and accounts in one process, calls in three others.
Needs a Docker engine. Exit code 1, with what went wrong, if anything is not as it must be.
"""

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

REPLICAS = 3
PATIENCE_SECONDS = 120.0
# A free port and networks of its own: what runs already is not in the way.
ENVIRON = os.environ | {
    "GATEWAY_PORT": "0",
    "SERVICES_SUBNET": "172.30.79.0/24",
    "TOOLS_SUBNET": "172.30.78.0/24",
}
TOGETHER = ("docker-compose.yml",)
SPLIT = ("docker-compose.yml", "docker-compose.split.yml")


class Reply(NamedTuple):
    """An answer of the gateway: its lines, and the id of the call where it was admitted."""

    lines: list[str]
    call_id: str

    @property
    def failed(self) -> bool:
        """Tells whether the answer ends with an error, be it one of JSON-RPC or of the tool."""
        last = json.loads(self.lines[-1])
        return "error" in last or bool(last["result"]["isError"])


class Deployment:
    """Runs what these compose files bring up, with three of the service `scaled`."""

    def __init__(self, files: tuple[str, ...], scaled: str) -> None:
        self.scaled = scaled
        self._command = ["docker", "compose", "--project-name", "naru-test", *(f"--file={file}" for file in files)]
        self.url = self.credential = ""

    def compose(self, *arguments: str, given: str | None = None) -> str:
        """Runs docker compose; raises CalledProcessError, whose output is on the terminal."""
        command = [*self._command, *arguments]
        return subprocess.run(
            command, env=ENVIRON, check=True, input=given, stdout=subprocess.PIPE, text=True, timeout=300
        ).stdout

    @contextmanager
    def running(self) -> Iterator["Deployment"]:
        """Brings it up; shows the logs if anything fails; takes it down with its volumes."""
        scale = f"{self.scaled}={REPLICAS}"
        try:
            self.compose("up", "--detach", "--wait", "--no-build", "--pull", "never", "--scale", scale)
            self.find()
            yield self
        except BaseException:
            sys.stderr.write(self.compose("logs", "--no-color", "--tail", "40"))
            raise
        finally:
            self.compose("down", "--volumes", "--timeout", "30")

    def find(self) -> None:
        """Learns the port, which changes with a restart, and the credential of the demo's account."""
        self.url = f"http://{self.compose('port', 'gateway', '8080').strip()}"
        self.credential = self.setup("cat", "/run/naru/demo/credentials").strip()

    def setup(self, *command: str, given: str | None = None) -> str:
        """Runs a command in the container that has `naru`."""
        return self.compose("run", "--rm", "-T", "--no-deps", "setup", *command, given=given)

    def containers(self, service: str) -> list[dict[str, Any]]:
        """Returns the containers of a service, those that have ended too."""
        lines = self.compose("ps", "--all", "--format", "json", service).splitlines()
        return [json.loads(line) for line in lines]

    def call(self, tool: str, arguments: dict[str, object], accept: str = "application/json") -> Reply:
        """Calls a tool as an agent does."""
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        authorization = "Basic " + base64.b64encode(self.credential.encode()).decode()
        headers = {"Content-Type": "application/json", "Accept": accept, "Authorization": authorization}
        request = urllib.request.Request(f"{self.url}/mcp", body, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            lines = response.read().decode().splitlines()
            call_id = response.headers.get("X-Naru-Call-Id", "")
        return Reply([line for line in lines if line and not line.startswith((":", "event:"))], call_id)

    def record(self, call_id: str) -> dict[str, Any]:
        """Returns the ledger's record of a call, as `naru` shows it."""
        return dict(json.loads(self.setup("naru", "record", "--json", call_id)))


def check_modes(deployment: Deployment) -> None:
    """JSON has the result alone; the streams have progress first."""
    for accept, prefix in (("application/json", ""), ("text/event-stream", "data: "), ("application/x-ndjson", "")):
        reply = deployment.call("slow_report", {"seconds": 0.2, "steps": 2}, accept)
        messages = [json.loads(line.removeprefix(prefix)) for line in reply.lines]
        assert messages[-1]["result"]["isError"] is False, messages
        progress = [message["params"]["progress"] for message in messages[:-1]]
        assert progress == ([] if accept == "application/json" else [1, 2]), messages


def check_spread(deployment: Deployment) -> None:
    """Every replica gets its share of the calls, and nobody else any."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    seen: set[str] = set()
    while len(seen) < REPLICAS:
        assert time.monotonic() < deadline, f"only {sorted(seen)} of {REPLICAS} were called"
        deployment.call("text_stats", {"text": "abc"})
        logs = deployment.compose("logs", "--no-color")
        seen = set(re.findall(r"([a-z]+-[0-9]+) +[|] .*\"event\":\"call\"", logs))
    assert {name.partition("-")[0] for name in seen} == {deployment.scaled}, seen


def check_confinement(deployment: Deployment) -> None:
    """Nobody is root, and nobody can write to the root file system."""
    for service in ("gateway", "demo", deployment.scaled):
        assert deployment.compose("exec", "-T", service, "id", "-u").strip() == "10001", service
        attempt = "touch /opt/probe 2>/dev/null && echo written || echo refused"
        assert deployment.compose("exec", "-T", service, "sh", "-c", attempt).strip() == "refused", service


def check_metrics(deployment: Deployment) -> None:
    """Metrics are served to the services' network, and not to that of the tools."""
    code = (
        f"import urllib.request as r; t = r.urlopen('http://{deployment.scaled}:9465/metrics', timeout=5).read();"
        " print(b'naru_' in t)"
    )
    assert deployment.compose("exec", "-T", "gateway", "python", "-c", code).strip() == "True"
    refused = f"try:\n {code}\nexcept OSError:\n print('refused')"
    assert deployment.compose("exec", "-T", "demo", "python", "-c", refused).strip() == "refused"


def check_limits(deployment: Deployment) -> None:
    """Every container has a bound on its memory and on its log."""
    for container in (
        item for line in ("gateway", "postgres", "demo", deployment.scaled) for item in deployment.containers(line)
    ):
        shown = subprocess.run(
            ["docker", "inspect", container["ID"]], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        host = json.loads(shown)[0]["HostConfig"]
        assert host["Memory"] > 0, container["Name"]
        assert host["LogConfig"]["Config"].keys() == {"max-size", "max-file"}, container["Name"]


def check_restart(deployment: Deployment) -> None:
    """After a restart of everything at once all is as before, and what runs once has ended well."""
    deployment.compose("restart", "--timeout", "30")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(item["State"] != "exited" for one in ("secrets", "setup") for item in deployment.containers(one)):
        assert time.monotonic() < deadline, "the setup does not end"
        time.sleep(0.5)
    for service in ("secrets", "setup"):
        assert [item["ExitCode"] for item in deployment.containers(service)] == [0], service
    deployment.find()
    while not is_ready(deployment):
        assert time.monotonic() < deadline, "the gateway does not get ready"
        time.sleep(0.5)
    check_modes(deployment)


def is_ready(deployment: Deployment) -> bool:
    try:
        with urllib.request.urlopen(f"{deployment.url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def check_record(deployment: Deployment) -> None:
    """The ledger's record of a call is found, wherever the call ran."""
    reply = deployment.call("text_stats", {"text": "abc"})
    record = deployment.record(reply.call_id)
    assert (record["state"], record["tool"]) == ("SUCCEEDED", "text_stats"), record


def check_switch(deployment: Deployment) -> None:
    """From the moment on that a switch has returned, every executor runs the new version."""
    shown = json.loads(deployment.setup("naru", "tool", "show", "text_stats", "--json"))
    (version,) = [item for item in shown["versions"] if item["active"]]
    definition = version["definition"] | {"name": "text_stats", "version": "9.0.0", "active": False}
    manifest = json.dumps({"tools": [definition]})
    deployment.setup("naru", "tool", "apply", "-f", "-", given=manifest)
    deployment.setup("naru", "tool", "activate", "text_stats", "9.0.0")
    replies = [deployment.call("text_stats", {"text": "abc"}) for _ in range(2 * REPLICAS)]
    assert {deployment.record(reply.call_id)["version"] for reply in replies} == {"9.0.0"}


def check_kill(deployment: Deployment) -> None:
    """A killed executor costs its own calls only, whose records say before long that nobody knows their outcome."""
    arguments: dict[str, object] = {"seconds": 5, "steps": 5}
    with ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(deployment.call, "slow_report", arguments) for _ in range(9)]
        time.sleep(2)  # the calls are under way, on all executors
        victim = deployment.containers(deployment.scaled)[0]["ID"]
        subprocess.run(["docker", "kill", "--signal", "KILL", victim], check=True, stdout=subprocess.DEVNULL)
        later = [pool.submit(deployment.call, "text_stats", {"text": "abc"}) for _ in range(6)]
        assert not any(call.result().failed for call in later)
        replies = [call.result() for call in calls]
    lost = [reply for reply in replies if reply.failed]
    assert 0 < len(lost) < len(replies), [reply.lines for reply in replies]
    for reply in lost:
        assert "CALL_OUTCOME_UNKNOWN" in reply.lines[-1], reply.lines
    deadline = time.monotonic() + PATIENCE_SECONDS
    while deployment.record(lost[0].call_id)["state"] != "UNKNOWN":
        assert time.monotonic() < deadline, "the call of the killed executor is not settled"
        time.sleep(1)


SHAPES = {
    "together": (
        Deployment(TOGETHER, "registry"),
        (check_modes, check_spread, check_confinement, check_metrics, check_limits, check_restart),
    ),
    "split": (
        Deployment(SPLIT, "execution"),
        (check_modes, check_spread, check_confinement, check_metrics, check_record, check_switch, check_kill),
    ),
}


def main() -> None:
    SHAPES["together"][0].compose("build", "--quiet")
    for name in sys.argv[1:] or SHAPES:
        deployment, checks = SHAPES[name]
        with deployment.running():
            for check in checks:
                check(deployment)
                print(f"compose: {REPLICAS} of {deployment.scaled}: {check.__name__}: passed", flush=True)


if __name__ == "__main__":
    main()
