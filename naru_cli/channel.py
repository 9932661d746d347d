"""Opens connections to the registry service, and says what a failed RPC means."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from naru.v1 import wire
from naru_cli.access import Access, Target
from naru_cli.failures import EXITS_BY_REASON, CliError, Exit, with_facts

# The time limits of RPCs, in seconds. No RPC waits for anything, but a large manifest takes its time.
RPC_TIMEOUT = 15.0
RPC_TIMEOUTS = {"ApplyManifest": 120.0}
# The largest message that the registry takes. It keeps its own pages well below.
MAX_MESSAGE = 16 << 20


@contextmanager
def open_channel(access: Access, target: Target) -> Iterator[grpc.Channel]:
    """Opens a channel to a service. A failed RPC inside leaves as the CliError that it means."""
    options = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE)]
    if access.tls is None:
        channel = grpc.insecure_channel(target.address, options)
    else:
        tls = grpc.ssl_channel_credentials(access.tls.ca, access.tls.key, access.tls.certificate)
        channel = grpc.secure_channel(target.address, tls, options)
    try:
        yield channel
    except grpc.RpcError as error:
        raise failure(error, target) from error
    finally:
        channel.close()


def failure(error: grpc.RpcError, target: Target) -> CliError:
    """Returns the CliError that a failed RPC means."""
    code, details = error.code(), error.details() or ""
    info = wire.unpack_status(error.trailing_metadata())
    if info is None:
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"the registry at {target} did not answer in time; what was asked for may have been done"
            return CliError(message, Exit.UNREACHABLE)
        if code is grpc.StatusCode.UNAVAILABLE:
            return CliError(f"the registry at {target} is out of reach: {details}", Exit.UNREACHABLE)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            remedy = "NARU_REGISTRY must lead to one with `registry` and `accounts` in its REGISTRY_SERVICES"
            remedy = f"{remedy}, NARU_EXECUTION to one with `execution`"
            return CliError(f"what answers at {target} does not serve this: {remedy}", Exit.UNREACHABLE)
        return CliError(f"{code.name}: {details}")
    facts = info.facts
    said = details if details not in ("", info.reason) else info.reason.lower().replace("_", " ")
    # The registry's words on a malformed request hold its facts already.
    message = said if info.reason == "REQUEST_INVALID" and said == details else with_facts(said, facts)
    if info.reason == "TOKEN_INVALID":
        message = f"the registry refused the admin token of {target.token_from}"
    return CliError(message, EXITS_BY_REASON.get(info.reason, Exit.FAILURE), info.reason, facts)


def admin_metadata(access: Access, target: Target) -> list[tuple[str, str]]:
    return [(wire.ADMIN_TOKEN_KEY, access.require_admin_token(target))]


def serving(channel: grpc.Channel, timeout: float, service: str = "") -> bool:
    """Asks if a process, or one of its services, can serve; waits for the connection.

    Raises grpc.RpcError.
    """
    health = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health.Check(request, timeout=timeout, wait_for_ready=True)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
