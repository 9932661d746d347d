"""Reads manifests, and says what they would change. Pure; registry.py reads and writes the tables."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from naru.v1 import registry_pb2
from registry_service.tools.definition import Definition, name_fault, parse_definition, read_version
from registry_service.tools.definition_lint import Site, definition_warnings, name_warnings
from registry_service.tools.json_document import (
    DocumentError,
    Fault,
    compact,
    items,
    join,
    members,
    read,
    same,
    shown,
    token,
)
from registry_service.tools.schema_lint import near

MAX_FAULTS = 100

Change = registry_pb2.ApplyManifestResponse.Change
_OWN_MEMBERS = ("name", "version", "active")


class ManifestFault(NamedTuple):
    """`pointer` is a JSON Pointer into the manifest; `tool` is empty where the name is not known."""

    pointer: str
    tool: str
    message: str


class Entry(NamedTuple):
    """Holds one entry without faults of its own. `active` None leaves the version's state as it is."""

    pointer: str
    tool: str
    version: Version
    active: bool | None
    definition: Definition


class Known(NamedTuple):
    """Describes a version number that is registered, or was and is deleted. `spelling` is how it is stored."""

    spelling: str
    definition: bytes
    active: bool
    deleted: bool


class Steps(NamedTuple):
    """Says what a manifest does. With faults it does nothing, and the rest is empty.

    `changes` has one element an entry. `created` are to be stored, inactive; then `activated` become active and
    `deactivated` inactive: both hold tools and versions as they are stored.
    """

    faults: list[ManifestFault]
    changes: list[Change]
    created: list[Entry]
    activated: set[tuple[str, str]]
    deactivated: set[tuple[str, str]]


def read_manifest(raw: bytes, plans: Collection[str]) -> tuple[list[Entry], list[ManifestFault]]:
    """Returns the entries without faults of their own, and the faults of the others. `plans` are those that exist."""
    try:
        value = read(raw)
    except DocumentError as error:
        return [], [ManifestFault(error.fault.pointer, "", error.fault.message)]
    if not isinstance(value, dict) or not isinstance(value.get("tools"), list):
        return [], [ManifestFault("", "", "must be an object whose member tools is an array")]
    faults = [
        ManifestFault(token(name), "", f"{shown(name)} is not a member of a manifest{near(name, ['tools'])}")
        for name in value
        if name != "tools"
    ]
    entries = []
    for index, text in enumerate(items(members(compact(raw))["tools"])):
        entry, found = _read_entry(value["tools"][index], text, f"/tools/{index}", plans)
        faults += found
        entries += [entry] if entry else []
    return entries, faults + list(_conflicts(entries))


def manifest_warnings(entries: Sequence[Entry], site: Site) -> list[ManifestFault]:
    """Returns what is allowed in the entries and likely to be a slip."""
    return list(itertools.islice(_warnings(entries, site), MAX_FAULTS))


def _warnings(entries: Sequence[Entry], site: Site) -> Iterator[ManifestFault]:
    for entry in entries:
        for message in name_warnings(entry.tool):
            yield ManifestFault(f"{entry.pointer}/name", entry.tool, message)
        for pointer, message in definition_warnings(entry.definition, site):
            yield ManifestFault(entry.pointer + pointer, entry.tool, message)


def _read_entry(
    value: object, text: bytes, at: str, plans: Collection[str]
) -> tuple[Entry | None, list[ManifestFault]]:
    if not isinstance(value, dict):
        return None, [ManifestFault(at, "", "must be an object")]
    rest = {member: part for member, part in members(text).items() if member not in _OWN_MEMBERS}
    definition = parse_definition(join(rest), plans)
    faults = list(_head_faults(value))
    if isinstance(definition, list) or faults:
        faults += definition if isinstance(definition, list) else []
        tool = value["name"] if name_fault(value.get("name")) is None else ""
        return None, [ManifestFault(at + fault.pointer, tool, fault.message) for fault in faults]
    return Entry(at, value["name"], read_version(value["version"]), value.get("active"), definition), []


def _head_faults(value: dict[str, object]) -> Iterator[Fault]:
    if message := name_fault(value.get("name")):
        yield Fault("/name", message)
    try:
        read_version(value.get("version"))
    except ValueError as error:
        yield Fault("/version", str(error))
    if not isinstance(value.get("active", False), bool):
        yield Fault("/active", "must be true or false; leave it out to change nothing")


def _conflicts(entries: Sequence[Entry]) -> Iterator[ManifestFault]:
    seen: dict[tuple[str, Version], str] = {}
    active: dict[str, str] = {}
    for entry in entries:
        key = entry.tool, entry.version
        if key in seen:
            yield ManifestFault(entry.pointer, entry.tool, f"is the same version as {seen[key]}")
        elif entry.active and entry.tool in active:
            yield ManifestFault(
                f"{entry.pointer}/active", entry.tool, f"{active[entry.tool]} is active too: only one version can be"
            )
        seen.setdefault(key, entry.pointer)
        if entry.active:
            active.setdefault(entry.tool, entry.pointer)


def plan_steps(
    entries: Sequence[Entry], faults: Sequence[ManifestFault], known: Mapping[str, Mapping[Version, Known]]
) -> Steps:
    """Returns what the entries change of what is known, by tool and version, of the tools that they name."""
    faults = [*faults, *_contradictions(entries, known)]
    if faults:
        return Steps(faults[:MAX_FAULTS], [], [], set(), set())
    before = {(tool, row.spelling) for tool, rows in known.items() for row in rows.values() if row.active}
    created = [entry for entry in entries if entry.version not in known.get(entry.tool, {})]
    keys = [(entry.tool, _spelling(entry, known)) for entry in entries]
    after = _active_after(entries, keys, before)
    new = {(entry.tool, str(entry.version)) for entry in created}
    changes = [
        Change(tool=key[0], version=key[1], action=_action(new=key in new, before=key in before, after=key in after))
        for key in keys
    ]
    return Steps([], changes, created, after - before, before - after)


def _spelling(entry: Entry, known: Mapping[str, Mapping[Version, Known]]) -> str:
    row = known.get(entry.tool, {}).get(entry.version)
    return str(entry.version) if row is None else row.spelling


def _contradictions(entries: Sequence[Entry], known: Mapping[str, Mapping[Version, Known]]) -> Iterator[ManifestFault]:
    for entry in entries:
        row = known.get(entry.tool, {}).get(entry.version)
        if row is None:
            continue
        if row.deleted:
            message = f"version {entry.version} was used and deleted; take another number"
            yield ManifestFault(f"{entry.pointer}/version", entry.tool, message)
        elif not same(entry.definition.document, row.definition):
            message = f"version {entry.version} is registered with another definition; a change needs a new version"
            yield ManifestFault(entry.pointer, entry.tool, message)


def _active_after(
    entries: Sequence[Entry], keys: Sequence[tuple[str, str]], before: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    started = {key for entry, key in zip(entries, keys, strict=True) if entry.active}
    stopped = {key for entry, key in zip(entries, keys, strict=True) if entry.active is False}
    switched = {tool for tool, _ in started}
    return started | {key for key in before - stopped if key[0] not in switched}


def _action(*, new: bool, before: bool, after: bool) -> Change.Action.ValueType:
    if new:
        return Change.CREATED_AND_ACTIVATED if after else Change.CREATED
    if before == after:
        return Change.UNCHANGED
    return Change.ACTIVATED if after else Change.DEACTIVATED
