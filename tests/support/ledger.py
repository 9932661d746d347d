"""Helps tests of the ledger: makes what they ask of it, and reads what they find in the database."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select

from naru.v1 import execution_pb2
from registry_service.errors import ServiceUnavailableError
from registry_service.ledger.ledger import Admission, Ledger, new_call_id
from registry_service.storage.database import Database
from registry_service.storage.models import Call, Usage, now_micros
from registry_service.storage.postgresql import CATALOG_LOCK, executor_key
from registry_service.storage.sqlite import SqliteDatabase
from tests.support.waiting import eventually

State = execution_pb2.Call


def asked(**changes: object) -> Admission:
    admission = Admission(
        call_id=new_call_id(),
        client_id="nrci_abc",
        tool="echo",
        version="1.0",
        lane="production",
        session_id="session",
        request_id='"7"',
        revision=1,
        create_time=now_micros(),
    )
    return replace(admission, **changes)  # type: ignore[arg-type]


async def calls(database: Database) -> dict[str, Call]:
    async with database.sessions() as session:
        return {call.call_id: call for call in await session.scalars(select(Call))}


async def states(database: Database) -> dict[str, int]:
    return {call_id: call.state for call_id, call in (await calls(database)).items()}


async def counters(database: Database) -> dict[tuple[str, str, str], int]:
    async with database.sessions() as session:
        return {(row.client_id, row.lane, row.period): row.calls for row in await session.scalars(select(Usage))}


async def assert_usage_is_what_the_calls_say(database: Database) -> None:
    expected = Counter[tuple[str, str, str]]()
    for call in (await calls(database)).values():
        seoul = datetime.fromtimestamp((call.create_time + 9 * 3_600_000_000) // 1_000_000, UTC)
        for form in ("%Y-%m-%d", "%Y-%m"):
            expected[call.client_id, call.lane, seoul.strftime(form)] += 1
    assert await counters(database) == expected


async def admitted_call(ledger: Ledger, **changes: object) -> str:
    admission = asked(**changes)
    assert await ledger.admit(admission) is True
    return admission.call_id


@asynccontextmanager
async def busy(database: Database) -> AsyncIterator[None]:
    """Nothing can be written to the ledger meanwhile."""
    async with database.write() as session:
        if database.dialect == "postgresql":
            await session.execute(select(func.pg_advisory_xact_lock(*CATALOG_LOCK)))
        yield


async def taken(ledger: Ledger) -> None:
    """Waits until what was asked for is in the hands of the writer."""
    await asyncio.sleep(0)  # tasks made just now begin
    await eventually(lambda: not ledger._writer._entries)


async def is_settled(database: Database, call_id: str, state: int) -> bool:
    return (await states(database)).get(call_id) == state


async def all_are(database: Database, call_ids: set[str], state: int) -> bool:
    found = await states(database)
    return bool(call_ids) and {found[call_id] for call_id in call_ids} == {state}


def backend(database: Database) -> str:
    """SQL for the connection of the ledger of a database: that which holds the executor's lock."""
    key = executor_key(database.executor) & 2**64 - 1
    return (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        f" AND classid = {key >> 32} AND objid = {key & 2**32 - 1}"
    )


@contextmanager
def locked(database: SqliteDatabase) -> Iterator[None]:
    """By another process."""
    intruder = sqlite3.connect(database.path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        intruder.execute("ROLLBACK")
        intruder.close()


async def lose(ledger: Ledger) -> None:
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    await eventually(lambda: not ledger.is_writable)


async def further_failures(ledger: Ledger) -> None:
    before = ledger._writer._failures
    await eventually(lambda: ledger._writer._failures > before + 2)
