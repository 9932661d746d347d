"""A process with a ledger, for tests that kill it: `python -m tests.support.ledger_process URL MODE`.

It prints one line for each thing that the ledger has promised, after the promise. `hold`: admits six calls, settles two
and waits. `load`: admits and settles, sixteen calls at a time, until it is killed. `change`: changes the catalog again
and again, and says when it is in the midst of it.
"""

import asyncio
import sys

from sqlalchemy import update

from naru.v1 import execution_pb2
from registry_service.ledger.ledger import Admission, Ledger, new_call_id
from registry_service.storage.database import Database
from registry_service.storage.models import Tool, now_micros
from registry_service.storage.url import open_database


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def admit(ledger: Ledger, database: Database, client: int) -> str:
    """The version of a call is the revision of the catalog that it was decided on."""
    while True:
        call_id, revision = new_call_id(), await database.revision()
        asked = Admission(
            call_id, f"client{client}", "tool", str(revision), "production", "", "1", revision, now_micros()
        )
        if await ledger.admit(asked):
            tell("admitted", call_id)
            return call_id


async def settle(ledger: Ledger, call_id: str) -> None:
    await ledger.settle(call_id, execution_pb2.Call.SUCCEEDED)
    tell("settled", call_id)


async def hold(ledger: Ledger, database: Database) -> None:
    calls = await asyncio.gather(*(admit(ledger, database, 0) for _ in range(6)))
    await settle(ledger, calls[0])
    await settle(ledger, calls[1])
    tell("holding")
    await asyncio.Event().wait()


async def load(ledger: Ledger, database: Database) -> None:
    async def client(number: int) -> None:
        while True:
            await settle(ledger, await admit(ledger, database, number))

    await asyncio.gather(*(client(number) for number in range(16)))


async def change(ledger: Ledger, database: Database) -> None:
    while True:
        async with database.change() as session:
            await session.execute(update(Tool).values(update_time=now_micros()))
            tell("changing")
            await asyncio.sleep(0.05)


async def main(url: str, mode: str) -> None:
    database = open_database(url)
    ledger = Ledger(database)
    await ledger.start()
    tell("executor", database.executor)
    await {"hold": hold, "load": load, "change": change}[mode](ledger, database)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
