"""`python -m gateway`: settings from the environment, one server, one process."""

import asyncio
import os
import sys

import uvloop

from gateway.http.server import serve
from gateway.settings import Settings
from gateway.telemetry.metrics import configure_logs
from naru.environment import SettingError


def main() -> int:
    """Returns the exit status: 0 after a signal, 2 for a setting that cannot be served."""
    # gRPC's C core writes its own lines to stderr, for what our records tell already.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        settings = Settings.from_env(os.environ)
        lines = configure_logs(settings.log_level)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(settings))
        finally:
            lines.drain()
    except SettingError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
