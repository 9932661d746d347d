"""Brings a failure to the person at the terminal: one exception, its exit code, and the facts in words."""

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Names the exit codes. They are part of the interface: scripts branch on them."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    TOOL_ERROR = 6
    INVALID = 7
    INTERRUPTED = 130


EXITS_BY_REASON = {
    **dict.fromkeys(
        [
            "TOOL_NOT_FOUND",
            "TOOL_NOT_ACTIVE",
            "TOOL_VERSION_NOT_FOUND",
            "ACCOUNT_NOT_FOUND",
            "SECRET_NOT_FOUND",
            "CALL_NOT_FOUND",
        ],
        Exit.NOT_FOUND,
    ),
    **dict.fromkeys(["TOKEN_INVALID", "UNAUTHENTICATED", "ACCOUNT_SUSPENDED", "PERMISSION_DENIED"], Exit.REFUSED),
    **dict.fromkeys(
        [
            "REQUEST_INVALID",
            "DEFINITION_INVALID",
            "PLAN_NOT_FOUND",
            "TOOL_VERSION_EXISTS",
            "ARGUMENTS_INVALID",
            "LANE_INVALID",
            "LANE_NOT_ALLOWED",
            "LANE_NOT_CONFIGURED",
        ],
        Exit.INVALID,
    ),
    **dict.fromkeys(
        [
            "TOOL_UNREACHABLE",
            "TOOL_TIMED_OUT",
            "TOOL_BUSY",
            "TOOL_REFUSED",
            "TOOL_HTTP_ERROR",
            "TOOL_RESPONSE_INVALID",
            "RESULT_TOO_LARGE",
        ],
        Exit.TOOL_ERROR,
    ),
    "SERVICE_UNAVAILABLE": Exit.UNREACHABLE,
}


class CliError(Exception):
    """Stops a command: a message for people, the exit code, and for `--json` the reason and its facts."""

    def __init__(
        self, message: str, code: Exit = Exit.FAILURE, reason: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.facts = dict(facts or {})


def with_facts(said: str, facts: Mapping[str, Any]) -> str:
    """Returns `no such plan (plan gold, plans lite, pro)` for `no such plan`; leaves out what that says already."""
    told = [fact_text(name, value) for name, value in facts.items() if not is_told(value, said)]
    return f"{said} ({', '.join(told)})" if told else said


def fact_text(name: str, value: object) -> str:
    """Returns `timeout seconds 30`; a `detail` speaks for itself."""
    shown = ", ".join(map(str, value)) if isinstance(value, list) else fact_word(value)
    return shown if name == "detail" else f"{name.replace('_', ' ')} {shown}"


def fact_word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def is_told(value: object, said: str) -> bool:
    """Says if a sentence holds a fact, as a word of its own: `1` is not said by `1.0`."""
    parts = value if isinstance(value, list) else [value]
    return all(re.search(rf"(?<![\w.-]){re.escape(fact_word(part))}(?![\w-]|\.\w)", said) for part in parts)
