"""The status that an RPC ends with when something failed."""

from typing import Any, TypeAlias
from uuid import uuid4

import grpc
import structlog

from naru.v1 import errors_pb2, wire
from registry_service.errors import NaruError, ServiceUnavailableError
from registry_service.identity.caller import CALLER
from registry_service.storage.database import UNAVAILABLE
from registry_service.storage.trouble import cause_of
from registry_service.telemetry.traces import trace_id_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_MESSAGE_LIMIT = 300
_CODES = {code.value[0]: code for code in grpc.StatusCode}

_log = structlog.get_logger()


def failure_of(error: BaseException, method: str) -> NaruError:
    """Returns the failure that an exception means. Logs those that no client can mend."""
    if isinstance(error, NaruError) and error.reason != errors_pb2.INTERNAL:
        return error
    if isinstance(error, UNAVAILABLE):
        _log.warning("database cannot be used", method=method, cause=cause_of(error), error=type(error).__name__)
        return ServiceUnavailableError("the database cannot be used", cause=cause_of(error))
    caller = CALLER.get(None)
    trace_id = trace_id_of(caller.traceparent if caller else "") or uuid4().hex
    _log.error("internal error", method=method, trace_id=trace_id, exc_info=error)
    return NaruError(trace_id=trace_id)


def code_of(failure: NaruError) -> grpc.StatusCode:
    """Returns the canonical status code of the failure."""
    return _CODES[failure.code]


async def abort(context: Context, failure: NaruError) -> None:
    """Ends the RPC with `google.rpc.Status` of the failure. Raises AbortError unless the RPC has ended already."""
    message = str(failure)[:_MESSAGE_LIMIT]
    details = wire.pack_status(failure.code, message, errors_pb2.Reason.Name(failure.reason), failure.facts)
    await context.abort(code_of(failure), message, ((wire.STATUS_KEY, details),))
