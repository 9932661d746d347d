"""Tool definitions: the check at registration, which tells every fault, and what the rest of the service reads of them.

A definition is a manifest entry without `name`, `version` and `active`. It is stored, and its schemas are served, as
the text that came, white space between tokens aside.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec
from packaging.version import InvalidVersion, Version

from registry_service.identity.credentials import CLIENT_ID
from registry_service.tools.http_endpoint import endpoint_faults
from registry_service.tools.json_document import DocumentError, Fault, compact, members, read, shown, token
from registry_service.tools.json_schema import schema_faults
from registry_service.tools.schema_lint import near

MAX_DEFINITION_BYTES = 1024 * 1024
MAX_TEXT = 16 * 1024
MAX_TITLE = 256
# The column holds 128, and a normal form can be longer than its source.
MAX_VERSION = 64
MIN_TIMEOUT_SECONDS = 0.01
MAX_TIMEOUT_SECONDS = 24 * 3600.0
MAX_CONCURRENCY = 100_000

MAX_NAME = 128

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_ACCESS = frozenset(["plans", "accounts"])
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
ANNOTATIONS = ("title", *_HINTS)
_ICON_SOURCES = ("https://", "http://", "data:")


class Endpoint(msgspec.Struct, frozen=True):
    """Describes the HTTP endpoint of one lane.

    `url` may hold `{argument}` in its path; the values of its query, and of headers, may hold `${secret:name}`.
    """

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    result: str = "json"


class Access(msgspec.Struct, frozen=True):
    """Says who may use a version: the accounts of these plans, and these accounts by client id."""

    plans: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()

    def admits(self, client_id: str, plan: str) -> bool:
        return plan in self.plans or client_id in self.accounts


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a checked definition. JSON parts are compact JSON text as it came; `timeout` is in seconds.

    `document` is the whole, as it is stored; empty once a version is active, which needs it no more. `access` is None
    where everyone may use the version. `endpoints` has a member for one lane or more. `idempotent`: the annotations say
    that a call may be repeated.
    """

    document: bytes
    input_schema: bytes
    output_schema: bytes | None
    timeout: float | None
    max_concurrency: int | None
    access: Access | None
    required_client_capabilities: bytes | None
    endpoints: Mapping[str, Endpoint]
    idempotent: bool


def name_fault(name: object) -> str | None:
    """Returns what is wrong with a tool's name, or None."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"must be a string of 1 to {MAX_NAME} of A-Z a-z 0-9 _ . -"
    return "must not be . or ..: HTTP libraries take it for a step in a path" if name in (".", "..") else None


def read_version(text: object) -> Version:
    """Returns a version; `str()` of it is its normal form. Two that PEP 440 calls equal (1.0, v1.0.0) are one.

    Raises ValueError with a message for the author.
    """
    if not isinstance(text, str):
        raise ValueError('must be a string: in YAML, write it in quotes ("1.10" without quotes is the number 1.1)')  # noqa: TRY004
    if len(text) > MAX_VERSION or not text.isascii():
        raise ValueError(f"must be a version (PEP 440) of at most {MAX_VERSION} ASCII characters")
    try:
        return Version(text)
    except InvalidVersion:
        raise ValueError(f"{shown(text)} is not a version (PEP 440), such as 1.2.0") from None


def parse_definition(raw: bytes, plans: Collection[str] | None = None) -> Definition | list[Fault]:
    """Returns the definition, or all its faults. `plans` are the names that `access.plans` may hold; None means any."""
    if len(raw) > MAX_DEFINITION_BYTES:
        return [Fault("", f"is larger than {MAX_DEFINITION_BYTES} bytes")]
    try:
        value = read(raw)
    except DocumentError as error:
        return [error.fault]
    if not isinstance(value, dict):
        return [Fault("", "must be an object")]
    text = compact(raw)
    texts = members(text)
    return list(_faults(value, texts, plans)) or _build(text, texts)


def stored_definition(document: bytes) -> Definition | list[Fault]:
    """Reads a definition that was checked when it was registered, perhaps by other rules than today's."""
    try:
        definition = _build(document, members(document))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return [Fault("", f"can't be read: {error}")]
    except KeyError as error:
        return [Fault("", f"needs the member {error.args[0]}")]
    if definition.timeout is None and "timeout" in members(document):
        return [Fault("/timeout", "must be a duration")]
    return definition


def _faults(value: dict[str, object], texts: dict[str, bytes], plans: Collection[str] | None) -> Iterator[Fault]:
    for name in value:
        if name not in _MEMBERS:
            yield Fault(token(name), f"{shown(name)} is not a member of a definition{near(name, _MEMBERS)}")
    for name in ("description", "inputSchema", "endpoint"):
        if name not in value:
            yield Fault("", f"needs the member {name}")
    for name, check in _CHECKS.items():
        if name in value:
            yield from check(value[name], token(name))
    for name in ("inputSchema", "outputSchema"):
        if name in value:
            yield from schema_faults(texts[name], value[name], token(name), arguments=name == "inputSchema")
    if "access" in value:
        yield from _access(value["access"], "/access", plans)
    if "endpoint" in value:
        yield from endpoint_faults(value["endpoint"], "/endpoint", value.get("inputSchema"))


def _description(value: object, at: str) -> Iterator[Fault]:
    if not isinstance(value, str) or not value.strip():
        yield Fault(at, "must be a string that is not empty: it is what a model chooses the tool by")
    elif len(value) > MAX_TEXT:
        yield Fault(at, f"is longer than {MAX_TEXT} characters")


def _title(value: object, at: str) -> Iterator[Fault]:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TITLE:
        yield Fault(at, f"must be a string of 1 to {MAX_TITLE} characters")


