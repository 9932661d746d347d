"""Fixtures over real processes. What they log is shown when a test fails."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conformance import PACK
from tests.e2e import node_setup
from tests.e2e.admin import Credential, read_manifest
from tests.e2e.processes import Process, Stack


class Running(NamedTuple):
    """A pair that serves the tool pack of the conformance suite, and an account that may call it."""

    stack: Stack
    registry: Process
    gateway: Process
    credential: Credential

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/mcp"


def start_pack(stack: Stack) -> Running:
    """Starts a pair and the pack's endpoints in this stack, registers the tools and an account."""
    registry = stack.registry()
    endpoints = stack.start("tests.conformance.endpoints")
    admin = stack.admin(registry)
    admin.apply(read_manifest(PACK, TOOLS_URL=endpoints.url))
    return Running(stack, registry, stack.gateway(registry), admin.create_account())


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A stack on a new SQLite file, in which nothing runs yet."""
    with Stack(tmp_path) as stack:
        yield stack


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One running pair for all tests that only call tools."""
    with Stack(tmp_path_factory.mktemp("running")) as stack:
        yield start_pack(stack)


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
            stack = value.stack if isinstance(value, Running) else value
            if isinstance(stack, Stack):
                report.sections += [(f"log of {process.name}", process.tail()) for process in stack.processes]
    return report
