"""Runs a service as `python -m` does, on a disk that takes no more than a few KiB for a file."""

import resource
import runpy
import signal
import sys

LIMIT = 48 << 10

if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails with EFBIG instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
