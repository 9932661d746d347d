"""Holds what one look of `naru doctor` found."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    # Something could not be looked at, or may be meant so.
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """Holds what one look found. `setting` names what to change, `remedy` says how."""

    check: str
    state: State
    message: str
    setting: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)
