"""Two active versions run nothing; activate one, and the next call runs it, on every replica (judged item 4)."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ops.stack import Process, Stack
from tests.support.pair import Pair, Tool
from tests.support.postgresql import PostgresqlServer
from tests.support.scripted_endpoint import Script, ScriptedEndpoint
from tests.support.speaker import AGENT_BUILDER, EVERYBODY, LEGACY, MODERN, XDATA, Speaker

pytestmark = pytest.mark.asyncio(loop_scope="session")


def two_active_versions(pair: Pair) -> tuple[Tool, Tool]:
    """Both active; each has an endpoint of its own, which tells its number."""
    first, entry = pair.definition(Script(chunks=[b'{"version":1}']))
    second, other = pair.definition(
        Script(chunks=[b'{"version":2}']), first.name, version="2.0.0", active=False, description="The second."
    )
    pair.admin.apply({"tools": [entry, other]})
    active = pair.admin.activate(first.name, "2.0.0", keep_others_active=True)
    assert sorted(active.active_versions) == ["1.0.0", "2.0.0"]
    return first, second


def executions(pair: Pair, *tools: Tool) -> list[int]:
    return [pair.executions(tool) for tool in tools]


async def check_ambiguous(pair: Pair, tool: Tool, speaker: Speaker, gateway: Process | None = None) -> None:
    reply = await pair.call(tool, {}, speaker=speaker, gateway=gateway)
    assert (reply.status, reply.error["code"]) == (200, -31005 if speaker.modern else -32005)
    data = reply.error["data"]
    assert (data["reason"], data["error_code"], data["safe_to_retry"]) == ("TOOL_VERSION_AMBIGUOUS", "E1203", False)
    assert sorted(data["active_versions"]) == ["1.0.0", "2.0.0"]
    listed = (await pair.ask(speaker, "tools/list", gateway=gateway)).result["tools"]
    assert tool.name not in {entry["name"] for entry in listed}


async def check_runs(pair: Pair, tool: Tool, number: int, speaker: Speaker, gateway: Process | None = None) -> None:
    reply = await pair.call(tool, {}, speaker=speaker, gateway=gateway)
    assert reply.result["structuredContent"] == {"version": number}
    listed = (await pair.ask(speaker, "tools/list", gateway=gateway)).result["tools"]
    assert tool.name in {entry["name"] for entry in listed}


@pytest.mark.parametrize("speaker", EVERYBODY, ids=lambda speaker: speaker.name)
async def test_two_active_versions_run_nothing_and_one_runs_at_once(pair: Pair, speaker: Speaker):
    account = pair.admin.create_account("Ambiguous")
    first, second = two_active_versions(pair)
    await check_ambiguous(pair, first, speaker)
    await pair.call(first, {}, ("Authorization", account.basic), speaker=speaker)
    assert executions(pair, first, second) == [0, 0]
    assert pair.admin.usage(account.client_id) == {}  # what is not admitted costs nothing

    pair.admin.activate(first.name, "2.0.0")
    await check_runs(pair, first, 2, speaker)
    assert executions(pair, first, second) == [0, 1]
    pair.admin.activate(first.name, "1.0.0")
    await check_runs(pair, first, 1, speaker)
    assert executions(pair, first, second) == [1, 1]


async def test_ambiguity_comes_before_access_and_lane(pair: Pair):
    """Counted for everybody: nobody runs the one version that is left to them."""
    tool, entry = pair.definition("/echo", access={"plans": ["pro"]})
    _, other = pair.definition("/echo", tool.name, version="2.0.0", active=False)
    pair.admin.apply({"tools": [entry, other]})
    pair.admin.activate(tool.name, "2.0.0", keep_others_active=True)
    for headers in ([], [("X-MCP-Env-Scope", "real_test")]):
        error = (await pair.call(tool, {}, *headers)).error
        assert error["data"]["reason"] == "TOOL_VERSION_AMBIGUOUS"


async def test_a_manifest_cannot_leave_two_versions_active(pair: Pair):
    tool, entry = pair.definition("/echo")
    for version in ("2.0.0", "3.0.0"):
        _, other = pair.definition("/echo", tool.name, version=version)
        pair.admin.apply({"tools": [entry] if version == "2.0.0" else []})
        changes = pair.admin.apply({"tools": [other]})
        assert [change.version for change in changes] == [version]
        reply = await pair.call(tool, {})
        assert pair.admin.get_call(reply.header("x-naru-call-id") or "").version == version


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicated(
    postgresql: PostgresqlServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Pair, Process]]:
    """A pair on PostgreSQL, and a gateway in front of a second registry on the same database."""
    url = postgresql.create_database()
    async with ScriptedEndpoint() as endpoint:
        with Stack(tmp_path_factory.mktemp("replicated"), url) as stack:
            pair = Pair(stack, endpoint)
            second = stack.registry()
            yield pair, stack.gateway(second)
    postgresql.drop_database(url)


@pytest.mark.parametrize("speaker", [AGENT_BUILDER, XDATA, LEGACY, MODERN], ids=lambda speaker: speaker.name)
async def test_every_replica_switches_at_once(replicated: tuple[Pair, Process], speaker: Speaker):
    pair, other = replicated
    first, second = two_active_versions(pair)
    gateways = (other, pair.gateway)
    for gateway in gateways:
        await check_ambiguous(pair, first, speaker, gateway)
    assert executions(pair, first, second) == [0, 0]

    for number, version in ((2, "2.0.0"), (1, "1.0.0"), (2, "2.0.0")):
        pair.admin.activate(first.name, version)
        for gateway in gateways:
            await check_runs(pair, first, number, speaker, gateway)

    before = executions(pair, first, second)
    pair.admin.deactivate(first.name, "2.0.0")
    for gateway in gateways:
        reply = await pair.call(first, {}, speaker=speaker, gateway=gateway)
        assert reply.error["data"]["reason"] == "TOOL_NOT_ACTIVE"
    assert executions(pair, first, second) == before
