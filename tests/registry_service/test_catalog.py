"""The catalog on both databases."""

import asyncio
import json

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, event, update

from naru.v1 import accounts_pb2
from registry_service.catalog import AbsentPlan, Catalog, View
from registry_service.errors import (
    LaneNotConfiguredError,
    NaruError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ToolNotActiveError,
    ToolNotFoundError,
    ToolVersionAmbiguousError,
)
from registry_service.identity.credentials import AccountEntry
from registry_service.identity.plans import LANES, Plan
from registry_service.storage.models import Account, Secret, Tool, ToolVersion
from registry_service.storage.url import open_database
from registry_service.tools.active_tool import ActiveTool, Running
from registry_service.tools.definition import Access, Definition, parse_definition
from registry_service.tools.schema_check import SchemaCheck
from tests.support.samples import definition, raw

PEPPER = b"pepper-of-the-tests-of-32-bytes!"
PLANS = {
    "lite": Plan("lite", "real_test", frozenset({"real_test"})),
    "pro": Plan("pro", "production", frozenset(LANES)),
}
ACTIVE = accounts_pb2.Account.ACTIVE


def account(client_id="nrci_" + "a" * 21, plan="pro"):
    return AccountEntry(client_id, PLANS[plan], ACTIVE, ())


async def add_version(session, tool, version="1.0", *, active=True, document=None):
    if await session.get(Tool, tool) is None:
        session.add(Tool(name=tool, create_time=1, update_time=1))
        await session.flush()
    stored = raw(definition()) if document is None else document
    session.add(ToolVersion(tool=tool, version=version, definition=stored, active=active, create_time=1))
    await session.flush()


@pytest.fixture
async def catalog(database):
    return Catalog(database, PLANS, PEPPER)


async def test_an_empty_database_has_an_empty_view(catalog):
    view = await catalog.load()
    assert view is catalog.view
    assert (dict(view.accounts), view.listing(account(), "production")) == ({}, [])
    with pytest.raises(ToolNotFoundError):
        view.resolve("stats", account(), "production")


async def test_one_active_version_is_ready_to_run(catalog, database):
    output = {"type": "array"}
    async with database.change() as session:
        await add_version(session, "stats", "1.0", document=raw(definition(outputSchema=output)))
        await add_version(session, "stats", "2.0", active=False)
    entry = (await catalog.load()).resolve("stats", account(), "production")
    assert (entry.name, entry.version, entry.running.count) == ("stats", "1.0", 0)
    assert json.loads(entry.mcp_tool)["outputSchema"] == output
    assert entry.arguments.violations({"text": "x"}) == []
    assert entry.arguments.violations({}) != []
    assert entry.output is not None
    assert entry.output.violations({}) != []


async def test_reads_accounts_whole(catalog, database):
    async with database.change() as session:
        for client_id, plan in (("nrci_x", "pro"), ("nrci_y", "lite")):
            session.add(
                Account(client_id=client_id, display_name="n", plan=plan, state=ACTIVE, create_time=1, update_time=1)
            )
        await session.flush()
        for secret, time, revoked in (("b", 2, None), ("a", 3, None), ("c", 1, 5)):
            session.add(
                Secret(
                    id=secret,
                    client_id="nrci_x",
                    digest=secret.encode() * 32,
                    hint="0000",
                    create_time=time,
                    revoke_time=revoked,
                )
            )
    view = await catalog.load()
    assert view.accounts == {
        "nrci_x": AccountEntry("nrci_x", PLANS["pro"], ACTIVE, (b"b" * 32, b"a" * 32)),
        "nrci_y": AccountEntry("nrci_y", PLANS["lite"], ACTIVE, ()),
    }


