"""The writer: rows that cannot be written, callers that go away, a database that goes away and comes back."""

import asyncio

import pytest

from naru.v1 import execution_pb2
from registry_service.errors import CallOutcomeUnknownError, ServiceUnavailableError
from registry_service.ledger import group_commit
from registry_service.ledger.group_commit import MAX_GROUP
from registry_service.ledger.ledger import Ledger
from registry_service.storage.database import Database
from registry_service.storage.postgresql import PostgresqlDatabase
from registry_service.storage.sqlite import SqliteDatabase
from registry_service.telemetry.metrics import METRICS
from tests.support.ledger import (
    admitted_call,
    all_are,
    asked,
    assert_usage_is_what_the_calls_say,
    busy,
    calls,
    further_failures,
    is_settled,
    locked,
    lose,
    states,
    taken,
)
from tests.support.postgresql import PostgresqlServer
from tests.support.waiting import eventually

State = execution_pb2.Call


def groups() -> float:
    """Returns the number of groups that were written in this process."""
    return METRICS.get_sample_value("naru_ledger_group_size_count") or 0


@pytest.mark.parametrize(("calls_at_once", "expected"), [(MAX_GROUP, 1), (MAX_GROUP + 1, 2)])
async def test_a_group_holds_so_many_calls_and_not_one_more(ledger: Ledger, calls_at_once: int, expected: int):
    before = groups()
    ids = await asyncio.gather(*(admitted_call(ledger) for _ in range(calls_at_once)))
    assert groups() - before == expected
    before = groups()
    await asyncio.gather(*(ledger.settle(call_id, State.SUCCEEDED) for call_id in ids))
    assert groups() - before == expected


async def test_after_a_failed_write_outcomes_go_first_and_admissions_wait(impatient: SqliteDatabase, monkeypatch):
    """In a group of their own: what has run already must not fail with what has not."""
    monkeypatch.setattr(group_commit, "RETRY_SECONDS", (0.0, 2.0))
    ledger = Ledger(impatient)
    await ledger.start()
    running = await admitted_call(ledger)
    before = groups()
    with locked(impatient):
        settling = asyncio.create_task(ledger.settle(running, State.SUCCEEDED))
        await eventually(lambda: ledger._writer._failures == 1)
        admitting = asyncio.create_task(ledger.admit(asked()))
        await asyncio.sleep(0)
        assert ledger.is_writable
    await settling
    assert await admitting
    assert groups() - before == 2
    await ledger.close()


async def test_an_admission_whose_recording_stays_in_doubt_is_not_waited_for(
    postgresql: PostgresqlServer, postgres: PostgresqlDatabase, postgres_ledger: Ledger, monkeypatch
):
    """The server is gone with the group, and nobody knows for how long."""
    monkeypatch.setattr(group_commit, "DOUBT_SECONDS", 0.1)
    admission = asked()
    postgresql.stop()  # the loop stands still meanwhile, so that the loss is not seen before the group was sent
    try:
        with pytest.raises(CallOutcomeUnknownError):
            await postgres_ledger.admit(admission)
    finally:
        postgresql.start()
    await eventually(lambda: postgres_ledger.is_writable)
    assert await calls(postgres) == {}


# One bad row


@pytest.mark.parametrize("fault", ["key", "text"])
async def test_a_row_that_cannot_be_written_fails_alone(database: Database, ledger: Ledger, fault: str):
    known = await admitted_call(ledger)
    bad = asked(call_id=known) if fault == "key" else asked(request_id="\ud800")
    good = [asked() for _ in range(9)]
    answers = await asyncio.gather(
        *(ledger.admit(admission) for admission in (*good[:4], bad, *good[4:])),
        ledger.settle(known, State.SUCCEEDED),
        return_exceptions=True,
    )
    failed = answers.pop(4)
    assert isinstance(failed, Exception)
    assert not isinstance(failed, ServiceUnavailableError)
    assert answers == [True] * 9 + [None]
    assert await states(database) == {known: State.SUCCEEDED} | {call.call_id: State.RUNNING for call in good}
    await assert_usage_is_what_the_calls_say(database)
    assert await admitted_call(ledger)


