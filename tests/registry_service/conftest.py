"""Databases for tests: the same tests run on SQLite and on a real PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from registry_service.storage.database import Database
from registry_service.storage.postgresql import PostgresqlDatabase
from registry_service.storage.sqlite import SqliteDatabase
from registry_service.storage.url import open_database
from registry_service.telemetry.metrics import CALLS_RUNNING
from tests.support.postgresql import PostgresqlServer, running_postgresql
from tests.support.registry_in_process import House, opened


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """The server of this session, started when the first test needs it."""
    with running_postgresql() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql: PostgresqlServer) -> Iterator[str]:
    """An empty database."""
    url = postgresql.create_database()
    yield url
    postgresql.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return f"sqlite:///{tmp_path}/naru.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open database with all tables."""
    opened = open_database(database_url)
    try:
        await opened.migrate()
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[SqliteDatabase]:
    opened = open_database(sqlite_url)
    assert isinstance(opened, SqliteDatabase)
    await opened.migrate()
    yield opened
    await opened.close()


@pytest.fixture
async def postgres(postgresql_url: str) -> AsyncIterator[PostgresqlDatabase]:
    opened = open_database(postgresql_url)
    assert isinstance(opened, PostgresqlDatabase)
    await opened.migrate()
    yield opened
    await opened.close()


@pytest.fixture
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    """A registry service on SQLite, or on what BOTH_DATABASES says."""
    database = open_database(request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url"))
    try:
        await database.migrate()
        async with opened(database, tmp_path) as house:
            yield house
            # Whatever a test did, nothing is left running.
            assert CALLS_RUNNING._value.get() == 0
    finally:
        await database.close()
