"""Checks JSON against schemas in a process of its own, so that a long check holds up nobody: see checks.py.

The process reads requests from its input, two lengths and then a schema and a value, and answers each with a length and
the violations as JSON. A check that takes too long kills it: a signal is the only thing that ends one.
"""

import functools
import os
import signal
import struct
import sys
from typing import BinaryIO

import msgspec

from registry_service.tools.schema_check import SchemaCheck
from registry_service.tools.violation import Violation, unreadable

REQUEST = struct.Struct(">II")
ANSWER = struct.Struct(">I")
# The limit is on processor time: a busy machine may take much longer.
CHECK_SECONDS = 2.0
# Calls come first.
_NICENESS = 10


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until there are no more."""
    os.nice(_NICENESS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while header := requests.read(REQUEST.size):
        schema_size, value_size = REQUEST.unpack(header)
        schema, raw = requests.read(schema_size), requests.read(value_size)
        signal.setitimer(signal.ITIMER_PROF, CHECK_SECONDS)
        answer = msgspec.json.encode(violations_of(_compiled(schema), raw))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(ANSWER.pack(len(answer)) + answer)
        answers.flush()


def violations_of(check: SchemaCheck, raw: bytes) -> list[Violation]:
    """Returns how JSON text breaks a schema, be it by not being JSON."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        return [unreadable(error)]
    return check.violations(value)


@functools.lru_cache(maxsize=32)
def _compiled(schema: bytes) -> SchemaCheck:
    return SchemaCheck(schema)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
