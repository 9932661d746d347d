"""Changes under load, two registries behind one gateway: what an admin's RPC has changed holds for every later call.

A call may see any state from the last one that was reached before it began to the last one that was asked for before it
ended; nothing else, on whichever replica it lands.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from naru.v1 import accounts_pb2
from ops.admin import Admin, Credential
from ops.stack import Stack
from tests.support.postgresql import PostgresqlServer
from tests.support.scene import Reply, Scene, assert_no_faults, definition, metric, opened
from tests.support.scripted_endpoint import Script
from tests.support.speaker import AGENT_BUILDER, MODERN, XDATA, Speaker
from tests.support.waiting import eventually

CONTRACTS = (AGENT_BUILDER, MODERN, XDATA)
WORKERS = 6
# Calls that begin after each change, before the next is made.
CALLS_A_STATE = 12


@pytest.fixture(scope="module")
def pair(postgresql: PostgresqlServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two registries on one PostgreSQL, and a gateway that spreads calls over both."""
    url = postgresql.create_database()
    with Stack(tmp_path_factory.mktemp("switching"), url) as stack:
        for registry in (stack.run_registry(), stack.run_registry()):
            registry.wait_ready()
        stack.gateway()
        yield stack
        assert_no_faults(*stack.processes)
    postgresql.drop_database(url)


@pytest.fixture
async def scene(pair: Stack) -> AsyncIterator[Scene]:
    async with opened(pair, pair.registries[0], pair.gateways[0]) as scene:
        yield scene


class Change(NamedTuple):
    """Holds what an admin does, and what calls answer from then on: a version, or a reason."""

    make: Callable[[Admin], Any]
    answer: str


@dataclass
class History:
    """Records which states were asked for, and which were reached. `seen` counts the calls that began in the newest."""

    answers: list[str]
    asked: int = 0
    reached: int = 0
    seen: int = 0
    wrong: list[str] = field(default_factory=list)

    async def call(self, caller: Callable[[], Any]) -> None:
        """Calls, and holds the answer against the states of that time."""
        first = self.reached
        reply: Reply = await caller()
        allowed = self.answers[first : self.asked + 1]
        answer = reply.reason or reply.value["version"]
        if answer not in allowed:
            self.wrong.append(f"{answer} instead of {allowed}: {json.dumps(reply.envelope)[:300]}")
        self.seen += first == self.reached


async def under_load(scene: Scene, tool: str, first: str, changes: list[Change]) -> None:
    """Makes the changes, by either replica in turn, while clients call."""
    history = History([first])
    admins = [scene.stack.admin(registry) for registry in scene.stack.registries]
    working = True

    async def work(number: int) -> None:
        speaker = CONTRACTS[number % len(CONTRACTS)]
        while working:
            await history.call(lambda: scene.client.call(tool, speaker=speaker))

    workers = [asyncio.create_task(work(number)) for number in range(WORKERS)]

    async def observed() -> None:
        history.seen = 0
        await eventually(lambda: history.seen >= CALLS_A_STATE or any(worker.done() for worker in workers))

    await observed()
    for number, change in enumerate(changes):
        history.answers.append(change.answer)
        history.asked += 1
        await asyncio.to_thread(change.make, admins[number % 2])
        history.reached += 1
        await observed()
    working = False
    await asyncio.gather(*workers)
    assert not history.wrong, history.wrong[:5]


def versions(scene: Scene, name: str, number: int) -> list[str]:
    """Registers versions whose endpoints answer which they are; the first is active."""
    names = [f"{n}.0.0" for n in range(1, number + 1)]
    entries = []
    for version in names:
        body = json.dumps({"version": version}).encode()
        url = scene.endpoint.serve(f"/{name}/{version}", Script(chunks=[body]))
        entries.append(definition(name, url, version=version, active=version == names[0]))
    scene.admin.apply({"tools": entries})
    return names


def activation(tool: str, version: str) -> Change:
    return Change(lambda admin: admin.activate(tool, version), version)


def set_state(credential: Credential, state: accounts_pb2.Account.State.ValueType) -> Callable[[Admin], object]:
    account = accounts_pb2.Account(client_id=credential.client_id, state=state)
    request = accounts_pb2.UpdateAccountRequest(account=account, update_mask=FieldMask(paths=["state"]))
    return lambda admin: admin.call(admin.accounts.UpdateAccount, request)


async def test_no_call_runs_a_version_after_its_successor_was_activated(scene: Scene):
    names = versions(scene, "versioned", 8)
    await under_load(scene, "versioned", names[0], [activation("versioned", version) for version in names[1:]])


