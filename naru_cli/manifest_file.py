"""Turns a manifest as people write it (YAML, or JSON) into the JSON text that `Registry.ApplyManifest` takes.

Read as YAML 1.2 reads it: `no` and `2024-01-01` are strings, and a number keeps the digits that were written. What JSON
cannot say, or a reader could take for something else, is refused with its line and column; nothing is guessed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

PLAIN = "plain"
STRING, MAPPING, SEQUENCE = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq"))
NULLS = frozenset(["", "~", "null", "Null", "NULL"])
BOOLEANS = {"true": "true", "True": "true", "TRUE": "true", "false": "false", "False": "false", "FALSE": "false"}
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
# Texts that YAML takes for a number and JSON writes otherwise, or not at all.
OTHER_NUMBER = re.compile(
    r"[-+]?(0[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+|[0-9]+\.|\.[0-9]+|[0-9]+)(\.?[0-9]*)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    re.ASCII,
)
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
MAX_DEPTH = 100
# Aliases may add so many values to those that a file spells out.
MAX_REPEATED = 100_000


class Place(NamedTuple):
    """Names a place in the file; both count from 1."""

    line: int
    column: int


class Fault(NamedTuple):
    place: Place | None
    message: str


class ManifestError(Exception):
    """Says that a file is no manifest. `faults` holds everything that is wrong with it."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = faults


class Manifest(NamedTuple):
    """Holds a manifest as JSON text, and where each value stands, by JSON Pointer (nothing for a file that was JSON).

    `unused` names the variables that nothing asked for.
    """

    text: bytes
    places: Mapping[str, Place]
    unused: tuple[str, ...] = ()


def read(path: Path, variables: Mapping[str, str]) -> Manifest:
    """Reads a file; one named `*.json` is passed on as it is.

    `${NAME}` in the strings below `endpoint` is replaced by `variables[NAME]`: where a tool runs differs from one
    installation to the next, and nothing else should. Raises ManifestError, OSError.
    """
    return parse(path.read_bytes(), variables, is_json=path.suffix == ".json")


def parse(source: bytes, variables: Mapping[str, str], *, is_json: bool = False) -> Manifest:
    """Does as `read`, with what a file holds."""
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise ManifestError([Fault(None, f"line {line} is not UTF-8 text")]) from error
    return parse_json(text, variables) if is_json else parse_yaml(text, variables)


def parse_json(text: str, variables: Mapping[str, str]) -> Manifest:
    if variables:
        raise ManifestError([Fault(None, "--set fills in YAML files only, and this is a JSON file")])
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError([Fault(None, f"not JSON: {error}")]) from error
    return Manifest(text.encode(), {})


def parse_yaml(text: str, variables: Mapping[str, str]) -> Manifest:
    root = compose(text)
    if root is None:
        raise ManifestError([Fault(None, "the file is empty")])
    # A value takes a character at least: only aliases can make more of them.
    writer = JsonWriter(variables, max_nodes=len(text) + MAX_REPEATED)
    written = writer.value(root, ())
    if writer.faults:
        # A fault that an alias repeats is told once.
        raise ManifestError(list(dict.fromkeys(writer.faults)))
    return Manifest(written.encode(), writer.places, tuple(name for name in variables if name not in writer.used))


class Loader(yaml.CSafeLoader):
    """Leaves the meaning of unquoted scalars to `JsonWriter`. Ten times as fast as the loader in Python."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: object) -> str:
        if kind is yaml.ScalarNode and isinstance(implicit, tuple) and implicit[0]:
            return PLAIN
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]


def compose(text: str) -> yaml.Node | None:
    """Returns the file as nodes; raises ManifestError."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ", ".join(filter(None, [error.context, error.problem])) or "not YAML"
        raise ManifestError([Fault(place_of(mark) if mark else None, message)]) from error
    except yaml.YAMLError as error:
        raise ManifestError([Fault(None, unreadable(text, error))]) from error
    except RecursionError as error:
        raise ManifestError([Fault(None, "nested too deeply")]) from error
    return node


def unreadable(text: str, error: yaml.YAMLError) -> str:
    """Says where a character is that YAML does not allow: PyYAML knows its offset only."""
    position = getattr(error, "position", None)
    if not isinstance(position, int):
        return str(error)
    line = text.count("\n", 0, position) + 1
    return f"line {line} holds the character U+{ord(text[position]):04X}, which YAML does not allow"


def place_of(mark: yaml.Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)


# The way from the root to a value: keys and indexes.
Steps = tuple[str | int, ...]


def pointer(path: Steps) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@dataclass
class JsonWriter:
    """Writes nodes as JSON text. Goes on after a fault, so that all of them are found; the text is then of no use."""

    variables: Mapping[str, str]
    max_nodes: int
    faults: list[Fault] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    nodes: int = 0

    def fault(self, node: yaml.Node, message: str) -> str:
        self.faults.append(Fault(place_of(node.start_mark), message))
        return "null"

    def value(self, node: yaml.Node, path: Steps) -> str:
        self.nodes += 1
        if len(path) > MAX_DEPTH:
            return self.fault(node, "nested too deeply, or an alias inside its own anchor")
        if self.nodes > self.max_nodes:
            raise ManifestError([Fault(place_of(node.start_mark), "the aliases make too much of this file")])
        self.places[pointer(path)] = place_of(node.start_mark)
        if node.tag not in (PLAIN, STRING, MAPPING, SEQUENCE):
            return self.fault(node, f"the YAML tag {node.tag.replace('tag:yaml.org,2002:', '!!')} has no JSON form")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return "[" + ",".join(self.value(item, (*path, index)) for index, item in enumerate(node.value)) + "]"
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: Steps) -> str:
        seen: dict[str, yaml.Node] = {}
        members = []
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode) or (key.tag == PLAIN and key.value == "<<"):
                self.fault(key, "a key is a plain name here: neither a list or mapping nor the merge key <<")
                continue
            name: str = key.value
            if name in seen:
                first = place_of(seen[name].start_mark)
                self.fault(key, f"the key {name!r} is here a second time; the first is in line {first.line}")
                continue
            seen[name] = key
            members.append(f"{string(name)}:{self.value(item, (*path, name))}")
        return "{" + ",".join(members) + "}"

    def scalar(self, node: yaml.Node, path: Steps) -> str:
        text: str = node.value
        if node.tag == STRING or is_version(path):
            return string(self.substitute(node, text, path))
        if text in NULLS:
            return "null"
        if text in BOOLEANS:
            return BOOLEANS[text]
        if JSON_NUMBER.fullmatch(text):
            return text
        if OTHER_NUMBER.fullmatch(text):
            return self.fault(node, f"write {text} as JSON writes numbers, or in quotes if it is a string")
        return string(self.substitute(node, text, path))

    def substitute(self, node: yaml.Node, text: str, path: Steps) -> str:
        if not is_endpoint(path):
            return text

        def replace(match: re.Match[str]) -> str:
            name = match[1]
            self.used.add(name)
            if name not in self.variables:
                self.fault(node, f"${{{name}}} has no value: pass --set {name}=…")
            return self.variables.get(name, "")

        return VARIABLE.sub(replace, text)


def is_endpoint(path: Steps) -> bool:
    """Says if this is within a tool's endpoint: elsewhere, in a description say, `${NAME}` is just text."""
    return len(path) > 3 and path[0] == "tools" and path[2] == "endpoint"


def is_version(path: Steps) -> bool:
    """Versions look like numbers: an unquoted 1.10 means the version 1.10, not 1.1."""
    return len(path) == 3 and path[0] == "tools" and path[2] == "version"
