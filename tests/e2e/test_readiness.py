"""`/readyz` and `naru doctor` say what is in the way, in the registry's own word."""

import json
import urllib.error
from typing import Any
from urllib.request import urlopen

from ops.stack import Process, Stack, wait_for


def readiness(gateway: Process) -> dict[str, Any]:
    try:
        with urlopen(f"{gateway.url}/readyz", timeout=10) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as refusal:
        return dict(json.load(refusal))


def test_a_database_that_was_removed_is_named(stack: Stack):
    registry, gateway = stack.registry(), stack.gateway()
    assert readiness(gateway) == {"status": "ok"}
    path = stack.directory / "naru.db"
    path.rename(path.with_suffix(".moved"))
    wait_for(lambda: "naru.v1.Execution: not serving (database_replaced)" in str(readiness(gateway)), 20, "the cause")
    settings = {
        "NARU_REGISTRY": registry.address,
        "NARU_ADMIN_TOKEN": stack.admin_token,
        "NARU_URL": f"{gateway.url}/mcp",
    }
    doctor = stack.run("naru_cli.app", "doctor", "--json", name="doctor", settings=settings)
    assert doctor.wait_exit() == 1
    assert "database_replaced" in doctor.tail() or "removed or replaced" in doctor.tail()
    path.with_suffix(".moved").rename(path)
    wait_for(lambda: readiness(gateway) == {"status": "ok"}, 20, "the recovery")
