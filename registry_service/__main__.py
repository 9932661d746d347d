"""`python -m registry_service`. Exit codes: 0 after a clean stop, 1 if it could not serve, 2 for a wrong setting."""

import os
import signal
import sys

import structlog
import uvloop

from naru import logs
from naru.environment import SettingError
from registry_service.identity.plans import PlansError, load_plans
from registry_service.server import StartError, serve
from registry_service.settings import Settings
from registry_service.telemetry.metrics import LOG_RECORDS_LOST

# The thread that waits for the disk has to win the interpreter back from a busy event loop: in 0.5 ms, not 5.
SWITCH_SECONDS = 0.0005


def main() -> int:
    try:
        settings = Settings.from_env(os.environ)
        plans = load_plans(settings.plans_file)
    except SettingError as error:
        return _refuse(str(error), 2)
    except PlansError as error:
        return _refuse(f"REGISTRY_PLANS_FILE: {error}", 2)
    sys.setswitchinterval(SWITCH_SECONDS)
    lines = logs.configure("registry", settings.log_level)
    lines.on_lost = LOG_RECORDS_LOST.inc
    for unknown in settings.unknown:
        structlog.get_logger().warning("unknown variable", **unknown._asdict())
    try:
        uvloop.run(serve(settings, plans))
    except StartError as error:
        return _refuse(str(error), 1)
    finally:
        lines.drain()
        # A signal that comes now has nothing left to stop, and would spoil the exit code.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    return 0


def _refuse(message: str, code: int) -> int:
    sys.stderr.write(f"registry: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
