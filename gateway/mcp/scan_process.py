"""A process that scans large bodies, so that one which takes long holds up nobody: see scans.py.

It reads bodies from its input, each after its length, and answers each with a length and what is wrong with it.
"""

import os
import struct
import sys
from typing import BinaryIO

from gateway.mcp import strict_json

SIZE = struct.Struct(">I")
# Calls come first.
_NICENESS = 10


def main(bodies: BinaryIO, answers: BinaryIO) -> None:
    """Answers until there are no more bodies."""
    os.nice(_NICENESS)
    while header := bodies.read(SIZE.size):
        fault = _fault(bodies.read(*SIZE.unpack(header))).encode()
        answers.write(SIZE.pack(len(fault)) + fault)
        answers.flush()


def _fault(body: bytes) -> str:
    try:
        strict_json.check(body)
    except strict_json.RefusedError as refused:
        return str(refused)
    return ""


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
