"""The registry service over a socket, on both databases."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from typing import cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from sqlalchemy import event, select

from naru.v1 import accounts_pb2, registry_pb2_grpc
from naru.v1 import registry_pb2 as pb
from registry_service import registry
from registry_service.catalog import Catalog
from registry_service.identity.credentials import digest
from registry_service.identity.plans import Plan
from registry_service.registry import RegistryServicer
from registry_service.rpc.border import Gate, GuardedServer
from registry_service.rpc.pagination import PageTokens
from registry_service.rpc.tokens import Tokens
from registry_service.storage.models import Account, Secret, Tool, ToolVersion
from registry_service.tools.definition_lint import Site
from registry_service.tools.manifest import plan_steps
from registry_service.upstreams.reach import Reach
from tests.support.samples import arguments, definition, raw
from tests.support.waiting import eventually

ADMIN, SERVICE = "admin-token-of-the-tests", "service-token-of-the-tests"
PEPPER = b"pepper-of-the-tests-of-32-bytes!"
CLIENT_ID, LITE, SECRET = "nrci_" + "a" * 21, "nrci_" + "b" * 21, "a-secret"
PLANS = {
    "lite": Plan("lite", "real_test", frozenset({"real_test"})),
    "pro": Plan("pro", "production", frozenset({"production", "real_test"})),
}
Action = pb.ApplyManifestResponse.Change.Action


class Client:
    """The service's client, as the admin or with an account's credential."""

    def __init__(self, channel, catalog):
        self._stub = registry_pb2_grpc.RegistryStub(channel)
        self.catalog = catalog

    async def admin(self, method, **fields):
        request = getattr(pb, f"{method}Request")(**fields)
        return await getattr(self._stub, method)(request, metadata=(("x-naru-admin-token", ADMIN),), timeout=20)

    async def catalog_of(self, client_id=CLIENT_ID, secret=SECRET, **fields):
        basic = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        metadata = (("x-naru-token", SERVICE), ("authorization", f"Basic {basic}"))
        return await self._stub.ListCatalog(pb.ListCatalogRequest(**fields), metadata=metadata, timeout=20)

    async def create(self, tool="stats", version="1.0", **changes):
        return await self.admin("CreateToolVersion", tool=tool, version=version, definition=raw(definition(**changes)))

    async def activate(self, tool="stats", version="1.0", **fields):
        return await self.admin("ActivateToolVersion", tool=tool, version=version, **fields)

    async def apply(self, *entries, **fields):
        return await self.admin("ApplyManifest", manifest=raw({"tools": entries}), **fields)

    async def names(self, **fields):
        return [json.loads(entry.tool)["name"] for entry in (await self.catalog_of(**fields)).entries]


@asynccontextmanager
async def serving(database):
    catalog = Catalog(database, PLANS, PEPPER)
    await catalog.load()
    gate, server = Gate("starting"), grpc.aio.server()
    guarded = cast(grpc.aio.Server, GuardedServer(server, gate, Tokens(ADMIN, SERVICE)))
    registry_pb2_grpc.add_RegistryServicer_to_server(
        RegistryServicer(database, catalog, PageTokens(PEPPER), Reach((), None), Site(30.0, None)), guarded
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gate.open()
    try:
        options = [("grpc.max_receive_message_length", 16 * 1024 * 1024)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield Client(channel, catalog)
    finally:
        await server.stop(0)


ACCOUNTS = {CLIENT_ID: "pro", LITE: "lite"}


@pytest.fixture
async def client(database):
    state, times = accounts_pb2.Account.ACTIVE, {"create_time": 1, "update_time": 1}
    async with database.change() as session:
        for client_id, plan in ACCOUNTS.items():
            session.add(Account(client_id=client_id, display_name="n", plan=plan, state=state, **times))
            await session.flush()
            stored = digest(PEPPER, SECRET)
            session.add(Secret(id=plan, client_id=client_id, digest=stored, hint="0000", create_time=1))
    async with serving(database) as client:
        yield client


async def failing(call):
    """Awaits a call that fails, and returns its code, its reason and its facts."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return caught.value.code().name, info.reason, {name: json.loads(value) for name, value in info.metadata.items()}