async def test_an_outcome_that_cannot_be_written_fails_alone(database: Database, ledger: Ledger):
    one, two = await admitted_call(ledger), await admitted_call(ledger)
    answers = await asyncio.gather(
        ledger.settle(one, 2**70), ledger.settle(two, State.SUCCEEDED), return_exceptions=True
    )
    assert isinstance(answers[0], Exception)
    assert answers[1] is None
    assert await states(database) == {one: State.RUNNING, two: State.SUCCEEDED}


# Callers that go away


async def test_a_call_given_up_before_it_is_written_is_not_recorded(database: Database, ledger: Ledger):
    async with busy(database):
        first = asyncio.create_task(ledger.admit(asked()))
        await taken(ledger)  # and it waits
        late = asyncio.create_task(ledger.admit(asked()))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.wait([late])
    assert late.cancelled()
    assert await first
    await admitted_call(ledger)
    assert len(await calls(database)) == 2
    await assert_usage_is_what_the_calls_say(database)


async def test_a_call_given_up_while_it_is_written_is_settled_as_cancelled(database: Database, ledger: Ledger):
    admission = asked()
    async with busy(database):
        waiting = asyncio.create_task(ledger.admit(admission))
        await taken(ledger)
        waiting.cancel()
        async with asyncio.timeout(5):  # although the database is still busy
            await asyncio.wait([waiting])
    assert waiting.cancelled()
    await eventually(lambda: is_settled(database, admission.call_id, State.CANCELLED))
    await assert_usage_is_what_the_calls_say(database)


async def test_a_call_given_up_just_when_it_is_admitted_is_settled_as_cancelled(database: Database, ledger: Ledger):
    admission = asked()
    second: asyncio.Task[bool]

    async def first_of_the_group() -> None:
        await ledger.admit(asked())
        second.cancel()  # whose answer is ready, but it has not run since

    first = asyncio.create_task(first_of_the_group())
    second = asyncio.create_task(ledger.admit(admission))
    await asyncio.wait([first, second])
    assert second.cancelled()
    await eventually(lambda: is_settled(database, admission.call_id, State.CANCELLED))


async def test_an_outcome_is_recorded_also_if_nobody_waits_for_it(database: Database, ledger: Ledger):
    call_id = await admitted_call(ledger)
    async with busy(database):
        settling = asyncio.create_task(ledger.settle(call_id, State.SUCCEEDED))
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.wait([settling])
    assert settling.cancelled()
    await eventually(lambda: is_settled(database, call_id, State.SUCCEEDED))


async def test_a_loss_and_its_end_are_noticed_without_traffic_and_told_once(impatient: SqliteDatabase, told):
    """Health said SERVING while each call was refused, and nobody was told of the end."""
    ledger = Ledger(impatient)
    assert not ledger.is_writable
    await ledger.start()
    running = await admitted_call(ledger)
    for _ in range(2):
        assert ledger.is_writable
        with locked(impatient):
            await lose(ledger)
            await further_failures(ledger)
            with pytest.raises(ServiceUnavailableError):
                async with asyncio.timeout(0):  # at once: the first wait would end in a TimeoutError
                    await ledger.admit(asked())
        await eventually(lambda: ledger.is_writable)
    assert told() == ["the ledger cannot be written", "the ledger can be written again"] * 2
    assert await states(impatient) == {running: State.RUNNING}
    assert await impatient.revision() == 1
    await ledger.close()


async def test_outcomes_that_wait_are_written_before_calls_are_admitted_again(impatient: SqliteDatabase):
    ledger = Ledger(impatient)
    await ledger.start()
    running = [await admitted_call(ledger) for _ in range(3)]
    with locked(impatient):
        settling = [asyncio.create_task(ledger.settle(call_id, State.SUCCEEDED)) for call_id in running]
        await eventually(lambda: not ledger.is_writable)
        assert not any(task.done() for task in settling)
    await eventually(lambda: ledger.is_writable)
    assert await all_are(impatient, set(running), State.SUCCEEDED)
    await asyncio.gather(*settling)
    await ledger.close()
