"""Checks values against JSON Schemas, which are compiled when first needed and forgotten when others need the room."""

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from registry_service.tools.json_schema import DIALECTS, DRAFT_2020_12, checkable, dialect_uri
from registry_service.tools.schema_cost import SLOW_NUMBER, pattern_size, patterns, rates
from registry_service.tools.schema_walk import positions
from registry_service.tools.violation import Violation, violation_of

MAX_VIOLATIONS = 20
MAX_VIOLATIONS_BYTES = 4096
# The validator collects every violation before it yields the first: 13 µs each, 13 s for a hostile array of a million.
# In a value with more nodes than this, only the first violation is told.
_MAX_NODES_TOLD_WHOLE = 500

# A check may take so many nanoseconds of the event loop's time. Violations are looked for a second time, and to
# say where costs several times as much.
_INLINE_NS = 5_000_000
_INLINE_BYTES = 64 * 1024

# Larger schemas take so long to compile that the event loop must not do it, in bytes. So may any pattern.
LARGE_SCHEMA = 4 * 1024
# Measured: what a compiled schema takes, for each byte of its text; patterns come on top.
_MEMORY_RATIO = 20
MAX_COMPILED_BYTES = 64 * 1024 * 1024


class _Root(msgspec.Struct):
    dialect: str = msgspec.field(name="$schema", default=DRAFT_2020_12)


_ROOT = msgspec.json.Decoder(_Root)


class Compiled(NamedTuple):
    """Holds a validator, up to how many bytes of JSON its check is light by the depth of the value, and its memory.

    `usual` holds for values without slow numbers, `worst` for all.
    """

    validator: Any
    usual: list[int]
    worst: list[int]
    memory: int


class CompiledSchemas:
    """Bounds the memory of all compiled schemas: those that were not used for longest are forgotten, roughly."""

    def __init__(self, limit: int = MAX_COMPILED_BYTES) -> None:
        self._limit = limit
        self._held: deque[tuple[SchemaCheck, int]] = deque()
        self._lock = threading.Lock()
        self.memory = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, check: "SchemaCheck", memory: int) -> None:
        """Makes room for what a check has compiled. Any thread may call it."""
        with self._lock:
            self._held.append((check, memory))
            self.memory += memory
            # One that was used since it was looked at last gets another turn; two turns are enough to find one.
            for _ in range(2 * len(self._held)):
                if self.memory <= self._limit or len(self._held) == 1:
                    return
                old, size = self._held.popleft()
                if old.was_used() or old is check:
                    self._held.append((old, size))
                else:
                    old.forget()
                    self.memory -= size


class SchemaCheck:
    """Checks values against one schema. `held` bounds the memory of many; without it the check keeps what it compiles.

    Raises ValueError for a schema whose dialect is unknown.
    """

    __slots__ = ("_at_once", "_compiled", "_held", "_is_valid", "_used", "schema_json")

    def __init__(self, schema_json: bytes, held: CompiledSchemas | None = None) -> None:
        if dialect_uri({"$schema": _ROOT.decode(schema_json).dialect}) is None:
            raise ValueError("unknown dialect")
        self.schema_json = schema_json
        self._held = held
        self.forget()

    def forget(self) -> None:
        """Frees what was compiled."""
        self._compiled: Compiled | None = None
        self._is_valid: Any = None
        self._at_once = -1
        self._used = False

    def was_used(self) -> bool:
        """Returns whether the check was used since this was asked last."""
        used, self._used = self._used, False
        return used

    @property
    def needs_compiling(self) -> bool:
        """Says whether the check must be compiled first, and that takes longer than the event loop can wait."""
        schema = self.schema_json
        return self._compiled is None and (len(schema) > LARGE_SCHEMA or b'"pattern' in schema)

    def is_light(self, raw: bytes) -> bool:
        """Returns whether the check of this JSON text is so short that the event loop can do it."""
        self._used = True
        return len(raw) <= self._at_once or self._is_light(raw)

    def _is_light(self, raw: bytes) -> bool:
        if self.needs_compiling:
            return False
        _, usual, worst, _ = self.compile()
        size, depth = len(raw), raw.count(b"{") + raw.count(b"[")
        if size <= worst[min(depth, len(worst) - 1)]:
            return True
        return size <= usual[min(depth, len(usual) - 1)] and SLOW_NUMBER.search(raw) is None

    def compile(self) -> Compiled:
        """Compiles the schema, unless that was done. Any thread may call it."""
        known = self._compiled
        if known is None:
            known = _compile(self.schema_json)
            self._is_valid, self._at_once = known.validator.is_valid, known.worst[-1]
            self._compiled = known
            if self._held is not None:
                self._held.hold(self, known.memory)
        return known

    def violations(self, instance: object) -> list[Violation]:
        """Returns how a JSON value breaks the schema, at most 20 violations and 4 KiB; an empty list if it does not.

        No message repeats a value of the instance. Of a value of more than 500 nodes only one violation is told.
        """
        is_valid = self._is_valid or self.compile().validator.is_valid
        return [] if is_valid(instance) else self._told(instance)

    def _told(self, instance: object) -> list[Violation]:
        told: list[Violation] = []
        left = MAX_VIOLATIONS_BYTES
        for error in itertools.islice(self._errors(instance), MAX_VIOLATIONS):
            violation = violation_of(error)
            left -= len(msgspec.json.encode(violation.fact())) + 1
            if left < 0:
                break
            told.append(violation)
        return told

    def _errors(self, instance: object) -> Iterator[jsonschema_rs.ValidationError]:
        validator = self.compile().validator
        if not _larger(instance, _MAX_NODES_TOLD_WHOLE):
            yield from validator.iter_errors(instance)
            return
        try:
            validator.validate(instance)
        except jsonschema_rs.ValidationError as error:
            yield error


def _compile(schema_json: bytes) -> Compiled:
    schema = msgspec.json.decode(schema_json)
    dialect = DIALECTS[dialect_uri(schema) or DRAFT_2020_12]
    found = list(positions(schema, dialect.id_keyword))
    validator, schema, found = checkable(dialect, schema_json, schema, found)
    usual, worst = rates(schema, found, dialect.id_keyword)
    sizes = sum(pattern_size(pattern) or 0 for position in found for _, pattern in patterns(position.schema))
    return Compiled(validator, _bytes(usual), _bytes(worst), _MEMORY_RATIO * len(schema_json) + sizes)


def _bytes(rates: list[float]) -> list[int]:
    return [min(_INLINE_BYTES, int(_INLINE_NS / rate)) for rate in rates]


def _larger(value: object, limit: int) -> bool:
    """Returns whether a JSON value has more than `limit` members and elements in all, without counting them all."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            limit -= len(node)
            if limit < 0:
                return True
            stack.extend(node.values() if isinstance(node, dict) else node)
    return False
