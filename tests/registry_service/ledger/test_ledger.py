import asyncio
from collections import Counter
from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import update

from naru.v1 import errors_pb2, execution_pb2
from registry_service.errors import CallOutcomeUnknownError, ServiceUnavailableError
from registry_service.ledger.group_commit import MAX_GROUP
from registry_service.ledger.ledger import Ledger, new_call_id
from registry_service.storage.database import Database
from registry_service.storage.models import Call, now_micros
from registry_service.storage.url import open_database
from tests.support.ledger import (
    admitted_call,
    asked,
    assert_usage_is_what_the_calls_say,
    calls,
    counters,
    states,
)
from tests.support.waiting import eventually

State = execution_pb2.Call


LATE_IN_2025 = datetime(2025, 12, 31, 14, 59, 59, 999_999, tzinfo=UTC)  # a microsecond before the new year in Seoul


def micros(moment: datetime) -> int:
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


# Admitted means recorded


async def test_an_admitted_call_is_recorded_and_counted(database: Database, ledger: Ledger):
    admission = asked(create_time=micros(datetime(2026, 3, 4, 5, tzinfo=UTC)))
    assert await ledger.admit(admission) is True
    [call] = (await calls(database)).values()
    for name in ("call_id", "client_id", "tool", "version", "lane", "session_id", "request_id", "create_time"):
        assert getattr(call, name) == getattr(admission, name)
    assert (call.executor, call.state, call.reason, call.settle_time) == (database.executor, State.RUNNING, 0, None)
    assert await counters(database) == {
        ("nrci_abc", "production", "2026-03-04"): 1,
        ("nrci_abc", "production", "2026-03"): 1,
    }


async def test_text_of_any_script_is_kept(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger, request_id='"나루 🚢"', session_id="x" * 10_000)
    call = (await calls(database))[call_id]
    assert (call.request_id, call.session_id) == ('"나루 🚢"', "x" * 10_000)


async def test_days_and_months_are_those_of_seoul(database: Database, ledger: Ledger):
    before = micros(LATE_IN_2025)
    for moment in (before, before + 1, before + 1):
        await admitted_call(ledger, create_time=moment)
    assert {period: count for (_, _, period), count in (await counters(database)).items()} == {
        "2025-12-31": 1,
        "2025-12": 1,
        "2026-01-01": 2,
        "2026-01": 2,
    }


async def test_usage_is_what_the_calls_say(database: Database, ledger: Ledger):
    moments = (micros(LATE_IN_2025), micros(LATE_IN_2025) + 1)
    await asyncio.gather(
        *(
            admitted_call(ledger, client_id=f"c{n % 3}", lane=("real_test", "production")[n % 2], create_time=moment)
            for n in range(60)
            for moment in moments
        )
    )
    assert sum((await counters(database)).values()) == 240
    await assert_usage_is_what_the_calls_say(database)


async def test_a_group_has_a_bound_and_nobody_is_forgotten(database: Database, ledger: Ledger):
    ids = await asyncio.gather(*(admitted_call(ledger) for _ in range(2 * MAX_GROUP + 1)))
    assert set(await calls(database)) == set(ids)
    await asyncio.gather(*(ledger.settle(call_id, State.SUCCEEDED) for call_id in ids))
    assert set((await states(database)).values()) == {State.SUCCEEDED}