def entry(name="stats", version="1.0", **changes):
    return {"name": name, "version": version, **definition(**changes)}


async def test_a_version_is_registered_inactive_and_in_normal_form(client):
    created = await client.create("stats", "v1.00")
    assert (created.tool, created.version, created.active) == ("stats", "1.0", False)
    assert json.loads(created.definition) == definition()
    assert created.create_time.seconds > 1_700_000_000
    assert await client.admin("GetToolVersion", tool="stats", version="1.0.0") == created
    tool = await client.admin("GetTool", name="stats")
    assert (tool.name, list(tool.active_versions), tool.version_count) == ("stats", [], 1)
    assert await client.names() == []


async def test_a_definition_is_kept_text_for_text(client):
    text = raw(definition()).replace(b'"required"', b'"maxProperties": 1.0, "required"')
    await client.admin("CreateToolVersion", tool="stats", version="1.0", definition=text)
    await client.activate()
    stored = (await client.admin("GetToolVersion", tool="stats", version="1.0")).definition
    assert b'"maxProperties":1.0,"required":["text"]' in stored
    assert b'"maxProperties":1.0,"required":["text"]' in (await client.catalog_of()).entries[0].tool


async def test_a_definition_with_faults_is_refused_with_each_of_them(client):
    await client.create()
    await client.activate()
    code, reason, facts = await failing(client.create("stats", "2.0", description="", timeout="soon"))
    assert (code, reason) == ("INVALID_ARGUMENT", "DEFINITION_INVALID")
    assert [fault["pointer"] for fault in facts["faults"]] == ["/description", "/timeout"]
    assert (await client.admin("GetTool", name="stats")).version_count == 1
    assert await client.names() == ["stats"]
    properties = {f"p{number}": {"type": "nothing"} for number in range(1000)}
    _, _, facts = await failing(client.create("stats", "2.0", inputSchema=arguments(**properties)))
    assert 10 < len(facts["faults"]) <= 20
    long = {f"unknown member {number}" * 10: 1 for number in range(200)}
    _, _, facts = await failing(client.create("stats", "2.0", **long))
    assert 1 < len(json.dumps(facts["faults"])) <= 4500


async def test_a_bad_name_is_refused(client):
    for name in ("New Tool", "a/b", "x" * 129, ".", "..", "echo\n", "", "a\x00"):
        code, reason, facts = await failing(client.create(name))
        assert (code, reason, facts["field"]) == ("INVALID_ARGUMENT", "REQUEST_INVALID", "tool")
        unknown = ("NOT_FOUND", "TOOL_NOT_FOUND", {"tool": name[:128]})
        assert await failing(client.admin("GetTool", name=name)) == unknown


async def test_a_bad_version_is_refused(client):
    await client.create()
    for version in ("", "latest", "1.0\x00", "9" * 200):
        for call in (client.create("stats", version), client.activate("stats", version)):
            code, reason, facts = await failing(call)
            assert (code, reason, facts["field"]) == ("INVALID_ARGUMENT", "REQUEST_INVALID", "version")


async def test_a_version_is_registered_once(client):
    await client.create()
    for spelling in ("1.0", "v1.0", "1.00", "1.0.0"):
        code, reason, facts = await failing(client.create("stats", spelling, title="t"))
        assert (code, reason) == ("ALREADY_EXISTS", "TOOL_VERSION_EXISTS")
        assert facts == {"tool": "stats", "version": "1.0"}
    assert json.loads((await client.admin("GetToolVersion", tool="stats", version="1.0")).definition) == definition()


