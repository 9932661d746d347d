"""Plans: what an account may ask for. They are data, read once from a YAML file."""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import yaml

from registry_service.errors import LaneInvalidError, LaneNotAllowedError

LANES = ("real_test", "production")
BUILT_IN = Path(__file__).with_name("plans.yaml")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# A lane comes from a client's header. What is told back of a wrong one is cut to this many characters.
_ECHO = 64


class PlansError(Exception):
    """A plans file that cannot be used. The message names the file and says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`default_lane` is one of `lanes`, and those are some of `LANES`."""

    name: str
    default_lane: str
    lanes: frozenset[str]

    def lane(self, requested: str) -> str:
        """Returns the lane that a call runs in; `requested` is empty when the client asked for none.

        Raises LaneInvalidError for a name that is no lane, LaneNotAllowedError for a lane outside the plan.
        """
        if not requested:
            return self.default_lane
        if requested in self.lanes:
            return requested
        if requested not in LANES:
            raise LaneInvalidError(lane=requested[:_ECHO], lanes=[*LANES])
        raise LaneNotAllowedError(lane=requested, plan=self.name, lanes=[*sorted(self.lanes)])


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    default_lane: Literal["real_test", "production"]
    lanes: list[Literal["real_test", "production"]]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    plans: dict[str, _Entry]


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML's own loader lets the last one win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := {str(key) for key in keys if keys.count(key) > 1}:
            raise yaml.constructor.ConstructorError(
                None, None, f"{', '.join(sorted(twice))} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def load_plans(path: Path | None) -> Mapping[str, Plan]:
    """Returns the plans by name: those of the file, or the built-in ones when `path` is None.

    Raises PlansError.
    """
    path = path or BUILT_IN
    try:
        text = path.read_text(encoding="utf-8")
        file = msgspec.convert(yaml.load(text, _Loader), _File)  # noqa: S506 -- a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise PlansError(f"cannot read {path}: {error}") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise PlansError(f"{path}: {' '.join(str(error).split())}") from None
    if not file.plans:
        raise PlansError(f"{path}: holds no plan")
    return MappingProxyType({name: _plan(path, name, entry) for name, entry in file.plans.items()})


def _plan(path: Path, name: str, entry: _Entry) -> Plan:
    if not _NAME.fullmatch(name):
        raise PlansError(f"{path}: plan {name!r}: a name is 1 to 64 of A-Z a-z 0-9 _ . -")
    if entry.default_lane not in entry.lanes:
        raise PlansError(f"{path}: plan {name}: default_lane {entry.default_lane} is not one of its lanes")
    return Plan(name, entry.default_lane, frozenset(entry.lanes))