async def test_an_account_whose_plan_is_gone_gets_no_lane(catalog, database):
    async with database.change() as session:
        session.add(
            Account(client_id="nrci_x", display_name="n", plan="gold", state=ACTIVE, create_time=1, update_time=1)
        )
    with structlog.testing.capture_logs() as logs:
        plan = (await catalog.load()).accounts["nrci_x"].plan
        await catalog.load()
    assert isinstance(plan, AbsentPlan)
    assert plan.name == "gold"
    for lane in ("", "production", "nonsense"):
        with pytest.raises(ServiceUnavailableError, match="gold"):
            plan.lane(lane)
    assert [log["event"] for log in logs] == ["catalog.plan_absent"]


async def test_deleted_tools_and_versions_are_gone(catalog, database):
    async with database.change() as session:
        await add_version(session, "stats")
        await add_version(session, "echo")
        await session.execute(update(Tool).where(Tool.name == "echo").values(delete_time=2))
        await session.execute(update(ToolVersion).where(ToolVersion.tool == "stats").values(delete_time=2))
    view = await catalog.load()
    with pytest.raises(ToolNotFoundError):
        view.resolve("echo", account(), "production")
    with pytest.raises(ToolNotActiveError):
        view.resolve("stats", account(), "production")


UNREADABLE = [b"", b"{", b"[]", b'{"description":"x"}', b"\xff", raw(definition(timeout="soon"))]


async def test_a_bad_row_costs_its_own_version_only(catalog, database):
    async with database.change() as session:
        await add_version(session, "good")
        for number, document in enumerate(UNREADABLE):
            await add_version(session, f"bad{number}", document=document)
        await add_version(session, "mixed")
        await add_version(session, "mixed", "not a version", document=b"")
    with structlog.testing.capture_logs() as logs:
        view = await catalog.load()
        await catalog.load()
    assert [entry.name for entry in view.listing(account(), "production")] == ["good"]
    for number in range(len(UNREADABLE)):
        with pytest.raises(ToolNotActiveError):
            view.resolve(f"bad{number}", account(), "production")
    # An active version counts, whether it can be read or not.
    with pytest.raises(ToolVersionAmbiguousError) as caught:
        view.resolve("mixed", account(), "production")
    assert caught.value.facts["active_versions"] == ["not a version", "1.0"]
    assert {log["event"] for log in logs} == {"catalog.version_unreadable"}
    assert sorted(log["tool"] for log in logs) == [*(f"bad{number}" for number in range(len(UNREADABLE))), "mixed"]


async def test_fresh_reloads_when_something_has_changed_and_only_then(catalog, database):
    first = await catalog.fresh()
    assert await catalog.fresh() is first
    async with database.change() as session:
        await add_version(session, "stats")
    second = await catalog.fresh()
    assert second.revision == first.revision + 1
    assert second.resolve("stats", account(), "production")
    # A change that does not count is not read.
    async with database.change() as session:
        await session.execute(update(ToolVersion).values(active=False))
        session.info["unchanged"] = True
    assert await catalog.fresh() is second
    assert (await catalog.load()).revision == second.revision
    with pytest.raises(ToolNotActiveError):
        catalog.view.resolve("stats", account(), "production")


async def test_what_is_compiled_stays_and_counters_outlive_reloads(catalog, database):
    async with database.change() as session:
        await add_version(session, "stats")
    entry = (await catalog.load()).resolve("stats", account(), "production")
    entry.running.count = 1
    async with database.change() as session:
        await add_version(session, "echo")
    assert (await catalog.load()).resolve("stats", account(), "production") is entry
    for active in (False, True):
        async with database.change() as session:
            await session.execute(update(ToolVersion).where(ToolVersion.tool == "stats").values(active=active))
        await catalog.load()
    again = catalog.view.resolve("stats", account(), "production")
    assert again is not entry
    assert again.running is entry.running


async def test_forgets_what_is_no_longer_active(catalog, database):
    async with database.change() as session:
        await add_version(session, "stats")
    await catalog.load()
    async with database.change() as session:
        await session.execute(delete(ToolVersion))
    await catalog.load()
    assert (catalog._known, catalog._running) == ({}, {})


