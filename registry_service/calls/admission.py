"""Decides which calls may run: makes every check of a call before it runs, and records it in the ledger."""

from collections.abc import Mapping
from typing import Any

import msgspec

from naru.v1 import wire
from registry_service.calls.call import Call, Ready
from registry_service.catalog import Catalog, View, permitted
from registry_service.errors import (
    ArgumentsInvalidError,
    MissingClientCapabilityError,
    NaruError,
    ServiceUnavailableError,
    TokenInvalidError,
    ToolBusyError,
    ToolFailedError,
)
from registry_service.ledger.ledger import Admission, Ledger
from registry_service.storage.models import now_micros
from registry_service.tools.active_tool import ActiveTool
from registry_service.tools.checks import Checks
from registry_service.tools.schema_check import SchemaCheck
from registry_service.tools.violation import Violation, unreadable
from registry_service.upstreams.upstream import Prepared, Upstream

# How often a call is checked anew because the catalog changed before it could be admitted.
ATTEMPTS = 5

_decode = msgspec.json.Decoder().decode


class Admissions:
    """Decides which calls may run, and has the ledger record those that may."""

    def __init__(self, *, catalog: Catalog, ledger: Ledger, upstream: Upstream[Any], checks: Checks) -> None:
        self._catalog = catalog
        self._ledger = ledger
        self._upstream = upstream
        self._checks = checks

    async def admit(self, call: Call) -> Ready:
        """Returns the call as it was admitted; the ledger holds it, and it has a place among those of its tool.

        The place is the caller's to give back, with `leave`. Raises NaruError for whatever forbids the call: nothing of
        it has happened then, and it costs no usage.
        """
        view = self._catalog.view
        # A large value is checked once, however often the catalog changes meanwhile.
        passed: SchemaCheck | None = None
        for _ in range(ATTEMPTS):
            try:
                ready = await self._checked(view, call, passed)
            except NaruError:
                # Another replica may have changed what forbids the call.
                newest = await self._catalog.fresh()
                if newest.revision == view.revision:
                    raise
                view = newest
                continue
            if await self._recorded(call, ready):
                return ready
            passed = ready.tool.arguments
            view = await self._catalog.fresh()
        raise ServiceUnavailableError(
            "the catalog changes too often for a call to be admitted", cause="catalog_changes"
        )

    async def _recorded(self, call: Call, ready: Ready) -> bool:
        """Takes a place for the call and records it. Gives the place back unless it returns True."""
        running = ready.tool.running
        running.count += 1
        recorded = False
        try:
            recorded = await self._ledger.admit(_admission(call, ready))
        finally:
            if not recorded:
                running.count -= 1
        return recorded

    async def _checked(self, view: View, call: Call, passed: SchemaCheck | None) -> Ready:
        """Makes a call ready on a view of the catalog. Its arguments have been checked if `passed` is their check."""
        rpc = call.rpc
        if rpc.version and not call.caller.admin:
            raise TokenInvalidError(f"naming a version needs the admin token: {wire.ADMIN_TOKEN_KEY}")
        account = view.authenticate(call.caller.credential)
        lane = account.plan.lane(rpc.requested_lane)
        if rpc.version:
            tool = permitted(await self._catalog.version(rpc.name, rpc.version), account, lane)
        else:
            tool = view.resolve(rpc.name, account, lane)
        _check_capabilities(tool, rpc.client_capabilities)
        arguments = rpc.arguments or b"{}"
        if tool.arguments.is_light(arguments):
            _check_arguments(tool, arguments)
        elif tool.arguments is not passed:
            violations = await self._checks.violations(tool.arguments, arguments, account.client_id)
            if violations:
                raise _invalid(tool, violations)
        # Nothing may wait between this and the count of what runs.
        most = tool.definition.max_concurrency
        if most is not None and tool.running.count >= most:
            raise ToolBusyError(tool=tool.name, max_concurrency=most, safe_to_retry=True)
        request = self._request(tool, lane, arguments)
        return Ready(view.revision, account, lane, tool, request, trial=bool(rpc.version))

    def _request(self, tool: ActiveTool, lane: str, arguments: bytes) -> Prepared:
        try:
            prepared: Prepared = self._upstream.prepare(tool, lane, arguments)
        except ToolFailedError as error:
            error.facts = {"tool": tool.name, **error.facts}
            raise
        return prepared


def leave(ready: Ready) -> None:
    """Gives back the place that an admitted call had among those of its tool."""
    ready.tool.running.count -= 1


def _admission(call: Call, ready: Ready) -> Admission:
    return Admission(
        call_id=call.call_id,
        client_id=ready.account.client_id,
        tool=ready.tool.name,
        version=ready.tool.version,
        lane=ready.lane,
        session_id=call.rpc.session_id,
        request_id=call.rpc.jsonrpc_id,
        revision=ready.revision,
        create_time=now_micros(),
        trial=ready.trial,
    )


def _check_capabilities(tool: ActiveTool, declared: bytes) -> None:
    """Refuses a client that lacks a capability. `declared` is empty where its revision knows no such demand."""
    required = tool.definition.required_client_capabilities
    if required and declared and not _covers(_decode(declared), wanted := _decode(required)):
        raise MissingClientCapabilityError(required_capabilities=wanted)


def _covers(declared: object, required: object) -> bool:
    """Returns True if every member that is required, at any depth, is declared."""
    if not isinstance(required, Mapping):
        return True
    return isinstance(declared, Mapping) and all(
        name in declared and _covers(declared[name], value) for name, value in required.items()
    )


def _check_arguments(tool: ActiveTool, arguments: bytes) -> None:
    try:
        value = _decode(arguments)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(tool, [unreadable(error)]) from None
    if not isinstance(value, dict):
        raise _invalid(tool, [Violation("", "must be an object", "type", {"types": ["object"]})])
    if violations := tool.arguments.violations(value):
        raise _invalid(tool, violations)


def _invalid(tool: ActiveTool, violations: list[Violation]) -> ArgumentsInvalidError:
    return ArgumentsInvalidError(tool=tool.name, violations=[violation.fact() for violation in violations])