async def test_what_is_not_there_is_named(client):
    await client.create()
    for call in (
        client.admin("GetToolVersion", tool="stats", version="v2.0"),
        client.activate("stats", "2.0"),
        client.admin("DeactivateToolVersion", tool="stats", version="2.0"),
    ):
        assert await failing(call) == ("NOT_FOUND", "TOOL_VERSION_NOT_FOUND", {"tool": "stats", "version": "2.0"})
    for call in (
        client.admin("GetTool", name="echo"),
        client.admin("DeleteTool", name="echo"),
        client.admin("ListToolVersions", tool="echo"),
        client.admin("GetToolVersion", tool="echo", version="1.0"),
        client.activate("echo"),
        client.admin("DeactivateToolVersion", tool="echo", version="1.0"),
    ):
        assert await failing(call) == ("NOT_FOUND", "TOOL_NOT_FOUND", {"tool": "echo"})


async def test_activation_switches_and_can_keep_others(client):
    for version in ("1.9", "1.10", "2.0"):
        await client.create("stats", version)
    assert list((await client.activate("stats", "1.9")).active_versions) == ["1.9"]
    both = await client.activate("stats", "v1.10.0", keep_others_active=True)
    assert list(both.active_versions) == ["1.10", "1.9"]
    assert await client.names() == []
    assert list((await client.activate("stats", "1.10", keep_others_active=True)).active_versions) == ["1.10", "1.9"]
    switched = await client.activate("stats", "2.0")
    assert list(switched.active_versions) == ["2.0"]
    assert switched.update_time.ToNanoseconds() > both.update_time.ToNanoseconds()
    assert await client.names() == ["stats"]
    off = await client.admin("DeactivateToolVersion", tool="stats", version="2.0")
    assert list(off.active_versions) == []
    assert await client.names() == []


async def test_what_changes_nothing_leaves_the_revision_alone(client, database):
    await client.create()
    await client.create("stats", "2.0")
    await client.activate()
    revision = await database.revision()
    before = await client.admin("GetTool", name="stats")
    assert await client.activate() == before
    assert await client.admin("DeactivateToolVersion", tool="stats", version="2.0") == before
    response = await client.apply(entry() | {"active": True}, entry("stats", "2.0"))
    assert [change.action for change in response.changes] == [Action.UNCHANGED] * 2
    assert await database.revision() == revision


async def test_a_change_is_in_the_view_when_its_method_returns(client):
    await client.create()
    await client.activate()
    assert client.catalog.view.listing(client.catalog.view.accounts[CLIENT_ID], "production")
    await client.admin("DeactivateToolVersion", tool="stats", version="1.0")
    assert not client.catalog.view.listing(client.catalog.view.accounts[CLIENT_ID], "production")


async def test_a_deleted_tool_is_gone_and_its_numbers_with_it(client):
    await client.create()
    await client.activate()
    await client.admin("DeleteTool", name="stats")
    assert await client.names() == []
    assert list((await client.admin("ListTools")).tools) == []
    assert (await failing(client.admin("GetToolVersion", tool="stats", version="1.0")))[1] == "TOOL_NOT_FOUND"
    assert (await failing(client.admin("DeleteTool", name="stats")))[1] == "TOOL_NOT_FOUND"
    assert (await failing(client.create("stats", "v1.0.0")))[1] == "TOOL_VERSION_EXISTS"
    faults = (await client.apply(entry())).faults
    assert [(fault.pointer, fault.tool) for fault in faults] == [("/tools/0/version", "stats")]
    assert (await failing(client.admin("GetTool", name="stats")))[1] == "TOOL_NOT_FOUND"


async def test_a_deleted_tool_comes_back_with_a_new_number(client):
    first = await client.create()
    await client.activate()
    await client.admin("DeleteTool", name="stats")
    await client.create("stats", "1.1")
    tool = await client.admin("GetTool", name="stats")
    assert (list(tool.active_versions), tool.version_count) == ([], 1)
    assert tool.create_time.ToNanoseconds() > first.create_time.ToNanoseconds()
    versions = (await client.admin("ListToolVersions", tool="stats")).tool_versions
    assert [version.version for version in versions] == ["1.1"]


