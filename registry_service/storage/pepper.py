"""Keeps the mark of the pepper, without which all secrets in the database open nothing."""

import hmac

from sqlalchemy import select, text

from registry_service.storage.database import Database
from registry_service.storage.models import PepperMark

# If two processes start at once, the mark of the first one stays.
_KEEP = text("INSERT INTO pepper_mark (id, mark) VALUES (1, :mark) ON CONFLICT (id) DO NOTHING")


async def holds_mark(database: Database, mark: bytes) -> bool:
    """Returns whether the database's secrets were made with the pepper of this mark. The first mark stays."""
    found = await _mark(database)
    if found is None:
        async with database.change() as session:
            session.info["unchanged"] = True
            await session.execute(_KEEP, {"mark": mark})
        found = await _mark(database)
    return found is not None and hmac.compare_digest(found, mark)


async def _mark(database: Database) -> bytes | None:
    async with database.sessions() as session:
        return await session.scalar(select(PepperMark.mark))
