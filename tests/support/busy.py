"""Runs a service as `python -m` does, but for SIGUSR1, which holds up its event loop `BUSY_TIMES` times in a row.

Each time takes `BUSY_SECONDS`. In between everything else gets a single turn, as beside a flood of hostile inputs.
"""

import os
import runpy
import signal
import sys
import time
from typing import Any

import uvloop


class BusyLoop(uvloop.Loop):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_signal_handler(signal.SIGUSR1, self._flood, int(os.environ["BUSY_TIMES"]))

    def _flood(self, times: int) -> None:
        hold_up_the_loop(float(os.environ["BUSY_SECONDS"]))
        if times > 1:
            self.call_soon(self._flood, times - 1)
        else:
            os.write(1, b'{"event": "flood over"}\n')


def hold_up_the_loop(seconds: float) -> None:
    """Computes and gives nobody else a turn."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    uvloop.Loop = BusyLoop  # type: ignore[misc]
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