async def pages(client, method, field, size, **fields):
    """Every page of a list, as lists of items."""
    found, token = [], ""
    while True:
        response = await client.admin(method, page_size=size, page_token=token, **fields)
        found.append(list(getattr(response, field)))
        token = response.next_page_token
        if not token:
            return found
        assert len(found) < 20


async def test_tools_are_listed_by_the_bytes_of_their_names(client):
    names = ["b", "a", "B", "_", "a.b", "a-b", "ab", "a_b", "Z9"]
    await client.apply(*[entry(name) for name in names])
    found = await pages(client, "ListTools", "tools", 4)
    assert [[tool.name for tool in page] for page in found] == [
        sorted(names)[:4],
        sorted(names)[4:8],
        sorted(names)[8:],
    ]
    assert [tool.name for page in await pages(client, "ListTools", "tools", 0) for tool in page] == sorted(names)
    assert [len(page) for page in await pages(client, "ListTools", "tools", 9)] == [9]


async def test_versions_are_listed_newest_first(client):
    versions = ["1.9", "1.10", "2.0rc1", "2.0", "0.1", "1!0.1"]
    await client.apply(*[entry("stats", version) for version in versions])
    found = await pages(client, "ListToolVersions", "tool_versions", 4, tool="stats")
    assert [[version.version for version in page] for page in found] == [
        ["1!0.1", "2.0", "2.0rc1", "1.10"],
        ["1.9", "0.1"],
    ]
    assert json.loads(found[0][0].definition) == definition()


async def test_a_page_ends_before_it_is_too_large(client, monkeypatch):
    monkeypatch.setattr(registry, "MAX_PAGE_BYTES", 5000)
    for number in range(5):
        name, version = f"t{number}", f"1.{number}"
        long = {"description": "x" * 2000}
        await client.apply(entry(name, "1", **long) | {"active": True}, entry("stats", version, **long))
    found = await pages(client, "ListToolVersions", "tool_versions", 0, tool="stats")
    assert [len(page) for page in found] == [2, 2, 1]
    first = await client.catalog_of()
    assert [json.loads(found.tool)["name"] for found in first.entries] == ["t0", "t1"]
    assert await client.names(page_token=first.next_page_token) == ["t2", "t3"]
    monkeypatch.setattr(registry, "MAX_PAGE_BYTES", 10)
    assert await client.names() == ["t0"]


def token(*position):
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


BAD_TOKENS = [
    *("x", "é", "====", "AAAA", token(), token("catalog"), token("tools", 5), token("other", "a")),
    *(token("tools", "a\x00"), token("tools", "a", "b"), token("tools", "a") + "\n", "-" * 5000),
]


async def test_a_page_token_of_somebody_else_is_refused(client):
    await client.create()
    wanted: tuple[str, str, dict[str, object]] = ("INVALID_ARGUMENT", "PAGE_TOKEN_INVALID", {})
    for bad in BAD_TOKENS:
        assert await failing(client.admin("ListTools", page_token=bad)) == wanted
        assert await failing(client.admin("ListToolVersions", tool="stats", page_token=bad)) == wanted
        assert await failing(client.catalog_of(page_token=bad)) == wanted


async def test_a_page_token_is_for_its_own_list(client):
    await client.apply(*[entry("a", version) for version in ("1", "2", "3")], entry("b"), entry("c"))
    versions = (await client.admin("ListToolVersions", tool="a", page_size=1)).next_page_token
    tools = (await client.admin("ListTools", page_size=1)).next_page_token
    assert (await failing(client.admin("ListToolVersions", tool="b", page_token=versions)))[1] == "PAGE_TOKEN_INVALID"
    assert (await failing(client.admin("ListToolVersions", tool="a", page_token=tools)))[1] == "PAGE_TOKEN_INVALID"
    assert (await failing(client.admin("ListTools", page_token=versions)))[1] == "PAGE_TOKEN_INVALID"
    broken = token("versions of a", "no version")
    assert (await failing(client.admin("ListToolVersions", tool="a", page_token=broken)))[1] == "PAGE_TOKEN_INVALID"


