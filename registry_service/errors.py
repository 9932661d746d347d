"""The one hierarchy of failures of the registry service.

Each class stands for one `Reason` of the contract and the canonical gRPC code it travels with. `rpc/status.py` turns
an instance into `google.rpc.Status` with one `ErrorInfo`; nothing else does. A test proves that every reason has a
class here or belongs to the gateway alone.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

from google.rpc import code_pb2

from naru.v1 import errors_pb2

Fact: TypeAlias = str | int | float | bool | Sequence["Fact"] | Mapping[str, "Fact"] | None


class NaruError(Exception):
    """A failure with a name.

    `facts` are what a client may be told: JSON values by name. `str(error)` is for logs and the CLI, in English, and
    must not hold secrets, arguments or results.
    """

    reason: ClassVar[errors_pb2.Reason.ValueType] = errors_pb2.INTERNAL
    code: ClassVar[int] = code_pb2.INTERNAL

    def __init__(self, message: str = "", **facts: Fact) -> None:
        super().__init__(message or errors_pb2.Reason.Name(self.reason))
        self.facts: Mapping[str, Fact] = facts


class ServiceUnavailableError(NaruError):
    """Nothing was admitted: the identical request may be sent again."""

    reason = errors_pb2.SERVICE_UNAVAILABLE
    code = code_pb2.UNAVAILABLE


class CallOutcomeUnknownError(NaruError):
    """The call was admitted and its outcome could not be learned or recorded."""

    reason = errors_pb2.CALL_OUTCOME_UNKNOWN
    code = code_pb2.UNKNOWN


class MissingClientCapabilityError(NaruError):
    """Facts: `required_capabilities`, an MCP `ClientCapabilities` object."""

    reason = errors_pb2.MISSING_CLIENT_CAPABILITY
    code = code_pb2.FAILED_PRECONDITION


class UnauthenticatedError(NaruError):
    reason = errors_pb2.UNAUTHENTICATED
    code = code_pb2.UNAUTHENTICATED


class AccountSuspendedError(NaruError):
    reason = errors_pb2.ACCOUNT_SUSPENDED
    code = code_pb2.PERMISSION_DENIED


class PermissionDeniedError(NaruError):
    """Facts: `tool`."""

    reason = errors_pb2.PERMISSION_DENIED
    code = code_pb2.PERMISSION_DENIED


class ToolNotFoundError(NaruError):
    """Facts: `tool`."""

    reason = errors_pb2.TOOL_NOT_FOUND
    code = code_pb2.NOT_FOUND


class ToolNotActiveError(NaruError):
    """Facts: `tool`."""

    reason = errors_pb2.TOOL_NOT_ACTIVE
    code = code_pb2.NOT_FOUND


class ToolVersionAmbiguousError(NaruError):
    """Facts: `tool`, `active_versions`."""

    reason = errors_pb2.TOOL_VERSION_AMBIGUOUS
    code = code_pb2.FAILED_PRECONDITION


class ArgumentsInvalidError(NaruError):
    """Facts: `tool`, `violations`: a list of `{pointer, message}`, at most 20 and 4 KiB."""

    reason = errors_pb2.ARGUMENTS_INVALID
    code = code_pb2.INVALID_ARGUMENT


class LaneInvalidError(NaruError):
    """Facts: `lane`, `lanes` (those that exist)."""

    reason = errors_pb2.LANE_INVALID
    code = code_pb2.INVALID_ARGUMENT


class LaneNotAllowedError(NaruError):
    """Facts: `lane`, `plan`, `lanes` (those that the plan allows)."""

    reason = errors_pb2.LANE_NOT_ALLOWED
    code = code_pb2.PERMISSION_DENIED


class LaneNotConfiguredError(NaruError):
    """Facts: `tool`, `lane`."""

    reason = errors_pb2.LANE_NOT_CONFIGURED
    code = code_pb2.FAILED_PRECONDITION


class ToolFailedError(NaruError):
    """The tool could not be asked or did not answer properly.

    Facts of each subclass: `tool`, `call_id` (once admitted), `safe_to_retry` (a boolean: provably not sent, or the
    tool is idempotent), and what the subclass names.
    """


class ToolUnreachableError(ToolFailedError):
    """Facts: `detail`: a short phrase in English; `secret`: the name of one that the endpoint needs and isn't there."""

    reason = errors_pb2.TOOL_UNREACHABLE
    code = code_pb2.UNAVAILABLE


class ToolTimedOutError(ToolFailedError):
    """Facts: `timeout_seconds`, `limit`: which limit fired (`tool`, `client`, `server`)."""

    reason = errors_pb2.TOOL_TIMED_OUT
    code = code_pb2.DEADLINE_EXCEEDED


class ToolBusyError(ToolFailedError):
    """Facts: `max_concurrency`."""

    reason = errors_pb2.TOOL_BUSY
    code = code_pb2.RESOURCE_EXHAUSTED


class ToolRefusedError(ToolFailedError):
    """Facts: `http_status`."""

    reason = errors_pb2.TOOL_REFUSED
    code = code_pb2.FAILED_PRECONDITION


class ToolResponseInvalidError(ToolFailedError):
    """Facts: `detail`: a short word for what was wrong, in English, never the answer itself."""

    reason = errors_pb2.TOOL_RESPONSE_INVALID
    code = code_pb2.FAILED_PRECONDITION


class ResultTooLargeError(ToolFailedError):
    """Facts: `limit_bytes`."""

    reason = errors_pb2.RESULT_TOO_LARGE
    code = code_pb2.FAILED_PRECONDITION


class TokenInvalidError(NaruError):
    reason = errors_pb2.TOKEN_INVALID
    code = code_pb2.PERMISSION_DENIED


class RequestInvalidError(NaruError):
    """Facts: `field`, `detail`."""

    reason = errors_pb2.REQUEST_INVALID
    code = code_pb2.INVALID_ARGUMENT


class DefinitionInvalidError(NaruError):
    """Facts: `faults`: a list of `{pointer, message}`, cut to 4 KiB."""

    reason = errors_pb2.DEFINITION_INVALID
    code = code_pb2.INVALID_ARGUMENT


class ToolVersionNotFoundError(NaruError):
    """Facts: `tool`, `version`."""

    reason = errors_pb2.TOOL_VERSION_NOT_FOUND
    code = code_pb2.NOT_FOUND


class ToolVersionExistsError(NaruError):
    """Facts: `tool`, `version`."""

    reason = errors_pb2.TOOL_VERSION_EXISTS
    code = code_pb2.ALREADY_EXISTS


class AccountNotFoundError(NaruError):
    """Facts: `client_id`."""

    reason = errors_pb2.ACCOUNT_NOT_FOUND
    code = code_pb2.NOT_FOUND


class PlanNotFoundError(NaruError):
    """Facts: `plan`, `plans`."""

    reason = errors_pb2.PLAN_NOT_FOUND
    code = code_pb2.INVALID_ARGUMENT


class SecretNotFoundError(NaruError):
    """Facts: `secret_id`."""

    reason = errors_pb2.SECRET_NOT_FOUND
    code = code_pb2.NOT_FOUND


class CallNotFoundError(NaruError):
    """Facts: `call_id`."""

    reason = errors_pb2.CALL_NOT_FOUND
    code = code_pb2.NOT_FOUND


class PageTokenInvalidError(NaruError):
    reason = errors_pb2.PAGE_TOKEN_INVALID
    code = code_pb2.INVALID_ARGUMENT
