"""A gateway whose event loop was held up says what did it, and goes on; with nothing to do it stops at once."""

import signal
import time
from urllib.request import urlopen

from ops.stack import Process, Stack, wait_for


def held_up(gateway: Process) -> dict[str, object] | None:
    return next((record for record in gateway.records() if record["event"] == "event loop held up"), None)


def test_what_holds_up_the_loop_is_named(stack: Stack):
    settings = stack.gateway_settings(["127.0.0.1:1"]) | {"BUSY_SECONDS": "1", "BUSY_TIMES": "1"}
    gateway = stack.start("tests.support.busy", "gateway", settings=settings)
    gateway.popen.send_signal(signal.SIGUSR1)
    record = wait_for(lambda: held_up(gateway), 10, "the warning")
    assert record["level"] == "warning"
    assert float(str(record["seconds"])) > 0.5
    assert ".hold_up_the_loop:" in str(record["stack"])
    with urlopen(f"{gateway.url}/healthz", timeout=10) as answer:
        assert answer.status == 200


def test_a_pair_with_nothing_to_do_stops_soon(stack: Stack):
    processes = [stack.registry(), stack.gateway()]
    for process in reversed(processes):
        began = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - began < 3