async def test_a_negative_page_size_is_refused(client):
    await client.create()
    refused = ("INVALID_ARGUMENT", "REQUEST_INVALID", {"field": "page_size", "detail": "negative"})
    assert await failing(client.admin("ListTools", page_size=-1)) == refused
    assert await failing(client.admin("ListToolVersions", tool="stats", page_size=-1)) == refused
    assert await failing(client.catalog_of(page_size=-1)) == refused


async def test_a_manifest_is_applied_as_a_whole(client):
    response = await client.apply(
        entry(active=True), entry("echo", "1.0"), entry("stats", "2.0", title="t") | {"active": False}
    )
    assert [(change.tool, change.version, change.action) for change in response.changes] == [
        ("stats", "1.0", Action.CREATED_AND_ACTIVATED),
        ("echo", "1.0", Action.CREATED),
        ("stats", "2.0", Action.CREATED),
    ]
    assert await client.names() == ["stats"]
    response = await client.apply(
        entry("stats", "2.0", title="t") | {"active": True}, entry("echo") | {"active": False}
    )
    assert [change.action for change in response.changes] == [Action.ACTIVATED, Action.UNCHANGED]
    assert list((await client.admin("GetTool", name="stats")).active_versions) == ["2.0"]
    assert json.loads((await client.catalog_of()).entries[0].tool)["title"] == "t"


async def test_a_manifest_with_one_fault_changes_nothing(client, database):
    await client.apply(entry(active=True))
    revision = await database.revision()
    for bad in (entry("echo", description=""), entry("stats", "1.0", title="other")):
        response = await client.apply(entry("new") | {"active": True}, entry("stats", "2.0") | {"active": True}, bad)
        assert list(response.changes) == []
        assert [(fault.pointer.split("/")[2], fault.tool) for fault in response.faults] == [("2", bad["name"])]
    assert await database.revision() == revision
    assert [tool.name for tool in (await client.admin("ListTools")).tools] == ["stats"]
    assert await client.names() == ["stats"]


async def test_a_broken_template_costs_its_own_tool_only(client):
    await client.apply(entry(active=True))
    broken = entry("broken", endpoint={"production": {"url": "http://a.test/{user"}})
    assert [fault.pointer for fault in (await client.apply(broken)).faults] == ["/tools/0/endpoint/production/url"]
    assert await client.names() == ["stats"]


async def test_faults_are_told_up_to_a_hundred(client):
    response = await client.apply(*[entry(f"t{number}", description="") for number in range(150)])
    assert len(response.faults) == 100


async def test_what_is_no_manifest_is_a_fault_and_no_failure(client):
    for text in (b"", b"[" * 100_000, b'{"tools":[],"tools":[]}'):
        assert [fault.pointer for fault in (await client.admin("ApplyManifest", manifest=text)).faults] == [""]


async def test_a_manifest_can_be_tried(client, database):
    revision = await database.revision()
    response = await client.apply(entry(active=True), validate_only=True)
    assert [change.action for change in response.changes] == [Action.CREATED_AND_ACTIVATED]
    assert (await client.apply(entry(description=""), validate_only=True)).faults
    assert await database.revision() == revision
    assert list((await client.admin("ListTools")).tools) == []


async def test_a_manifest_knows_the_plans(client):
    response = await client.apply(entry(access={"plans": ["gold"]}))
    assert [fault.pointer for fault in response.faults] == ["/tools/0/access/plans/0"]
    code, reason, _ = await failing(client.create(access={"plans": ["gold"]}))
    assert (code, reason) == ("INVALID_ARGUMENT", "DEFINITION_INVALID")


async def test_manifests_at_once_are_applied_one_after_the_other(client):
    def switched(number):
        return client.apply(entry("stats", f"1.{number}") | {"active": True}, entry("same") | {"active": True})

    responses = await asyncio.gather(*[switched(number) for number in range(8)])
    actions = [response.changes[1].action for response in responses]
    assert sorted(actions) == [Action.UNCHANGED] * 7 + [Action.CREATED_AND_ACTIVATED]
    tool = await client.admin("GetTool", name="stats")
    assert (len(tool.active_versions), tool.version_count) == (1, 8)


