"""The result of a call, a CallToolResult: how it is shown, and the exit code that it means."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from registry_service.cli.access import EXITS_BY_REASON, CliError, Exit, is_told, with_facts
from registry_service.cli.call import telling
from registry_service.cli.output import note, show, show_json

# The results that say that the tool was never asked, and why: exit codes as if they were errors.
NEVER_ASKED = frozenset(["ARGUMENTS_INVALID", "PERMISSION_DENIED"])
# What an operator does about a `detail` of TOOL_UNREACHABLE.
REMEDIES = {
    "address not allowed": "REGISTRY_ENDPOINT_NETWORKS of the registry does not admit the endpoint's address, or the "
    "address is one that is never called; `naru doctor` tells which",
    "secret not available": "REGISTRY_SECRETS_DIR of the registry must hold the secret that the definition names",
    "name not resolved": "the registry cannot resolve the host name of the endpoint's url",
    "no connection": "nothing answers at the endpoint's url, as the registry sees it",
}


class Block(msgspec.Struct):
    """What is read of an MCP content block."""

    type: str
    text: str = ""
    data: str = ""
    mime_type: str = msgspec.field(name="mimeType", default="")
    uri: str = ""
    resource: "Resource | None" = None


class Resource(msgspec.Struct):
    uri: str = ""
    mime_type: str = msgspec.field(name="mimeType", default="")
    text: str = ""
    blob: str = ""


class CallResult(msgspec.Struct):
    content: list[Block] = []
    is_error: bool = msgspec.field(name="isError", default=False)
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)

    def failure(self) -> Mapping[str, Any]:
        """What Naru knows of the failure, `_meta["<prefix>/error"]`; empty where the tool itself told of it."""
        if not self.is_error:
            return {}
        found = (value for name, value in self.meta.items() if name.endswith("/error"))
        return next((value for value in found if isinstance(value, dict) and "error_code" in value), {})


def show_result(result: bytes, output: Path | None, *, as_json: bool) -> Exit:
    """Shows a CallToolResult, given as JSON text; its binary parts go to the file `output`."""
    parsed = msgspec.json.decode(result, type=CallResult)
    if output is not None:
        save_binary(parsed, output)
    if as_json:
        show_json(msgspec.Raw(result))
    else:
        for block in parsed.content:
            show_block(block, saved=output is not None, is_error=parsed.is_error)
        if failure := parsed.failure():
            note(failure_line(failure, "\n".join(block.text for block in parsed.content)))
    return exit_of(parsed)


def exit_of(result: CallResult) -> Exit:
    reason = str(result.failure().get("reason", ""))
    if reason in NEVER_ASKED:
        return EXITS_BY_REASON[reason]
    return Exit.TOOL_ERROR if result.is_error else Exit.OK


def failure_line(failure: Mapping[str, Any], said: str) -> str:
    """`TOOL_UNREACHABLE (address not allowed): REGISTRY_ENDPOINT_NETWORKS …`, without what was said already."""
    facts = {name: value for name, value in telling(failure).items() if not is_told(value, said)}
    line = with_facts(str(failure.get("reason", "")), facts)
    remedy = REMEDIES.get(str(failure.get("detail", "")), "")
    return f"{line}: {remedy}" if remedy else line


def binary_of(block: Block) -> str:
    """Base64 text; empty for a block of text."""
    return block.data or (block.resource.blob if block.resource else "")


def save_binary(result: CallResult, output: Path) -> None:
    binaries = [binary for block in result.content if (binary := binary_of(block))]
    if len(binaries) != 1:
        raise CliError(f"--output: the answer has {len(binaries)} binary parts, not one", Exit.USAGE)
    try:
        output.write_bytes(base64.b64decode(binaries[0]))
    except OSError as error:
        raise CliError(f"--output: cannot write {output}: {error.strerror}", Exit.USAGE) from error


def show_block(block: Block, *, saved: bool, is_error: bool) -> None:
    if binary := binary_of(block):
        kind = block.mime_type or (block.resource.mime_type if block.resource else "") or block.type
        size = len(binary) * 3 // 4 - binary.count("=", -2)
        note(f"[{kind}, {size} bytes{'' if saved else '; --output FILE saves it'}]")
        return
    text = block.text or (block.resource.text if block.resource else "") or block.uri
    (note if is_error else show)(text)