async def test_call_ids_are_unique_and_in_order_of_time():
    ids = [new_call_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [call_id[:12] for call_id in ids] == sorted(call_id[:12] for call_id in ids)
    assert {len(call_id) for call_id in ids} == {32}


# Never by a view from before a change


async def test_a_stale_revision_admits_nothing(database: Database, ledger: Ledger):
    async with database.change():
        pass
    assert await ledger.admit(asked(revision=1)) is False
    assert (await calls(database), await counters(database)) == ({}, {})
    assert await ledger.admit(asked(revision=2)) is True


async def test_the_stale_and_the_fresh_of_one_group_are_told_apart(database: Database, ledger: Ledger):
    async with database.change():
        pass
    answers = await asyncio.gather(*(ledger.admit(asked(revision=1 + n % 2)) for n in range(10)))
    assert answers == [False, True] * 5
    assert len(await calls(database)) == 5
    await assert_usage_is_what_the_calls_say(database)


def has_grown(answers: Counter[bool], enough: int) -> bool:
    return answers[True] >= enough


async def test_nothing_is_admitted_to_the_past_once_a_change_has_returned(database_url: str):
    """On two replicas where the database can have them. A call's version tells the revision that it was decided on."""
    opened = [open_database(database_url)]
    if opened[0].dialect == "postgresql":
        opened.append(open_database(database_url))
    await opened[0].migrate()
    ledgers = [Ledger(database) for database in opened]
    for ledger in ledgers:
        await ledger.start()
    ended = asyncio.Event()
    answers = Counter[bool]()

    async def client(ledger: Ledger, database: Database) -> None:
        revision = 1
        while not ended.is_set():
            answer = await ledger.admit(asked(revision=revision, version=str(revision)))
            answers[answer] += 1
            if not answer:
                revision = await database.revision()

    async def past(revision: int) -> int:
        return sum(int(call.version) < revision for call in (await calls(opened[0])).values())

    clients = [
        asyncio.create_task(client(ledger, database))
        for ledger, database in zip(ledgers, opened, strict=True)
        for _ in range(6)
    ]
    seen: list[tuple[int, int]] = []
    for n in range(15):
        enough = answers[True] + 20
        await eventually(partial(has_grown, answers, enough))
        async with opened[n % len(opened)].change():
            pass
        revision = await opened[-1].revision()
        seen.append((revision, await past(revision)))
    ended.set()
    await asyncio.gather(*clients)
    assert [revision for revision, _ in seen] == list(range(2, 17))
    assert [(revision, await past(revision)) for revision, _ in seen] == seen
    assert answers[False] > 0
    await assert_usage_is_what_the_calls_say(opened[0])
    for ledger, database in zip(ledgers, opened, strict=True):
        await ledger.close()
        await database.close()


# Acknowledged means settled


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.TOOL_ERROR, State.FAILED, State.CANCELLED, State.UNKNOWN])
async def test_an_outcome_is_recorded(database: Database, ledger: Ledger, state: int):
    call_id, other = await admitted_call(ledger), await admitted_call(ledger)
    await ledger.settle(call_id, state, errors_pb2.TOOL_TIMED_OUT)
    found = await calls(database)
    assert (found[call_id].state, found[call_id].reason) == (state, errors_pb2.TOOL_TIMED_OUT)
    assert found[call_id].create_time <= (found[call_id].settle_time or 0) <= now_micros()
    assert (found[call_id].duration, found[call_id].http_status, found[call_id].detail) == (None, 0, "")
    assert (found[other].state, found[other].settle_time) == (State.RUNNING, None)


async def test_how_a_call_went_is_recorded(database: Database, ledger: Ledger):
    trial, usual = await admitted_call(ledger, trial=True), await admitted_call(ledger)
    await asyncio.gather(
        ledger.settle(
            trial,
            State.FAILED,
            errors_pb2.TOOL_UNREACHABLE,
            seconds=1.2345678,
            http_status=503,
            detail="no connection",
        ),
        ledger.settle(usual, State.SUCCEEDED, detail="\0 \ud800 나루"),
    )
    found = await calls(database)
    call = found[trial]
    assert (call.trial, call.duration, call.http_status, call.detail) == (True, 1_234_568, 503, "no connection")
    assert (found[usual].trial, found[usual].duration, found[usual].detail) == (False, None, "\ufffd \ufffd 나루")


async def test_the_first_outcome_stays(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    await ledger.settle(call_id, State.SUCCEEDED)
    await ledger.settle(call_id, State.FAILED, errors_pb2.TOOL_UNREACHABLE)
    call = (await calls(database))[call_id]
    assert (call.state, call.reason) == (State.SUCCEEDED, 0)


async def test_a_late_true_outcome_replaces_unknown(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    async with database.write() as session:
        await session.execute(update(Call).values(state=State.UNKNOWN, reason=errors_pb2.CALL_OUTCOME_UNKNOWN))
    await ledger.settle(call_id, State.SUCCEEDED)
    call = (await calls(database))[call_id]
    assert (call.state, call.reason) == (State.SUCCEEDED, 0)


async def test_settling_does_not_count(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    before = await counters(database)
    await ledger.settle(call_id, State.CANCELLED)
    assert await counters(database) == before


# The end of a ledger


async def test_closing_writes_what_is_waiting(database: Database):
    ledger = Ledger(database)
    await ledger.start()
    running = [await admitted_call(ledger) for _ in range(3)]
    waiting = [asyncio.create_task(ledger.settle(call_id, State.SUCCEEDED)) for call_id in running]
    admitting = asyncio.create_task(ledger.admit(asked()))
    await asyncio.sleep(0)
    await ledger.close()
    assert await asyncio.gather(*waiting, admitting) == [None] * 3 + [True]
    assert Counter((await states(database)).values()) == {State.SUCCEEDED: 3, State.RUNNING: 1}


async def test_a_closed_ledger_says_so(database: Database):
    ledger = Ledger(database)
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    await ledger.start()
    call_id = await admitted_call(ledger)
    await ledger.close()
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    with pytest.raises(CallOutcomeUnknownError):
        await ledger.settle(call_id, State.SUCCEEDED)
    await ledger.close()


async def test_a_ledger_that_could_not_start_can_start_later(database_url: str):
    database = open_database(database_url)
    ledger = Ledger(database)
    with pytest.raises(Exception, match="catalog_revision"):  # there are no tables
        await ledger.start()
    await database.migrate()
    await ledger.start()
    assert await admitted_call(ledger)
    await ledger.close()
    await database.close()
