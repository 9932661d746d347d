"""SQLite: a file that cannot be written, or is not at its path any more."""

import asyncio
import errno
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from naru.v1 import execution_pb2
from registry_service.errors import CallOutcomeUnknownError, ServiceUnavailableError
from registry_service.ledger import sqlite_journal
from registry_service.ledger.ledger import Ledger
from registry_service.storage import sqlite as sqlite_module
from registry_service.storage.database import DatabaseUnreachableError
from registry_service.storage.sqlite import SqliteDatabase
from registry_service.storage.url import open_database
from tests.support.ledger import (
    admitted_call,
    asked,
    further_failures,
    locked,
    lose,
    states,
)
from tests.support.waiting import eventually

State = execution_pb2.Call


async def test_a_file_that_cannot_be_written_heals(impatient: SqliteDatabase):
    ledger = Ledger(impatient)
    await ledger.start()
    running = await admitted_call(ledger)
    intruder = sqlite3.connect(impatient.path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    settling = asyncio.create_task(ledger.settle(running, State.SUCCEEDED))
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    assert not settling.done()
    intruder.execute("ROLLBACK")
    intruder.close()
    async with asyncio.timeout(10):
        await settling
    assert await states(impatient) == {running: State.SUCCEEDED}
    assert await admitted_call(ledger)
    await ledger.close()


async def test_a_file_that_opens_but_cannot_be_written_is_away(impatient: SqliteDatabase, monkeypatch):
    """As on a full disk: each attempt opens the file, and no row can be written."""
    ledger = Ledger(impatient)
    await ledger.start()
    running = await admitted_call(ledger)
    ours = sqlite_module._PRAGMAS
    monkeypatch.setattr(sqlite_module, "_PRAGMAS", (*ours, "PRAGMA query_only = ON"))
    with locked(impatient):
        await lose(ledger)
    await further_failures(ledger)
    assert not ledger.is_writable
    monkeypatch.setattr(sqlite_module, "_PRAGMAS", ours)
    await eventually(lambda: ledger.is_writable)
    await ledger.settle(running, State.SUCCEEDED)
    assert await admitted_call(ledger)
    await ledger.close()


async def test_a_full_disk_is_away_until_a_group_has_room(impatient: SqliteDatabase, monkeypatch, told):
    """A probe of one page succeeded where no group could be written: health said SERVING all the time."""
    ledger = Ledger(impatient)
    await ledger.start()

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sqlite_journal, "TemporaryFile", no_room)
    with locked(impatient):
        await lose(ledger)
    await further_failures(ledger)
    assert not ledger.is_writable
    monkeypatch.setattr(sqlite_journal, "TemporaryFile", TemporaryFile)
    await eventually(lambda: ledger.is_writable)
    assert told() == ["the ledger cannot be written", "the ledger can be written again"]
    assert await admitted_call(ledger)
    assert {path.name for path in impatient.path.parent.iterdir()} <= {
        *("naru.db", "naru.db-wal", "naru.db-shm", "naru.db.lock")
    }
    await ledger.close()


async def test_what_nobody_foresaw_at_the_reopening_refuses_and_is_tried_again(sqlite: SqliteDatabase):
    """Without a writer every call would wait for ever."""
    ledger = Ledger(sqlite)
    await ledger.start()
    intruder = sqlite.connect()
    intruder.execute("DELETE FROM catalog_revision")
    ledger._writer._journal._drop()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        with pytest.raises(ServiceUnavailableError):
            await ledger.admit(asked())
        intruder.execute("INSERT INTO catalog_revision (id, revision) VALUES (1, 1)")
        intruder.close()
        await eventually(lambda: ledger.is_writable)
        assert await admitted_call(ledger)
    await ledger.close()


def remove(path: Path) -> None:
    path.unlink()


def replace_with_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def move_its_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name(f"{path.parent.name}-elsewhere"))


@pytest.mark.parametrize("name", ["naru.db", "naru.db-wal", "naru.db-shm"])
@pytest.mark.parametrize("harm", [remove, replace_with_a_copy, move_its_directory])
async def test_nothing_is_written_to_a_file_that_is_not_at_its_path(
    sqlite: SqliteDatabase, harm: Callable[[Path], None], name: str
):
    """It would be gone when the process ends. Nor is an empty file made in its place."""
    ledger = Ledger(sqlite)
    await ledger.start()
    await admitted_call(ledger)
    before = set(sqlite.path.parent.iterdir())
    harm(sqlite.path.with_name(name))
    for _ in range(2):
        with pytest.raises(ServiceUnavailableError):
            await ledger.admit(asked())
    await eventually(lambda: not ledger.is_writable)
    with pytest.raises(DatabaseUnreachableError, match="removed or replaced"):
        await sqlite.ping()
    with pytest.raises(DatabaseUnreachableError, match="removed or replaced"):
        async with sqlite.change():
            pass
    after = set(sqlite.path.parent.iterdir()) if sqlite.path.parent.exists() else set()
    assert after <= before
    await ledger.close()


async def test_a_file_that_was_put_back_is_written_again(sqlite: SqliteDatabase):
    ledger = Ledger(sqlite)
    await ledger.start()
    before = await admitted_call(ledger)
    away = sqlite.path.with_name("away")
    sqlite.path.rename(away)
    with pytest.raises(ServiceUnavailableError):
        await ledger.admit(asked())
    await eventually(lambda: not ledger.is_writable)
    away.rename(sqlite.path)
    await eventually(lambda: ledger.is_writable)
    await ledger.settle(before, State.SUCCEEDED)
    assert await admitted_call(ledger)
    assert (await states(sqlite))[before] == State.SUCCEEDED
    await ledger.close()


async def test_what_a_removed_log_held_is_there_after_a_stop(sqlite_url: str):
    """SQLite writes it into the main file when the last connection closes."""
    database = open_database(sqlite_url)
    assert isinstance(database, SqliteDatabase)
    await database.migrate()
    ledger = Ledger(database)
    await ledger.start()
    call_id = await admitted_call(ledger)
    database.path.with_name("naru.db-wal").unlink()
    await ledger.close()
    await database.close()
    again = open_database(sqlite_url)
    assert set(await states(again)) == {call_id}
    await again.close()


async def test_a_ledger_does_not_start_where_it_cannot_write(sqlite: SqliteDatabase, monkeypatch):
    """On a full disk it was ready, until the first call."""

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sqlite_journal, "TemporaryFile", no_room)
    ledger = Ledger(sqlite)
    with pytest.raises(DatabaseUnreachableError, match="No space left"):
        await ledger.start()
    assert not ledger.is_writable
    monkeypatch.setattr(sqlite_journal, "TemporaryFile", TemporaryFile)
    await ledger.start()
    assert await admitted_call(ledger)
    await ledger.close()


async def test_a_ledger_that_closes_while_the_file_cannot_be_written_ends(impatient: SqliteDatabase):
    ledger = Ledger(impatient)
    await ledger.start()
    running = await admitted_call(ledger)
    intruder = sqlite3.connect(impatient.path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    settling = asyncio.create_task(ledger.settle(running, State.SUCCEEDED))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await ledger.close()
    with pytest.raises(CallOutcomeUnknownError):
        await settling
    intruder.close()
