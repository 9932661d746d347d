"""Shows or saves the result of a call, a CallToolResult, and finds the exit code that it means."""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from naru.v1.errors_pb2 import Reason
from naru_cli import answer_file
from naru_cli.call import Reply, telling
from naru_cli.failures import EXITS_BY_REASON, CliError, Exit, is_told, with_facts
from naru_cli.output import note, show, show_json

# The results that say that the tool was never asked, and why: exit codes as if they were errors.
NEVER_ASKED = frozenset(["ARGUMENTS_INVALID", "PERMISSION_DENIED"])
# What an operator does about a `detail` of TOOL_UNREACHABLE.
REMEDIES = {
    "address not allowed": "REGISTRY_ENDPOINT_NETWORKS of the registry does not admit the endpoint's address, or the "
    "address is one that is never called; `naru doctor` shows which",
    "secret not available": "REGISTRY_SECRETS_DIR of the registry must hold the secret that the definition names",
    "name not resolved": "the registry cannot resolve the host name of the endpoint's url",
    "certificate not trusted": "the endpoint needs a certificate of an authority that the registry's system or its "
    "REGISTRY_ENDPOINT_CA_FILE names",
    "no TLS": "the endpoint's url begins with https, and its server speaks no TLS that the registry knows",
    "no connection": "nothing answers at the endpoint's url, as the registry sees it",
}


class Block(msgspec.Struct):
    """Holds what is read of an MCP content block."""

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

    def failure(self, prefix: str) -> Mapping[str, Any]:
        """Returns what Naru knows of the failure; empty where the tool itself reported it.

        A tool may write anything into `_meta`. Only the gateway writes below its own prefix, and only in this shape.
        """
        found = self.meta.get(f"{prefix}/error")
        return found if self.is_error and isinstance(found, dict) and is_failure(found) else {}


class Failure(msgspec.Struct):
    """Holds the members that every failure of Naru has."""

    reason: str
    error_code: Annotated[str, msgspec.Meta(pattern=r"^E[0-9]{4}$")]
    safe_to_retry: bool
    next_action: str


def is_failure(value: object) -> bool:
    try:
        return msgspec.convert(value, Failure).reason in Reason.keys()  # noqa: SIM118  an enum of protobuf has no `in`
    except msgspec.ValidationError:
        return False


def show_result(reply: Reply, prefix: str, output: Path | None, *, as_json: bool) -> Exit:
    """Shows a result, or saves it in the file `output`; returns the exit code that it means.

    `prefix` is that of the gateway's own `_meta` keys. Raises CliError if the answer could not be saved.
    """
    result = parse(reply.result)
    failure = result.failure(prefix) if reply.failure is None else reply.failure
    code = exit_of(result, failure)
    trouble = "" if output is None else save(result, output)
    if as_json or trouble:
        show_json(msgspec.Raw(reply.result))
    else:
        show_blocks(result, saved=output is not None)
    if failure and not as_json:
        note(failure_line(failure, "\n".join(block.text for block in result.content)))
    if trouble and code is Exit.OK:
        facts = {"call_id": reply.call_id} if reply.call_id else {}
        raise CliError(f"{trouble}; the answer is shown instead", Exit.FAILURE, facts=facts)
    if trouble:
        note(f"{trouble}; the answer is shown instead")
    if code is not Exit.OK and reply.call_id:
        note(f"(call {reply.call_id}: `naru record` shows what the ledger holds of it)")
    return code


def parse(result: bytes) -> CallResult:
    try:
        return msgspec.json.decode(result, type=CallResult)
    except msgspec.ValidationError as error:
        show_json(msgspec.Raw(result))
        raise CliError(f"the answer, shown as it came, isn't a CallToolResult: {error}") from error


def exit_of(result: CallResult, failure: Mapping[str, Any]) -> Exit:
    reason = str(failure.get("reason", ""))
    if reason in NEVER_ASKED:
        return EXITS_BY_REASON[reason]
    return Exit.TOOL_ERROR if result.is_error else Exit.OK


def failure_line(failure: Mapping[str, Any], said: str) -> str:
    """Returns `TOOL_UNREACHABLE (address not allowed): REGISTRY_…`, without what was said already."""
    facts = {name: value for name, value in telling(failure).items() if not is_told(value, said)}
    line = with_facts(str(failure.get("reason", "")), facts)
    remedy = REMEDIES.get(str(failure.get("detail", "")), "")
    return f"{line}: {remedy}" if remedy else line


def binary_of(block: Block) -> str:
    """Returns base64 text; empty for a block of text."""
    return block.data or (block.resource.blob if block.resource else "")


def text_of(block: Block) -> str:
    return block.text or (block.resource.text if block.resource else "") or block.uri


def save(result: CallResult, output: Path) -> str:
    """Saves an answer; returns what went wrong, if anything did.

    The file gets the binary part if there is one, else the text. A failure's text is shown, and replaces no file.
    """
    try:
        parts = [base64.b64decode(binary, validate=True) for block in result.content if (binary := binary_of(block))]
    except binascii.Error as error:
        return f"--output: the answer holds bytes that aren't base64 ({error})"
    if not parts and not result.is_error:
        parts = ["\n".join(map(text_of, result.content)).encode()]
    try:
        for path, part in zip(answer_file.names(output, len(parts)), parts, strict=True):
            path.write_bytes(part)
            note(f"saved in {path} ({len(part)} bytes)")
    except OSError as error:
        return f"--output: cannot write {error.filename or output}: {error.strerror}"
    return ""


def show_blocks(result: CallResult, *, saved: bool) -> None:
    text_is_saved = saved and not result.is_error and not any(map(binary_of, result.content))
    for block in result.content:
        if binary := binary_of(block):
            kind = block.mime_type or (block.resource.mime_type if block.resource else "") or block.type
            size = len(binary) * 3 // 4 - binary.count("=", -2)
            note(f"[{kind}, {size} bytes{'' if saved else '; --output FILE saves it'}]")
        elif not text_is_saved:
            (note if result.is_error else show)(text_of(block))
