"""`python -m gateway`: settings from the environment, one server, one process."""

import asyncio
import os
import sys

import uvloop

from gateway.server import serve
from gateway.settings import Settings
from naru import logs
from naru.environment import SettingError

# uvicorn says at `warning` and below what clients do wrong on every connection; our own records say that.
_NOISY = ("uvicorn.error", "uvicorn.access", "asyncio")


def main() -> int:
    """Returns the exit status: 0 after a signal, 2 for a setting that cannot be served."""
    # gRPC's C core writes its own lines to stderr, for what our records tell already.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        settings = Settings.from_env(os.environ)
        lines = logs.configure("gateway", settings.log_level, quiet=_NOISY)
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
