"""Reads how many calls were admitted, by period and lane; for one account or all, with each tool apart or not."""

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

from sqlalchemy import ColumnElement, func, select

from registry_service.ledger.records import id_at
from registry_service.storage.database import Database
from registry_service.storage.models import Call, Usage

# Seoul, which has had no summer time since 1988.
_SEOUL = timezone(timedelta(hours=9))
_OFFSET_MICROS = 9 * 3_600_000_000
_DAY_MICROS = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# By period, lane and tool; the tool is empty where tools are not counted apart.
Key = tuple[str, str, str]


async def usage_of_month(database: Database, month: str, client_id: str | None, *, by_tool: bool) -> dict[Key, int]:
    """Returns the counters of a month `YYYY-MM` and of its days, in order. Without a client id all accounts count."""
    counted = await (_by_tool if by_tool else _by_lane)(database, month, client_id)
    return dict(sorted(counted.items()))


async def _by_lane(database: Database, month: str, client_id: str | None) -> dict[Key, int]:
    # Each period by name, and no range: collations of PostgreSQL differ on how `-` sorts.
    periods = [month, *(f"{month}-{day:02}" for day in range(1, 32))]
    query = select(Usage.period, Usage.lane, func.sum(Usage.calls)).where(Usage.period.in_(periods))
    if client_id is not None:
        query = query.where(Usage.client_id == client_id)
    async with database.sessions() as session:
        rows = await session.execute(query.group_by(Usage.period, Usage.lane))
        return {(period, lane, ""): int(calls) for period, lane, calls in rows}


async def _by_tool(database: Database, month: str, client_id: str | None) -> dict[Key, int]:
    """Counts the calls themselves: a counter for each tool would have to be written with each call."""
    start, end = _bounds(month)
    day: ColumnElement[int] = (Call.create_time + _OFFSET_MICROS) // _DAY_MICROS
    query = select(day, Call.lane, Call.tool, func.count()).where(
        Call.create_time >= start,
        Call.create_time < end,
        Call.call_id >= id_at(start, -1),
        Call.call_id < id_at(end, 1),
    )
    if client_id is not None:
        query = query.where(Call.client_id == client_id)
    counted = Counter[Key]()
    async with database.sessions() as session:
        for number, lane, tool, calls in await session.execute(query.group_by(day, Call.lane, Call.tool)):
            period = (_EPOCH + timedelta(days=number)).date().isoformat()
            counted[period, lane, tool] += calls
            counted[month, lane, tool] += calls
    return counted


def _bounds(month: str) -> tuple[int, int]:
    """Returns when a month begins and ends in Seoul, in microseconds since the epoch."""
    start = datetime.strptime(month, "%Y-%m").replace(tzinfo=_SEOUL)
    end = (start + timedelta(days=31)).replace(day=1)
    return _micros(start), _micros(end)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
