"""Fixtures over real processes. What they log is shown when a test fails."""

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ops.stack import Stack
from tests.conformance.pack import Running, start_pack
from tests.support import node_setup
from tests.support.pair import Pair, running_pair
from tests.support.postgresql import PostgresqlServer, running_postgresql


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A stack on a new SQLite file, in which nothing runs yet."""
    with Stack(tmp_path) as stack:
        yield stack


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A real PostgreSQL server, started when the first test needs it."""
    with running_postgresql() as server:
        yield server


@pytest.fixture
def postgresql_stack(postgresql: PostgresqlServer, tmp_path: Path) -> Iterator[Stack]:
    """A stack on an empty PostgreSQL database, in which nothing runs yet."""
    url = postgresql.create_database()
    with Stack(tmp_path, url) as stack:
        yield stack
    postgresql.drop_database(url)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One running pair for all tests that only call tools."""
    with Stack(tmp_path_factory.mktemp("running")) as stack:
        yield start_pack(stack)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """One running pair for all tests of what goes over the wire. They share its event loop: that of the session."""
    async with running_pair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture(scope="module")
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """The shared pair, with no tools of other modules."""
    yield shared_pair
    shared_pair.retire()


@pytest.fixture(scope="session")
def node() -> Path:
    """Node, with the locked packages installed in `node_setup.NODE_DIRECTORY`."""
    node_setup.install()
    return node_setup.NODE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            stack = value.stack if isinstance(value, Running | Pair) else value
            if isinstance(stack, Stack):
                report.sections += [(f"log of {process.name}", process.tail(20)) for process in stack.processes]
    return report
