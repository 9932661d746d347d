"""Calls whose process died before it could tell what became of them: they are settled as UNKNOWN.

An executor is dead when its lock can be taken (`Database.is_dead`). On PostgreSQL a live one is without its lock for
the moment in which it connects anew, so there an executor has to look dead twice, with time in between.
"""

from sqlalchemy import select, update

from naru.v1 import errors_pb2, execution_pb2
from registry_service.storage.database import Database
from registry_service.storage.models import Call, now_micros


class Orphans:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._suspects: set[str] = set()

    async def settle(self) -> bool:
        """Settles the calls of executors that are dead, and returns whether others are suspected for the first time.

        Raises what a database that is away raises.
        """
        self._suspects = {executor for executor in await self._executors() if await self._settle_calls_of(executor)}
        return bool(self._suspects)

    async def _executors(self) -> list[str]:
        """Returns the executors that have unsettled calls, except for our own."""
        query = select(Call.executor).where(Call.state == execution_pb2.Call.RUNNING).distinct()
        async with self._database.sessions() as session:
            return [executor for executor in await session.scalars(query) if executor != self._database.executor]

    async def _settle_calls_of(self, executor: str) -> bool:
        """Settles the calls of a dead executor.

        Returns True if it looks dead for the first time: its calls are settled only when it looks dead again.
        """
        settlement = (
            update(Call)
            .where(Call.executor == executor, Call.state == execution_pb2.Call.RUNNING)
            .values(state=execution_pb2.Call.UNKNOWN, reason=errors_pb2.CALL_OUTCOME_UNKNOWN, settle_time=now_micros())
        )
        async with self._database.write() as session:
            if not await self._database.is_dead(session, executor):
                return False
            if self._database.dialect == "postgresql" and executor not in self._suspects:
                return True
            await session.execute(settlement)
        return False