def _annotations(value: object, at: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(at, "must be an object")
        return
    yield from _nulls(value, at)
    for name in _HINTS:
        if not isinstance(value.get(name, False), bool):
            yield Fault(at + token(name), "must be true or false")
    if not isinstance(value.get("title", ""), str):
        yield Fault(f"{at}/title", "must be a string")


def _icons(value: object, at: str) -> Iterator[Fault]:
    if not isinstance(value, list):
        yield Fault(at, "must be an array of objects")
        return
    for index, icon in enumerate(value):
        if isinstance(icon, dict):
            yield from _icon(icon, f"{at}/{index}")
        else:
            yield Fault(f"{at}/{index}", "must be an object with a src")


def _icon(icon: dict[str, object], at: str) -> Iterator[Fault]:
    yield from _nulls(icon, at)
    source = icon.get("src")
    if not isinstance(source, str) or not source.startswith(_ICON_SOURCES):
        yield Fault(f"{at}/src", "must be an https, http or data URI")
    if not isinstance(icon.get("mimeType", ""), str):
        yield Fault(f"{at}/mimeType", "must be a string")
    sizes = icon.get("sizes", [])
    if not isinstance(sizes, list) or not all(isinstance(size, str) for size in sizes):
        yield Fault(f"{at}/sizes", "must be an array of strings")
    if icon.get("theme", "light") not in ("light", "dark"):
        yield Fault(f"{at}/theme", "must be light or dark")


def _object(value: object, at: str) -> Iterator[Fault]:
    if isinstance(value, dict):
        yield from _nulls(value, at)
    else:
        yield Fault(at, "must be an object")


def _capabilities(value: object, at: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(at, "must be an object: MCP ClientCapabilities")
        return
    for name, capability in value.items():
        if not isinstance(capability, dict):
            yield Fault(at + token(name), "must be an object")


def _nulls(value: object, at: str) -> Iterator[Fault]:
    """MCP clients reject the whole list for one null member."""
    if value is None:
        yield Fault(at, "must not be null: leave the member out")
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _nulls(child, at + token(name))


def _timeout(value: object, at: str) -> Iterator[Fault]:
    wanted = seconds(value)
    if wanted is None:
        yield Fault(at, "must be a number of seconds, or a string such as 500ms, 10s, 2m or 1h")
    elif not MIN_TIMEOUT_SECONDS <= wanted <= MAX_TIMEOUT_SECONDS:
        yield Fault(at, f"must be at least {MIN_TIMEOUT_SECONDS} and at most {MAX_TIMEOUT_SECONDS:.0f} seconds")


def seconds(value: object) -> float | None:
    """Returns a duration of a definition in seconds, or None for what isn't one."""
    if isinstance(value, str):
        parts = _DURATION.fullmatch(value)
        return float(parts[1]) * _UNITS[parts[2]] if parts else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _max_concurrency(value: object, at: str) -> Iterator[Fault]:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_CONCURRENCY:
        yield Fault(at, f"must be an integer from 1 to {MAX_CONCURRENCY}")


def _access(value: object, at: str, plans: Collection[str] | None) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(at, "must be an object with plans, accounts or both")
        return
    for name in value.keys() - _ACCESS:
        yield Fault(at + token(name), f"{shown(name)} is not a member of access{near(name, _ACCESS)}")
    if not any(value.get(name) for name in ("plans", "accounts")):
        yield Fault(at, "must name a plan or an account; leave it out to let everyone use the tool")
    for name in ("plans", "accounts"):
        entries = value.get(name, [])
        if not isinstance(entries, list):
            yield Fault(f"{at}/{name}", "must be an array of strings")
            continue
        for index, entry in enumerate(entries):
            if message := _access_fault(name, entry, plans):
                yield Fault(f"{at}/{name}/{index}", message)


def _access_fault(kind: str, entry: object, plans: Collection[str] | None) -> str | None:
    if not isinstance(entry, str):
        return "must be a string"
    if kind == "accounts":
        return None if CLIENT_ID.fullmatch(entry) else f"{shown(entry)} is not a client id"
    if plans is None or entry in plans:
        return None
    return f"{shown(entry)} is not a plan; the plans are {', '.join(sorted(plans))}"


_CHECKS: Mapping[str, Callable[[object, str], Iterator[Fault]]] = {
    "title": _title,
    "description": _description,
    "annotations": _annotations,
    "icons": _icons,
    "_meta": _object,
    "timeout": _timeout,
    "maxConcurrency": _max_concurrency,
    "requiredClientCapabilities": _capabilities,
}
_MEMBERS = frozenset([*_CHECKS, "inputSchema", "outputSchema", "access", "endpoint"])


class _Hints(msgspec.Struct, frozen=True, rename="camel"):
    read_only_hint: bool = False
    idempotent_hint: bool = False


class _Entry(msgspec.Struct, rename="camel"):
    """Gives the members of a definition without faults their types; those that stay JSON text aren't here."""

    endpoint: dict[str, Endpoint]
    annotations: _Hints = _Hints()
    timeout: str | float | None = None
    max_concurrency: int | None = None
    access: Access | None = None


_ENTRY = msgspec.json.Decoder(_Entry)


def _build(text: bytes, texts: Mapping[str, bytes]) -> Definition:
    entry = _ENTRY.decode(text)
    return Definition(
        document=text,
        input_schema=texts["inputSchema"],
        output_schema=texts.get("outputSchema"),
        timeout=seconds(entry.timeout),
        max_concurrency=entry.max_concurrency,
        access=entry.access,
        required_client_capabilities=texts.get("requiredClientCapabilities"),
        endpoints=entry.endpoint,
        idempotent=entry.annotations.read_only_hint or entry.annotations.idempotent_hint,
    )
