"""Makes a trial: one call of a version, active or not, by the admin as an account, past the gateway."""

from collections.abc import Callable, Iterator

import grpc
import msgspec

from naru.v1 import execution_pb2, execution_pb2_grpc, registry_pb2, wire
from naru.v1.errors_pb2 import Reason
from naru_cli.access import Access
from naru_cli.arguments import Types, defined_types
from naru_cli.call import Course, Progress, Reply, Report, basic
from naru_cli.channel import admin_metadata, open_channel
from naru_cli.command import registry
from naru_cli.failures import CliError, Exit
from naru_cli.state import CREDENTIAL_FILE, FROM_RUN, STATE_DIRECTORY


def trial_types(access: Access, tool: str, version: str) -> Types:
    """Asks the registry for the types of a version's arguments. Raises CliError."""
    request = registry_pb2.GetToolVersionRequest(tool=tool, version=version)
    return defined_types(registry("GetToolVersion", request, access).definition)


def trial_request(tool: str, version: str, arguments: bytes, lane: str) -> execution_pb2.CallToolRequest:
    return execution_pb2.CallToolRequest(
        name=tool,
        version=version,
        arguments=arguments,
        requested_lane=lane,
        stream=True,
        on_disconnect=execution_pb2.CallToolRequest.CONTINUE,
    )


def credential_of(access: Access) -> str:
    """Returns the account's credential. Raises CliError for that of a `make run`, if the call would go elsewhere."""
    credential = access.require_credential()
    of_run = access.credential_from == f"{STATE_DIRECTORY}/{CREDENTIAL_FILE}"
    if of_run and access.execution.setting != FROM_RUN:
        raise CliError(access.absent("NARU_CREDENTIALS", CREDENTIAL_FILE, access.execution.setting), Exit.REFUSED)
    return credential


def call_version(
    access: Access,
    request: execution_pb2.CallToolRequest,
    seconds: float | None,
    report: Report | None,
    course: Course,
) -> Reply:
    """Makes the call, and reports its progress. `course` gets what is known before the result. Raises CliError."""
    target = access.execution
    authorization = (wire.AUTHORIZATION_KEY, basic(credential_of(access)))
    metadata = (*admin_metadata(access, target), authorization)
    with open_channel(access, target) as channel:
        events = execution_pb2_grpc.ExecutionStub(channel).CallTool(request, metadata=metadata, timeout=seconds)
        try:
            return last_result(events, report, course)
        except grpc.RpcError as error:
            if wire.unpack_status(error.trailing_metadata()) is not None or not course.call_id:
                raise
            message = f"the connection to {target} was lost: {error.code().name}"
            raise course.failure(message, Exit.UNREACHABLE) from error


def last_result(
    events: Iterator[execution_pb2.CallToolEvent], report: Callable[[Progress], None] | None, course: Course
) -> Reply:
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "accepted":
            course.call_id = event.accepted.call_id
        elif kind == "progress" and report is not None:
            total = event.progress.total if event.progress.HasField("total") else None
            report(Progress(event.progress.progress, total, event.progress.message))
        elif kind == "result":
            return reply(event.result)
    raise CliError("the registry ended the call without a result", Exit.UNREACHABLE)


def reply(result: execution_pb2.CallToolEvent.Result) -> Reply:
    """Returns the result as the JSON text of a CallToolResult."""
    members = {
        "content": msgspec.Raw(result.content or b"[]"),
        "structuredContent": msgspec.Raw(result.structured_content),
        "isError": result.is_error,
        "_meta": msgspec.Raw(result.meta),
    }
    text = msgspec.json.encode({name: value for name, value in members.items() if value != msgspec.Raw()})
    failure: dict[str, object] = {}
    if result.HasField("failure"):
        failure = {"reason": Reason.Name(result.failure.reason), **wire.unpack_facts(result.failure.facts)}
    return Reply(text, result.call_id, failure)
