"""Reads what the ledger holds of calls, for people: one record, or those that filters admit."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select

from registry_service.ledger.ledger import CALL_ID
from registry_service.storage.database import Database
from registry_service.storage.models import Call

# A call's id begins with the time of its request, and its admission follows within seconds. In milliseconds.
_HOUR = 3_600_000
_LAST_TIME = 16**12 - 1


class Filter(NamedTuple):
    """Admits calls by what is given. Times are in microseconds: from `since` on, before `until`."""

    client_id: str = ""
    tool: str = ""
    state: int = 0
    reason: int = 0
    since: int | None = None
    until: int | None = None


class Records:
    """The records of all calls, whichever process ran them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, call_id: str) -> Call | None:
        """Returns the record of a call, if there is one."""
        if not CALL_ID.fullmatch(call_id):
            return None
        async with self._database.sessions() as session:
            return await session.get(Call, call_id)

    async def newest(self, wanted: Filter, before: str | None, limit: int) -> Sequence[Call]:
        """Returns so many of the calls that the filter admits, newest first; those before the call of the id `before`.

        The calls are walked through in the order of their ids, which is that of time, and so needs no index of its own
        that each call would have to pay for.
        """
        query = select(Call).order_by(Call.call_id.desc()).limit(limit)
        equal = wanted._replace(since=None, until=None)._asdict()
        query = query.filter_by(**{name: value for name, value in equal.items() if value})
        if wanted.since is not None:
            query = query.where(Call.create_time >= wanted.since, Call.call_id >= id_at(wanted.since, -1))
        if wanted.until is not None:
            query = query.where(Call.create_time < wanted.until, Call.call_id < id_at(wanted.until, 1))
        if before is not None:
            query = query.where(Call.call_id < before)
        async with self._database.sessions() as session:
            return (await session.scalars(query)).all()


def id_at(micros: int, hours: int) -> str:
    """Returns how ids of calls begin so many hours after a time."""
    return f"{min(max(micros // 1000 + hours * _HOUR, 0), _LAST_TIME):012x}"
