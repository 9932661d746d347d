from google.rpc import code_pb2

from naru.v1 import errors_pb2
from registry_service import errors
from registry_service.errors import NaruError

# The registry never sees HTTP or JSON-RPC: these are the gateway's alone.
GATEWAY_ONLY = {
    "PARSE_ERROR",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "INVALID_PARAMS",
    "HEADER_MISMATCH",
    "UNSUPPORTED_PROTOCOL_VERSION",
    "HOST_NOT_ALLOWED",
    "ORIGIN_NOT_ALLOWED",
    "METHOD_NOT_ALLOWED",
    "NOT_ACCEPTABLE",
    "UNSUPPORTED_MEDIA_TYPE",
    "BODY_TOO_LARGE",
    "AUTHORIZATION_MALFORMED",
    "PATH_NOT_FOUND",
    "AUTHORIZATION_TOO_LARGE",
}
# The tool did answer: a result, with a Failure.
IN_RESULTS = {"TOOL_HTTP_ERROR"}


def classes() -> list[type[NaruError]]:
    found = [NaruError]
    for parent in found:
        found.extend(parent.__subclasses__())
    return [cls for cls in found if cls.__module__ == errors.__name__ and cls is not errors.ToolFailedError]


def test_every_reason_has_one_class_or_is_the_gateways():
    named = [errors_pb2.Reason.Name(cls.reason) for cls in classes()]
    assert len(named) == len(set(named))
    elsewhere = GATEWAY_ONLY | IN_RESULTS
    assert set(named) | elsewhere | {"REASON_UNSPECIFIED"} == set(errors_pb2.Reason.keys())
    assert not set(named) & elsewhere


def test_every_code_is_a_canonical_failure():
    assert all(cls.code in code_pb2.Code.values() and cls.code != code_pb2.OK for cls in classes())


def test_a_retry_is_promised_by_availability_alone():
    """gRPC clients retry UNAVAILABLE by themselves: only failures before anything was done may carry it."""
    unavailable = {cls.__name__ for cls in classes() if cls.code == code_pb2.UNAVAILABLE}
    assert unavailable == {"ServiceUnavailableError", "ToolUnreachableError"}


def test_an_error_without_a_message_says_its_reason():
    assert str(errors.ToolBusyError(tool="echo")) == "TOOL_BUSY"
    assert errors.ToolBusyError("busy", tool="echo").facts == {"tool": "echo"}
