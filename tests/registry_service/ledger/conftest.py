"""Ledgers for tests."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import structlog
import structlog.testing

from registry_service.ledger import group_commit
from registry_service.ledger.ledger import Ledger
from registry_service.storage import sqlite as sqlite_module
from registry_service.storage.database import Database
from registry_service.storage.postgresql import PostgresqlDatabase
from registry_service.storage.sqlite import SqliteDatabase
from registry_service.storage.url import open_database
from tests.support.ledger_processes import LedgerProcess


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    started = Ledger(database)
    await started.start()
    yield started
    await started.close()


@pytest.fixture
async def start_process(database_url: str) -> AsyncIterator[Callable[[str], Awaitable[LedgerProcess]]]:
    started: list[LedgerProcess] = []

    async def start(mode: str) -> LedgerProcess:
        command = ("-m", "tests.support.ledger_process", database_url, mode)
        process = LedgerProcess(await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE))
        started.append(process)
        return process

    yield start
    for process in started:
        if process._process.returncode is None:
            await process.kill()


@pytest.fixture
async def postgres_ledger(postgres: PostgresqlDatabase) -> AsyncIterator[Ledger]:
    started = Ledger(postgres, sweep_seconds=0.1, orphan_seconds=0.2)
    await started.start()
    yield started
    await started.close()


@pytest.fixture
async def impatient(sqlite_url: str, monkeypatch) -> AsyncIterator[SqliteDatabase]:
    """A file for whose lock nobody waits long."""
    monkeypatch.setattr(sqlite_module, "_PRAGMAS", ("PRAGMA busy_timeout = 20", *sqlite_module._PRAGMAS[1:]))
    database = open_database(sqlite_url)
    assert isinstance(database, SqliteDatabase)
    await database.migrate()
    yield database
    await database.close()


@pytest.fixture
def told(monkeypatch) -> Callable[[], list[str]]:
    """Returns a function that lists what the log says of the ledger as a whole."""
    capture = structlog.testing.LogCapture()
    monkeypatch.setattr(group_commit, "_log", structlog.wrap_logger(None, processors=[capture]))
    events = ("the ledger cannot be written", "the ledger can be written again")
    return lambda: [entry["event"] for entry in capture.entries if entry["event"] in events]