async def test_a_large_manifest_takes_few_statements(client, database):
    """Row by row, 10 000 tools held the catalog's lock, for which every call waits, for 12 seconds."""
    statements = []
    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    names = [f"t{n:04}" for n in range(2500)]
    for version in ("1.0", "2.0"):  # which makes the tools, then changes them and switches
        statements.clear()
        answer = await client.apply(*[entry(name, version, active=True) for name in names])
        assert {change.action for change in answer.changes} == {Action.CREATED_AND_ACTIVATED}
        assert len(statements) < 40
    before = await database.revision()
    statements.clear()
    answer = await client.apply(*[entry(name, "1.0", active=True) for name in names[:1500]])
    assert {change.action for change in answer.changes} == {Action.ACTIVATED}
    assert len(statements) < 30
    assert await database.revision() == before + 1
    async with database.sessions() as session:
        active = set(await session.execute(select(ToolVersion.tool, ToolVersion.version).where(ToolVersion.active)))
    assert active == {(name, "1.0" if n < 1500 else "2.0") for n, name in enumerate(names)}


async def test_a_manifest_that_changes_nothing_waits_for_nobody(client, database):
    await client.apply(entry(active=True))
    async with database.change() as session:
        session.info["unchanged"] = True
        answer = await client.apply(entry(active=True))
    assert [change.action for change in answer.changes] == [Action.UNCHANGED]


async def test_a_deleted_tool_that_a_manifest_brings_back_is_new(client):
    await client.apply(entry(), entry("other"))
    first = await client.admin("GetTool", name="stats")
    other = await client.admin("GetTool", name="other")
    await client.admin("DeleteTool", name="stats")
    await client.apply(entry(version="2.0"), entry("other", version="2.0"))
    found = [await client.admin("GetTool", name=name) for name in ("stats", "other")]
    assert micros(found[0].create_time) == micros(found[0].update_time) > micros(first.create_time)
    assert found[1].create_time == other.create_time
    assert micros(found[1].update_time) > micros(other.update_time)


def micros(time):
    return time.ToMicroseconds()


async def test_a_manifest_is_planned_again_when_somebody_was_faster(client, database, monkeypatch):
    """The plan is made before the lock is taken."""
    planned = []

    def plan(*arguments):
        planned.append(arguments)
        return plan_steps(*arguments)

    monkeypatch.setattr(registry, "plan_steps", plan)
    async with database.change() as session:
        applying = asyncio.create_task(client.apply(entry(title="mine")))
        await eventually(lambda: planned)
        times = {"create_time": 1, "update_time": 1}
        session.add(Tool(name="stats", **times))
        await session.flush()
        session.add(ToolVersion(tool="stats", version="1.0", definition=b"{}", active=False, create_time=1))
    answer = await applying
    assert len(planned) == 2
    assert [fault.message for fault in answer.faults] == [
        "version 1.0 is registered with another definition; a change needs a new version"
    ]


async def test_a_version_that_is_created_at_once_is_created_once(client):
    results = await asyncio.gather(*[client.create() for _ in range(6)], return_exceptions=True)
    assert len([result for result in results if isinstance(result, pb.ToolVersion)]) == 1
    assert {result.code().name for result in results if isinstance(result, grpc.aio.AioRpcError)} == {"ALREADY_EXISTS"}


BOTH = {"production": {"url": "http://a.test"}, "real_test": {"url": "http://b.test"}}


