"""`make compose-test`: builds, brings the containers up with three registries, calls in each mode, and takes them down.

    python -m tests.compose

Needs a Docker engine. Exit code 1, with what went wrong, if anything is not as it must be.
"""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

REPLICAS = 3
SEEN_SECONDS = 60.0
COMPOSE = ["docker", "compose", "--project-name", "naru-test"]
# A free port and a network of its own: what runs already is not in the way.
ENVIRON = os.environ | {"GATEWAY_PORT": "0", "TOOLS_SUBNET": "172.30.78.0/24"}
CALL = {"name": "slow_report", "arguments": {"seconds": 0.2, "steps": 2}}


def compose(*arguments: str) -> str:
    """Runs docker compose; raises CalledProcessError, whose output is on the terminal."""
    return subprocess.run([*COMPOSE, *arguments], env=ENVIRON, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def running() -> Iterator[None]:
    try:
        compose("build", "--quiet")
        compose("up", "--detach", "--wait", "--no-build", "--pull", "never", "--scale", f"registry={REPLICAS}")
        yield
    except BaseException:
        sys.stderr.write(compose("logs", "--no-color", "--tail", "40"))
        raise
    finally:
        compose("down", "--volumes", "--timeout", "30")


def call(url: str, credential: str, accept: str) -> list[str]:
    """The lines of the answer to one tools/call."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}).encode()
    authorization = "Basic " + base64.b64encode(credential.encode()).decode()
    headers = {"Content-Type": "application/json", "Accept": accept, "Authorization": authorization}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as response:
        return [line for line in response.read().decode().splitlines() if line and not line.startswith((":", "event:"))]


def check_modes(url: str, credential: str) -> None:
    """JSON has the result alone; the streams have progress first."""
    for accept, prefix in (("application/json", ""), ("text/event-stream", "data: "), ("application/x-ndjson", "")):
        messages = [json.loads(line.removeprefix(prefix)) for line in call(url, credential, accept)]
        assert messages[-1]["result"]["isError"] is False, messages
        progress = [message["params"]["progress"] for message in messages[:-1]]
        assert progress == ([] if accept == "application/json" else [1, 2]), messages


def check_spread(url: str, credential: str) -> None:
    """Every replica gets its share of the calls."""
    deadline = time.monotonic() + SEEN_SECONDS
    seen: set[str] = set()
    while len(seen) < REPLICAS:
        assert time.monotonic() < deadline, f"only {sorted(seen)} of {REPLICAS} registries were called"
        call(url, credential, "application/json")
        logs = compose("logs", "--no-color", "registry").splitlines()
        seen = {line.split()[0] for line in logs if '"event":"call"' in line}


def check_confinement() -> None:
    """Nobody is root, and nobody can write to the root file system."""
    for service in ("gateway", "registry", "demo"):
        assert compose("exec", "-T", service, "id", "-u").strip() == "10001", service
        probe = compose(
            "exec", "-T", service, "sh", "-c", "touch /opt/probe 2>/dev/null && echo written || echo refused"
        )
        assert probe.strip() == "refused", service


def main() -> None:
    with running():
        url = f"http://{compose('port', 'gateway', '8080').strip()}/mcp"
        credential = compose("run", "--rm", "--no-deps", "setup", "cat", "/run/naru/demo/credentials").strip()
        check_modes(url, credential)
        check_spread(url, credential)
        check_confinement()
    print(f"compose: {REPLICAS} registries, calls as JSON, SSE and NDJSON, each replica seen: passed")


if __name__ == "__main__":
    main()