async def test_loads_at_once_are_few_and_each_sees_what_was_committed_before(catalog, database):
    """Whoever comes while a load runs shares the next one."""
    begun = []

    class Counting(Catalog):
        async def _read(self):
            begun.append(1)
            return await super()._read()

    counting = Counting(database, PLANS, PEPPER)

    async def change_and_load(number):
        async with database.change() as session:
            await add_version(session, f"tool{number}")
        view = await counting.load()
        view.resolve(f"tool{number}", account(), "production")

    await asyncio.gather(*[change_and_load(number) for number in range(10)])
    begun.clear()
    # The first one begins at once; the 49 that come while it runs share the second.
    await asyncio.gather(*[counting.load() for _ in range(50)])
    assert len(begun) == 2


async def test_a_load_that_fails_fails_for_its_caller_alone(database):
    class Breaking(Catalog):
        broken = True

        async def _read(self):
            if self.broken:
                self.broken = False
                raise ServiceUnavailableError("away")
            return await super()._read()

    breaking = Breaking(database, PLANS, PEPPER)
    first, second = await asyncio.gather(breaking.load(), breaking.load(), return_exceptions=True)
    assert isinstance(first, ServiceUnavailableError)
    assert isinstance(second, View)


async def test_many_versions_are_read_in_portions(catalog, database):
    async with database.change() as session:
        for number in range(1100):
            session.add(Tool(name=f"t{number}", create_time=1, update_time=1))
        await session.flush()
        document = raw(definition())
        session.add_all(
            ToolVersion(tool=f"t{number}", version="1", definition=document, active=True, create_time=1)
            for number in range(1100)
        )
    assert len((await catalog.load()).listing(account(), "production")) == 1100


class Loud(Catalog):
    """Tells when it has loaded."""

    def __init__(self, database, plans, pepper):
        super().__init__(database, plans, pepper)
        self.loaded = asyncio.Event()

    async def load(self):
        view = await super().load()
        self.loaded.set()
        return view


async def test_a_replica_hears_of_a_change(postgresql_url):
    one, other = open_database(postgresql_url), open_database(postgresql_url)
    try:
        await one.migrate()
        catalog = Loud(other, PLANS, PEPPER)
        before = await catalog.load()
        watching = asyncio.create_task(catalog.watch())
        async with one.change() as session:
            await add_version(session, "stats")
        async with asyncio.timeout(20):
            while catalog.view.revision == before.revision:
                catalog.loaded.clear()
                await catalog.loaded.wait()
        assert catalog.view.resolve("stats", account(), "production")
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    finally:
        await one.close()
        await other.close()


async def test_watching_a_file_ends_when_it_is_cancelled(sqlite_url):
    database = open_database(sqlite_url)
    try:
        await database.migrate()
        catalog = Catalog(database, PLANS, PEPPER)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await catalog.watch()
    finally:
        await database.close()


# The view alone.


def tool_entry(name, version, lanes=("production",), access=None):
    found = parse_definition(raw(definition(endpoint={lane: {"url": "http://a.test"} for lane in lanes})))
    assert isinstance(found, Definition)
    found = Definition(**{field: getattr(found, field) for field in found.__struct_fields__} | {"access": access})
    return ActiveTool(name, version, found, b"{}", SchemaCheck(b"{}"), None, Running())


def view_of(**tools):
    return View(1, {}, {name: {entry.version: entry for entry in entries} for name, entries in tools.items()}, PEPPER)


def refusal(view, name, who, lane):
    try:
        view.resolve(name, who, lane)
    except NaruError as error:
        return type(error)
    return None


def test_ambiguity_is_decided_before_access_and_lane():
    hidden = Access(plans=frozenset({"lite"}))
    both = [tool_entry("stats", "1.0", ["real_test"], hidden), tool_entry("stats", "1.10", ["real_test"], hidden)]
    assert refusal(view_of(stats=both), "stats", account(), "production") is ToolVersionAmbiguousError
    assert refusal(view_of(stats=both[:1]), "stats", account(), "production") is PermissionDeniedError
    open_to_all = [tool_entry("stats", "1.0", ["real_test"])]
    assert refusal(view_of(stats=open_to_all), "stats", account(), "production") is LaneNotConfiguredError
    assert refusal(view_of(stats=[]), "stats", account(), "production") is ToolNotActiveError
    assert refusal(view_of(stats=[]), "echo", account(), "production") is ToolNotFoundError


