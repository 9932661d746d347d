"""The journal on PostgreSQL: a group is one message, so that a process may stop at any moment and hold up nobody."""

from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from registry_service.ledger.journal import PROBE, ROW_FAULTS, Entry, OutcomeInDoubtError, Settlement, usage
from registry_service.storage.database import DatabaseUnreachableError
from registry_service.storage.postgresql import CATALOG_LOCK, PostgresqlDatabase, executor_key

WRITE_SECONDS = 15.0
CLAIM_SECONDS = 5.0

# The other errors of asyncpg: the server or the way to it failed, or the tables are not ours.
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

# In these statements 1 is the contract's `RUNNING` and 6 its `UNKNOWN`, which a late true outcome replaces.
#
# One message for a group, so that a client that stops in its midst holds no lock: the server has all of it or nothing,
# and commits by itself. Each statement of the function sees what was committed while the one before it waited. It is
# made anew for each connection, in the connection's own schema: code and function can't differ, whatever releases run.
_FUNCTION = """
CREATE FUNCTION pg_temp.write_group(
    owner text, call_ids text[], client_ids text[], tools text[], versions text[], lanes text[], session_ids text[],
    request_ids text[], create_times bigint[], trials boolean[], revisions bigint[],
    counted_revisions bigint[], counted_clients text[], counted_lanes text[], counted_periods text[], counts bigint[],
    late_states smallint[], late_reasons smallint[], late_times bigint[], durations bigint[], statuses smallint[],
    details text[], late_ids text[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    current bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared({}, {});
    SELECT revision INTO STRICT current FROM catalog_revision;
    IF current = ANY (revisions) THEN
        INSERT INTO calls (call_id, client_id, tool, version, lane, session_id, request_id, create_time, trial,
            executor, state, reason)
        SELECT call_id, client_id, tool, version, lane, session_id, request_id, create_time, trial,
            owner, 1, 0
        FROM unnest(call_ids, client_ids, tools, versions, lanes, session_ids, request_ids, create_times, trials,
            revisions)
            AS entry (call_id, client_id, tool, version, lane, session_id, request_id, create_time, trial, decided)
        WHERE decided = current;
    END IF;
    IF cardinality(late_ids) > 0 THEN
        UPDATE calls SET state = late.state, reason = late.reason, settle_time = late.settle_time,
            duration = late.duration, http_status = late.http_status, detail = late.detail
        FROM unnest(late_states, late_reasons, late_times, durations, statuses, details, late_ids)
            AS late (state, reason, settle_time, duration, http_status, detail, call_id)
        WHERE calls.call_id = late.call_id AND calls.state IN (1, 6);
    END IF;
    IF current = ANY (revisions) THEN
        -- Last: other replicas wait for these rows until the transaction ends.
        INSERT INTO usage (client_id, lane, period, calls)
        SELECT client_id, lane, period, calls
        FROM unnest(counted_revisions, counted_clients, counted_lanes, counted_periods, counts)
            AS counted (decided, client_id, lane, period, calls)
        WHERE decided = current
        ON CONFLICT (client_id, lane, period) DO UPDATE SET calls = usage.calls + excluded.calls;
    END IF;
    RETURN current;
END
$$
""".format(*CATALOG_LOCK)  # noqa: S608 -- two numbers of ours
_WRITE = "SELECT pg_temp.write_group({})".format(", ".join(f"${n}" for n in range(1, 24)))
_FIND = "SELECT call_id FROM calls WHERE call_id = ANY($1::text[])"
# Whoever holds a lock for longer than this does not hold up the calls of others: they are refused.
_LIMITS = {"lock_timeout": "2000", "statement_timeout": "10000"}


class PostgresqlJournal:
    """One connection, which also holds the executor's lock: while it lives, the process's rows are its own.

    A connection that comes after it waits for that lock, so it sees all that the one before it has committed.
    """

    def __init__(self, database: PostgresqlDatabase) -> None:
        self._database = database
        self._connection: asyncpg.Connection | None = None

    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def open(self, on_loss: Callable[[], None]) -> None:
        self._drop()
        connection = await self._database.connect(_LIMITS)
        try:
            key = executor_key(self._database.executor)
            await connection.execute("SELECT pg_advisory_lock($1)", key, timeout=CLAIM_SECONDS)
            await connection.execute(_FUNCTION, timeout=CLAIM_SECONDS)
            connection.add_termination_listener(lambda _: on_loss())
            self._connection = connection
        except _FAILURES as error:
            raise DatabaseUnreachableError(_told(error)) from error
        finally:
            if self._connection is None:
                connection.terminate()

    async def write(self, entries: Sequence[Entry], settlements: Sequence[Settlement]) -> int:
        connection = self._opened()
        try:
            if not entries and not settlements:
                await connection.execute(PROBE, timeout=WRITE_SECONDS)
            revision: int = await connection.fetchval(
                _WRITE, self._database.executor, *_columns(entries, settlements), timeout=WRITE_SECONDS
            )
        except ROW_FAULTS:
            raise
        except _FAILURES as error:
            self._drop()
            if _is_rolled_back(error):
                raise DatabaseUnreachableError(_told(error)) from error
            raise OutcomeInDoubtError(_told(error)) from error
        except BaseException:  # whether the server has it is found out on the next connection
            self._drop()
            raise
        return revision

    async def written(self, call_ids: Sequence[str]) -> set[str]:
        connection = self._opened()
        try:
            rows = await connection.fetch(_FIND, call_ids)
        except _FAILURES as error:
            self._drop()
            raise DatabaseUnreachableError(_told(error)) from error
        return {row["call_id"] for row in rows}

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=CLAIM_SECONDS)
            except _FAILURES:
                connection.terminate()

    def _opened(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            raise DatabaseUnreachableError("the ledger's connection is closed")
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _columns(entries: Sequence[Entry], settlements: Sequence[Settlement]) -> list[Sequence[Any]]:
    """Returns the arguments of the function after the executor: a list for each column."""
    rows = list(zip(*entries, strict=True))[:10] if entries else [()] * 10
    counted = [
        (revision, *counter)
        for revision in sorted(set(rows[9]))
        for counter in usage([entry for entry in entries if entry.revision == revision])
    ]
    counts = list(zip(*counted, strict=True)) if counted else [()] * 5
    outcomes = list(zip(*settlements, strict=True))[:7] if settlements else [()] * 7
    return [*rows, *counts, *outcomes]


def _is_rolled_back(error: BaseException) -> bool:
    """Returns whether the server itself answered that the statement failed: it doesn't once it has committed."""
    return isinstance(error, asyncpg.PostgresError) and error.severity_en in ("ERROR", "FATAL")


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__
