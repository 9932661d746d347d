"""Checks over a socket which calls may run: a forbidden one is neither run nor recorded."""

import asyncio

import grpc
import pytest
from sqlalchemy import update

from naru.v1 import (
    execution_pb2,
    registry_pb2,
)
from registry_service.storage.models import CatalogRevision
from tests.support.registry_in_process import (
    AS_ADMIN,
    BOTH_DATABASES,
    SCHEMA,
    failing,
)


class TestAdmission:
    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"credential": "nrci_nobody:wrong"}, "UNAUTHENTICATED"),
            ({"requested_lane": "moon"}, "LANE_INVALID"),
            ({"requested_lane": "real_test"}, "LANE_NOT_CONFIGURED"),
            ({"name": "other"}, "TOOL_NOT_FOUND"),
            ({"arguments": b'{"n":"x"}'}, "ARGUMENTS_INVALID"),
            ({"arguments": b"[]"}, "ARGUMENTS_INVALID"),
            ({"arguments": b"{oops"}, "ARGUMENTS_INVALID"),
            ({"arguments": b'{"n":' + b"[" * 100_000}, "ARGUMENTS_INVALID"),
            ({"client_capabilities": b'{"elicitation":{}}'}, "MISSING_CLIENT_CAPABILITY"),
        ],
        ids=lambda value: str(value)[:40],
    )
    async def test_what_may_not_run_is_neither_run_nor_recorded(self, house, fields, reason):
        await house.tool("/echo", requiredClientCapabilities={"elicitation": {"url": {}}})
        failure = await failing(house.call(**fields))
        assert failure.reason == reason
        assert "call_id" not in failure.facts
        assert (await house.rows(), await house.usage(), house.endpoint.executions) == ([], 0, 0)

    async def test_violations_are_told_by_pointer(self, house):
        await house.tool("/echo/{id}", inputSchema={**SCHEMA, "required": ["id"]})
        facts = (await failing(house.call(b'{"n":"x","id":"a"}'))).facts
        assert [violation["pointer"] for violation in facts["violations"]] == ["/n"]
        facts = (await failing(house.call(b'{"id":".."}'))).facts
        assert [violation["pointer"] for violation in facts["violations"]] == ["/id"]
        assert facts["tool"] == "tool"

    async def test_capabilities_are_demanded_at_any_depth_of_clients_that_declare_them(self, house):
        await house.tool("/echo", requiredClientCapabilities={"elicitation": {"url": {}}})
        await house.call(client_capabilities=b"")
        await house.call(client_capabilities=b'{"elicitation":{"url":{},"form":{}},"more":1}')
        facts = (await failing(house.call(client_capabilities=b"{}"))).facts
        assert facts == {"required_capabilities": {"elicitation": {"url": {}}}}

    async def test_lanes_have_their_own_endpoints(self, house):
        lanes = {lane: {"url": house.endpoint.url(f"/target/{lane}")} for lane in ("production", "real_test")}
        await house.tool("/", endpoint=lanes)
        made = await house.new_account("lite")
        await house.call()
        await house.call(credential=f"{made.account.client_id}:{made.secret}")
        await house.call(requested_lane="real_test")
        seen = [(request.path, request.header("X-Naru-Lane")) for request in house.endpoint.received]
        assert [path for path, _ in seen] == ["/target/production", "/target/real_test", "/target/real_test"]
        assert all(path.endswith(lane) for path, lane in seen)

    async def test_two_active_versions_run_neither(self, house):
        await house.tool("/echo", version="1.0.0")
        await house.tool("/echo", version="2.0.0")
        request = registry_pb2.ActivateToolVersionRequest(tool="tool", version="1.0.0", keep_others_active=True)
        await house.registry.ActivateToolVersion(request, metadata=AS_ADMIN)
        failure = await failing(house.call())
        assert (failure.reason, failure.facts["active_versions"]) == ("TOOL_VERSION_AMBIGUOUS", ["1.0.0", "2.0.0"])
        assert house.endpoint.executions == 0
        activate = registry_pb2.ActivateToolVersionRequest(tool="tool", version="2.0.0")
        await house.registry.ActivateToolVersion(activate, metadata=AS_ADMIN)
        await house.call()
        assert house.endpoint.received[0].header("X-Naru-Version") == "2.0.0"

    @BOTH_DATABASES
    async def test_the_admin_tries_a_version_before_anybody_gets_it(self, house):
        await house.tool("/echo", version="2.0.0rc1")
        await house.tool("/echo")
        assert await house.tried("2.0.0rc1") == "2.0.0rc1"
        assert await house.tried("v2.0-rc.1") == "2.0.0rc1"
        assert await house.tried("1.0") == "1.0.0"
        await house.call()
        versions = ["2.0.0rc1", "2.0.0rc1", "1.0.0", "1.0.0"]
        assert [request.header("X-Naru-Version") for request in house.endpoint.received] == versions
        rows = await house.rows()
        assert [(row.version, row.trial) for row in rows] == list(zip(versions, [True, True, True, False], strict=True))
        assert (await house.get(rows[0].call_id)).trial
        assert await house.usage() == 4

    @pytest.mark.parametrize("version", ["2.0.0", "1.0.1", "1.0.0.dev1", "nonsense", "1" * 5000, "1.0.0'; --"])
    async def test_a_version_that_is_not_there_cannot_be_tried(self, house, version):
        await house.tool("/echo")
        await house.tool("/echo", version="2.0.0", name="another")
        failure = await failing(house.tried(version))
        assert failure.reason == "TOOL_VERSION_NOT_FOUND"
        assert failure.facts == {"tool": "tool", "version": version[:128]}
        assert (await house.rows(), house.endpoint.executions) == ([], 0)

    async def test_a_version_is_tried_by_the_admin_only_and_for_an_account(self, house):
        await house.tool("/echo")
        assert (await failing(house.call(version="1.0.0"))).reason == "TOKEN_INVALID"
        assert (await failing(house.tried("1.0.0", credential="nrci_x:nrcs_x"))).reason == "UNAUTHENTICATED"
        request = execution_pb2.CallToolRequest(name="tool", version="1.0.0")
        assert (await failing(house.stub.CallTool(request, metadata=AS_ADMIN).read())).reason == "UNAUTHENTICATED"
        assert (await house.rows(), house.endpoint.executions) == ([], 0)

    async def test_a_trial_obeys_what_the_version_says(self, house):
        await house.tool("/echo", version="2.0.0", access={"plans": ["pro"]})
        await house.tool("/echo", version="3.0.0", inputSchema={"type": "object", "required": ["b"]})
        await house.tool("/gate", version="4.0.0", maxConcurrency=1)
        await house.tool("/echo")
        assert (await failing(house.tried("2.0.0"))).reason == "PERMISSION_DENIED"
        assert (await failing(house.tried("3.0.0"))).reason == "ARGUMENTS_INVALID"
        assert (await failing(house.tried("3.0.0", requested_lane="real_test"))).reason == "LANE_NOT_CONFIGURED"
        running = asyncio.ensure_future(house.tried("4.0.0"))
        await house.endpoint.arrived()
        assert (await failing(house.tried("4.0.0"))).reason == "TOOL_BUSY"
        house.endpoint.gate.set()
        assert await running == "4.0.0"

    async def test_a_secret_that_is_not_there_costs_nothing(self, house):
        await house.tool("/echo", headers={"X-Api-Key": "${secret:key}"})
        failure = await failing(house.call())
        assert failure.reason == "TOOL_UNREACHABLE"
        assert failure.facts == {
            "tool": "tool",
            "detail": "secret not available",
            "secret": "key",
            "safe_to_retry": False,
        }
        assert (await house.rows(), house.endpoint.executions) == ([], 0)

    @BOTH_DATABASES
    async def test_a_tool_takes_as_many_calls_as_it_says(self, house):
        await house.tool("/gate", maxConcurrency=2)
        running = [asyncio.ensure_future(house.call()) for _ in range(2)]
        for _ in running:
            await house.endpoint.arrived()
        failure = await failing(house.call())
        assert failure.reason == "TOOL_BUSY"
        assert failure.facts == {"tool": "tool", "max_concurrency": 2, "safe_to_retry": True}
        house.endpoint.gate.set()
        await asyncio.gather(*running)
        await house.call()
        assert (len(await house.rows()), await house.usage()) == (3, 3)

    async def test_a_call_that_was_refused_frees_its_place(self, house):
        await house.tool("/commit-then-drop", maxConcurrency=1)
        for _ in range(3):
            assert (await failing(house.call())).reason == "TOOL_UNREACHABLE"

    @BOTH_DATABASES
    async def test_a_change_by_another_replica_is_seen_before_a_call_is_admitted_or_refused(self, house):
        """The view of this process is stale each time; nothing tells it."""
        await house.tool("/echo")
        fresh, house.catalog.view = house.catalog.view, house.catalog.view
        made = await house.new_account()
        await house.tool("/echo", name="young")
        house.catalog.view = fresh
        await house.call(name="young", credential=f"{made.account.client_id}:{made.secret}")
        newest = house.catalog.view
        deactivate = registry_pb2.DeactivateToolVersionRequest(tool="tool", version="1.0.0")
        await house.registry.DeactivateToolVersion(deactivate, metadata=AS_ADMIN)
        house.catalog.view = newest
        assert (await failing(house.call())).reason == "TOOL_NOT_ACTIVE"
        assert [row.tool for row in await house.rows()] == ["young"]

    @BOTH_DATABASES
    @pytest.mark.parametrize(("changes", "reason"), [(4, ""), (5, "SERVICE_UNAVAILABLE")])
    async def test_a_catalog_may_change_so_often_before_a_call_is_given_up(self, house, monkeypatch, changes, reason):
        """Another replica changes it whenever this one has looked; the last look finds it at rest, or does not."""
        await house.tool("/echo")
        stale, fresh, looks = house.catalog.view, house.catalog.fresh, 0

        async def look():
            nonlocal looks
            looks += 1
            return stale if looks < changes else await fresh()

        monkeypatch.setattr(house.catalog, "fresh", look)
        async with house.database.change() as session:
            session.info["unchanged"] = True
            await session.execute(update(CatalogRevision).values(revision=CatalogRevision.revision + 1))
        if reason:
            failure = await failing(house.call())
            assert (failure.reason, failure.code) == (reason, grpc.StatusCode.UNAVAILABLE)
        else:
            await house.call()
        assert looks == changes
        assert house.endpoint.executions == (0 if reason else 1)