async def test_a_catalog_holds_what_the_account_can_call_in_its_lane(client):
    await client.apply(
        entry("both", endpoint=BOTH, active=True),
        entry("production", active=True),
        entry("pro", endpoint=BOTH, access={"plans": ["pro"]}, active=True),
        entry("mine", endpoint=BOTH, access={"accounts": [LITE]}, active=True),
        entry("off", endpoint=BOTH),
        entry("two", "1", endpoint=BOTH, active=True),
        entry("two", "2", endpoint=BOTH),
    )
    await client.activate("two", "2", keep_others_active=True)
    assert (await client.catalog_of()).lane == "production"
    assert await client.names() == ["both", "pro", "production"]
    assert (await client.catalog_of(requested_lane="real_test")).lane == "real_test"
    assert await client.names(requested_lane="real_test") == ["both", "pro"]
    assert (await client.catalog_of(client_id=LITE)).lane == "real_test"
    assert await client.names(client_id=LITE) == ["both", "mine"]


async def test_a_catalog_needs_a_lane_and_a_credential(client):
    assert (await failing(client.catalog_of(requested_lane="nonsense")))[1] == "LANE_INVALID"
    assert (await failing(client.catalog_of(client_id=LITE, requested_lane="production")))[1] == "LANE_NOT_ALLOWED"
    assert (await failing(client.catalog_of(secret="wrong")))[1] == "UNAUTHENTICATED"
    assert (await failing(client.catalog_of(secret="wrong", page_token="x")))[1] == "UNAUTHENTICATED"


async def test_a_catalog_is_paged_by_name(client):
    names = ["b", "a", "B", "a.b", "c"]
    await client.apply(*[entry(name, active=True) for name in names])
    found, page_token = [], ""
    while True:
        response = await client.catalog_of(page_size=2, page_token=page_token)
        found.append([json.loads(entry.tool)["name"] for entry in response.entries])
        page_token = response.next_page_token
        if not page_token:
            break
    assert found == [["B", "a"], ["a.b", "b"], ["c"]]
    # A token outlives the tool that it names.
    page_token = (await client.catalog_of(page_size=2)).next_page_token
    await client.admin("DeleteTool", name="a")
    assert await client.names(page_token=page_token) == ["a.b", "b", "c"]


async def test_a_catalog_sees_what_another_replica_has_changed(client, database):
    await client.create()
    async with serving(database) as other:
        await client.activate()
        assert await other.names() == ["stats"]
        await client.admin("DeactivateToolVersion", tool="stats", version="1.0")
        assert await other.names() == []


async def test_an_address_is_checked_before_anybody_calls_it(client):
    answer = await client.admin("CheckEndpoint", url="http://127.0.0.1:1/?k=${secret:lost}")
    assert (answer.allowed, list(answer.unknown_secrets)) == (False, ["lost"])
    assert "REGISTRY_ENDPOINT_NETWORKS does not admit 127.0.0.1" in answer.detail
    answer = await client.admin("CheckEndpoint", url="https://93.184.216.34/")
    assert (answer.allowed, answer.detail) == (True, "")
    code, reason, _ = await failing(client.admin("CheckEndpoint", url="no URL"))
    assert (code, reason) == ("INVALID_ARGUMENT", "REQUEST_INVALID")


async def test_slips_are_warned_of_and_refused_only_if_that_is_asked_for(client):
    slip = entry("graph.list", timeout="2h", active=True)
    answer = await client.apply(slip, validate_only=True, strict=True)
    assert [fault.pointer for fault in answer.faults] == ["/tools/0/name", "/tools/0/timeout"]
    assert list(answer.changes) == list(answer.warnings) == []
    answer = await client.apply(slip)
    assert [(warning.pointer, warning.tool) for warning in answer.warnings] == [
        ("/tools/0/name", "graph.list"),
        ("/tools/0/timeout", "graph.list"),
    ]
    assert list(answer.faults) == []
    assert await client.names() == ["graph.list"]


async def test_a_page_token_is_for_its_own_account_and_lane(client):
    await client.apply(entry("a", active=True), entry("b", active=True))
    token = (await client.catalog_of(page_size=1)).next_page_token
    assert await client.names(page_token=token) == ["b"]
    wanted: tuple[str, str, dict[str, object]] = ("INVALID_ARGUMENT", "PAGE_TOKEN_INVALID", {})
    assert await failing(client.catalog_of(page_token=token, requested_lane="real_test")) == wanted