async def test_no_call_runs_a_version_that_was_deactivated_or_doubled(scene: Scene):
    old, new = versions(scene, "doubled", 2)
    none = Change(lambda admin: admin.deactivate("doubled", old), "TOOL_NOT_ACTIVE")
    both = Change(lambda admin: admin.activate("doubled", new, keep_others_active=True), "TOOL_VERSION_AMBIGUOUS")
    first = activation("doubled", old)
    await under_load(scene, "doubled", old, [none, first, both, activation("doubled", new), first, both, first, none])


async def test_no_call_of_a_suspended_account_is_admitted(scene: Scene):
    [version] = versions(scene, "suspended", 1)
    credential = scene.client.credential
    suspension = Change(set_state(credential, accounts_pb2.Account.SUSPENDED), "ACCOUNT_SUSPENDED")
    return_ = Change(set_state(credential, accounts_pb2.Account.ACTIVE), version)
    await under_load(scene, "suspended", version, [suspension, return_] * 3)


async def test_no_call_with_a_revoked_secret_is_admitted(scene: Scene):
    [version] = versions(scene, "revoked", 1)
    client_id = scene.client.credential.client_id

    def rotate(admin: Admin) -> None:
        request = accounts_pb2.RotateSecretRequest(client_id=client_id, revoke_others=True)
        successor.append(admin.call(admin.accounts.RotateSecret, request).secret)

    successor: list[str] = []
    await under_load(scene, "revoked", version, [Change(rotate, "UNAUTHENTICATED")])
    for _ in range(4):  # on both replicas
        reply = await scene.client.of(credential=Credential(client_id, successor[0])).call("revoked")
        assert reply.value == {"version": version}


async def shown(scene: Scene, name: str, speaker: Speaker) -> list[str]:
    """Returns a tool's description in `tools/list`, or "" if it is absent. Asks twice, since replicas take turns."""
    listings = [await scene.client.list(speaker) for _ in range(2)]
    return [listing[name]["description"] if name in listing else "" for listing in listings]


async def called(scene: Scene, name: str, speaker: Speaker) -> list[Reply]:
    """Two calls of a tool, one on each replica."""
    return [await scene.client.call(name, speaker=speaker) for _ in range(2)]


@pytest.fixture
def both_served(scene: Scene) -> Iterator[None]:
    """Both replicas have served CallTool in the test, well or not."""

    def served() -> list[float]:
        method = "/naru.v1.Execution/CallTool"
        return [metric(registry, "naru_grpc_requests_total", method=method) for registry in scene.stack.registries]

    before = served()
    yield
    assert all(now > then for now, then in zip(served(), before, strict=True))


@pytest.mark.usefixtures("both_served")
async def test_list_and_call_agree_at_once_on_every_replica(scene: Scene):
    """Expects each switch to show in the next list and in the next call."""
    names = versions(scene, "shown", 3)
    admins = [scene.stack.admin(registry) for registry in scene.stack.registries]
    for number, version in enumerate([*names[1:], names[0]]):
        admins[number % 2].activate("shown", version)
        for speaker in CONTRACTS:
            assert await shown(scene, "shown", speaker) == [f"shown {version}"] * 2
            assert [reply.value for reply in await called(scene, "shown", speaker)] == [{"version": version}] * 2
    admins[1].deactivate("shown", names[0])
    for speaker in CONTRACTS:
        assert await shown(scene, "shown", speaker) == ["", ""]
        assert [reply.reason for reply in await called(scene, "shown", speaker)] == ["TOOL_NOT_ACTIVE"] * 2


@pytest.mark.usefixtures("both_served")
async def test_an_ambiguous_tool_is_ambiguous_on_every_replica_and_runs_nowhere(scene: Scene):
    names = versions(scene, "ambiguous", 2)
    scene.admin.activate("ambiguous", names[1], keep_others_active=True)
    for speaker in CONTRACTS:
        for reply in await called(scene, "ambiguous", speaker):
            assert (reply.reason, reply.error["safe_to_retry"]) == ("TOOL_VERSION_AMBIGUOUS", False)
        assert await shown(scene, "ambiguous", speaker) == ["", ""]
    assert scene.endpoint.executions == 0
    scene.stack.admin(scene.stack.registries[1]).activate("ambiguous", names[0])
    for speaker in CONTRACTS:
        assert [reply.value for reply in await called(scene, "ambiguous", speaker)] == [{"version": names[0]}] * 2
