"""gateway/registry_client.py: what a failed RPC means."""

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from gateway.failures.table import TABLE
from gateway.registry_client import failure_of


def rpc_error(code: grpc.StatusCode, details: str = "", reason: str = "", domain: str = "naru", **facts: str):
    trailers: tuple[tuple[str, bytes], ...] = ()
    if reason:
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=facts))
        trailers = (("grpc-status-details-bin", status_pb2.Status(details=[packed]).SerializeToString()),)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=details)


class TestFailureOf:
    @pytest.mark.parametrize("reason", sorted(TABLE))
    def test_the_registry_names_it(self, reason):
        failure = failure_of(rpc_error(grpc.StatusCode.UNKNOWN, reason=reason, tool='"echo"'), may_have_run=True)
        assert failure.reason == reason
        assert failure.facts == {"tool": "echo"}

    @pytest.mark.parametrize(
        "details",
        [
            "connections to all backends failing; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
            "errors resolving registry:50051: [field:hostname lookup error]",
            "DNS resolution failed for registry:50051: C-ares status is not ARES_SUCCESS",
            "empty address list: ",
        ],
    )
    def test_what_was_never_sent_is_safe_to_retry(self, details):
        failure = failure_of(rpc_error(grpc.StatusCode.UNAVAILABLE, details), may_have_run=True)
        assert failure.reason == "SERVICE_UNAVAILABLE"

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    def test_of_any_other_broken_call_the_outcome_is_unknown(self, code):
        failure = failure_of(rpc_error(code, "Stream removed (Socket closed)"), may_have_run=True)
        expected = "SERVICE_UNAVAILABLE" if code is grpc.StatusCode.UNIMPLEMENTED else "CALL_OUTCOME_UNKNOWN"
        assert failure.reason == expected

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    def test_what_only_reads_has_no_outcome(self, code):
        failure = failure_of(rpc_error(code, "Stream removed (Socket closed)"), may_have_run=False)
        assert failure.reason in {"SERVICE_UNAVAILABLE", "INTERNAL"}
        if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}:
            assert failure.reason == "SERVICE_UNAVAILABLE"

    def test_a_result_that_gRPC_will_not_carry(self):
        details = "Stream removed (CLIENT: Received message larger than max (5000010 vs. 4194304))"
        failure = failure_of(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, details), may_have_run=True)
        assert failure.reason == "RESULT_TOO_LARGE"
        assert failure.facts["safe_to_retry"] is False

    def test_a_request_that_gRPC_will_not_carry(self):
        details = "SERVER: Received message larger than max (3 vs. 1)"
        failure = failure_of(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, details), may_have_run=True)
        assert failure.reason == "BODY_TOO_LARGE"

    def test_a_strangers_error_info_says_nothing(self):
        error = rpc_error(grpc.StatusCode.UNAVAILABLE, reason="TOOL_NOT_FOUND", domain="googleapis.com")
        assert failure_of(error, may_have_run=True).reason == "CALL_OUTCOME_UNKNOWN"

    def test_broken_trailers_say_nothing(self):
        trailers = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff"))
        error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailers, details="")
        assert failure_of(error, may_have_run=True).reason == "CALL_OUTCOME_UNKNOWN"

    def test_a_reason_from_the_future(self):
        error = rpc_error(grpc.StatusCode.UNKNOWN, reason="NOT_INVENTED_YET")
        assert failure_of(error, may_have_run=True).reason == "CALL_OUTCOME_UNKNOWN"
        assert failure_of(error, may_have_run=False).reason == "INTERNAL"

    def test_admin_reasons_are_translated(self):
        bad_cursor = rpc_error(grpc.StatusCode.INVALID_ARGUMENT, reason="PAGE_TOKEN_INVALID")
        assert failure_of(bad_cursor, may_have_run=False).reason == "INVALID_PARAMS"
        our_token = rpc_error(grpc.StatusCode.PERMISSION_DENIED, reason="TOKEN_INVALID")
        assert failure_of(our_token, may_have_run=True).reason == "SERVICE_UNAVAILABLE"
