"""Counters of a month: as they were written, and counted from the calls themselves."""

from datetime import UTC, datetime

import pytest

from registry_service.ledger.ledger import Ledger, new_call_id
from registry_service.ledger.usage import usage_of_month
from registry_service.storage.database import Database
from tests.support.ledger import admitted_call

YEAR_END = datetime(2026, 1, 1, tzinfo=UTC).timestamp() - 9 * 3600  # the new year in Seoul


def moment(days: float) -> dict[str, object]:
    """A time before or after the new year, with the id of a call of that time."""
    seconds = YEAR_END + days * 86_400
    return {
        "create_time": round(seconds * 1_000_000),
        "call_id": f"{round(seconds * 1000):012x}{new_call_id()[12:]}",
    }


@pytest.fixture
async def counted(database: Database, ledger: Ledger) -> Database:
    for client_id, tool, lane, days in (
        ("one", "echo", "production", -0.001),
        ("one", "echo", "production", 0.001),
        ("one", "echo", "production", 30.999),
        ("one", "add", "production", 0.002),
        ("one", "echo", "real_test", 0.003),
        ("two", "echo", "production", 0.004),
        ("one", "echo", "production", 31.001),
    ):
        await admitted_call(ledger, client_id=client_id, tool=tool, lane=lane, **moment(days))
    return database


@pytest.mark.parametrize(("client_id", "shared"), [("one", 1), (None, 2)])
async def test_usage_by_lane(counted: Database, client_id: str | None, shared: int):
    assert await usage_of_month(counted, "2026-01", client_id, by_tool=False) == {
        ("2026-01", "production", ""): 2 + shared,
        ("2026-01", "real_test", ""): 1,
        ("2026-01-01", "production", ""): 1 + shared,
        ("2026-01-01", "real_test", ""): 1,
        ("2026-01-31", "production", ""): 1,
    }


@pytest.mark.parametrize(("client_id", "shared"), [("one", 1), (None, 2)])
async def test_usage_by_tool(counted: Database, client_id: str | None, shared: int):
    found = await usage_of_month(counted, "2026-01", client_id, by_tool=True)
    assert found == {
        ("2026-01", "production", "add"): 1,
        ("2026-01", "production", "echo"): 1 + shared,
        ("2026-01", "real_test", "echo"): 1,
        ("2026-01-01", "production", "add"): 1,
        ("2026-01-01", "production", "echo"): shared,
        ("2026-01-01", "real_test", "echo"): 1,
        ("2026-01-31", "production", "echo"): 1,
    }
    assert list(found) == sorted(found)


async def test_a_month_without_calls_has_no_counters(counted: Database):
    for by_tool in (False, True):
        assert await usage_of_month(counted, "2026-03", None, by_tool=by_tool) == {}
        assert await usage_of_month(counted, "2026-01", "three", by_tool=by_tool) == {}