def test_refusals_tell_their_facts():
    view = view_of(two=[tool_entry("two", "1.10"), tool_entry("two", "1.9")], one=[tool_entry("one", "1")])
    with pytest.raises(ToolVersionAmbiguousError) as ambiguous:
        view.resolve("two", account(), "production")
    assert ambiguous.value.facts == {"tool": "two", "active_versions": ["1.9", "1.10"]}
    with pytest.raises(LaneNotConfiguredError) as lane:
        view.resolve("one", account(), "real_test")
    assert lane.value.facts == {"tool": "one", "lane": "real_test"}
    with pytest.raises(ToolNotFoundError) as unknown:
        view.resolve("x" * 1_000_000, account(), "production")
    assert unknown.value.facts == {"tool": "x" * 128}


@pytest.mark.parametrize("name", ["echo\n", "echo ", "ECHO", "", "echo\x00"])
def test_names_are_exact(name):
    assert refusal(view_of(echo=[tool_entry("echo", "1")]), name, account(), "production") is ToolNotFoundError


accesses = st.sampled_from(
    [None, Access(frozenset({"pro"})), Access(accounts=frozenset({"nrci_x"})), Access(frozenset({"lite"}))]
)
entries = st.lists(
    st.tuples(st.sampled_from(["1", "2"]), st.sets(st.sampled_from(LANES), min_size=1), accesses),
    max_size=2,
    unique_by=lambda version: version[0],
)


@given(
    st.dictionaries(st.sampled_from(["a", "B", "b", "_", "a.b"]), entries),
    st.sampled_from(["nrci_x", "nrci_y"]),
    st.sampled_from(["lite", "pro"]),
    st.sampled_from(LANES),
)
def test_the_listing_is_what_a_call_would_run(tools, client_id, plan, lane):
    made = {name: [tool_entry(name, *version) for version in versions] for name, versions in tools.items()}
    view = View(1, {}, {name: {entry.version: entry for entry in found} for name, found in made.items()}, PEPPER)
    who = account(client_id, plan)
    would_run = [name for name in sorted(tools) if refusal(view, name, who, lane) is None]
    listing = view.listing(who, lane)
    assert [entry.name for entry in listing] == would_run
    assert [view.resolve(name, who, lane) for name in would_run] == list(listing)


async def test_a_change_in_the_midst_of_a_load_is_in_it_as_a_whole(postgresql, postgresql_url, postgres):
    """PostgreSQL shows each statement what is newest: this would be the versions of before, the accounts of after."""
    changes: list[str] = []

    def change_once(connection, cursor, statement, *_):
        if "tool_versions" in statement and not changes:
            changes.append(statement)
            query = (
                "UPDATE tool_versions SET active = (version = '2.0'); UPDATE accounts SET plan = 'lite';"
                "UPDATE catalog_revision SET revision = revision + 1"
            )
            postgresql.query(query, postgresql_url)

    async with postgres.change() as session:
        await add_version(session, "echo", "1.0")
        await add_version(session, "echo", "2.0", active=False)
        session.add(
            Account(client_id="nrci_x", display_name="n", plan="pro", state=ACTIVE, create_time=1, update_time=1)
        )
    catalog = Catalog(postgres, PLANS, PEPPER)
    event.listen(postgres.engine.sync_engine, "after_cursor_execute", change_once)
    view = await catalog.load()
    event.remove(postgres.engine.sync_engine, "after_cursor_execute", change_once)
    assert len(changes) == 1
    assert view.revision == await postgres.revision()
    assert [entry.version for entry in view.listing(account(), "production")] == ["2.0"]
    assert view.accounts["nrci_x"].plan.name == "lite"
