"""The compiled view of tools, accounts and plans under one revision, in memory: what every call looks at."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog
from packaging.version import InvalidVersion, Version
from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from registry_service.errors import (
    LaneNotConfiguredError,
    NaruError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ToolNotActiveError,
    ToolNotFoundError,
    ToolVersionAmbiguousError,
    ToolVersionNotFoundError,
)
from registry_service.identity.credentials import AccountEntry, Credential, authenticate
from registry_service.identity.plans import LANES, Plan
from registry_service.storage.database import UNAVAILABLE, Database
from registry_service.storage.models import Account, CatalogRevision, Secret, Tool, ToolVersion
from registry_service.tools.active_tool import ActiveTool, Key, Running, read_all
from registry_service.tools.definition import read_version
from registry_service.tools.schema_check import CompiledSchemas

# A name that a client sent is told back up to so many characters.
_NAME_TOLD = 128
_ROWS_AT_ONCE = 500

_log = structlog.get_logger()


class AbsentPlan(Plan):
    """The plan of an account whose plan is not among those of the plans file: it has no lane to run in.

    The account can authenticate. Whatever needs a lane fails until the file names the plan again, or the account gets
    another one; no plan is guessed for it.
    """

    __slots__ = ()

    def lane(self, requested: str) -> str:
        raise ServiceUnavailableError(f"an account has the plan {self.name}, which the plans file does not name")


class View:
    """Holds the catalog as it was at one revision. Nothing in it changes but `ActiveTool.running`."""

    __slots__ = ("_entries", "_listings", "_others", "_pepper", "accounts", "revision")

    def __init__(
        self,
        revision: int,
        accounts: Mapping[str, AccountEntry],
        tools: Mapping[str, Mapping[str, ActiveTool | None]],
        pepper: bytes,
    ) -> None:
        """`tools` holds the active versions of every registered tool, with None for one that cannot be read."""
        self._pepper = pepper
        self.revision = revision
        self.accounts = accounts
        alone = {name: next(iter(versions.values())) for name, versions in tools.items() if len(versions) == 1}
        self._entries = {name: entry for name, entry in sorted(alone.items()) if entry is not None}
        self._others = {name: sorted(tools[name], key=_order) for name in tools.keys() - self._entries.keys()}
        self._listings = {
            lane: tuple(entry for entry in self._entries.values() if lane in entry.definition.endpoints)
            for lane in LANES
        }

    def authenticate(self, credential: Credential | None) -> AccountEntry:
        """Returns the account whose live secret the credential holds.

        Raises UnauthenticatedError and AccountSuspendedError.
        """
        return authenticate(self.accounts, self._pepper, credential)

    def resolve(self, name: str, account: AccountEntry, lane: str) -> ActiveTool:
        """Returns the one active version of a tool, which this account may use in this lane.

        Raises, in this order: ToolNotFoundError, ToolNotActiveError, ToolVersionAmbiguousError, PermissionDeniedError,
        LaneNotConfiguredError.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise self._unresolved(name)
        return permitted(entry, account, lane)

    def _unresolved(self, name: str) -> NaruError:
        active = self._others.get(name)
        if active is None:
            return ToolNotFoundError(tool=name[:_NAME_TOLD])
        if len(active) > 1:
            return ToolVersionAmbiguousError(tool=name, active_versions=list(active))
        return ToolNotActiveError(tool=name)

    def listing(self, account: AccountEntry, lane: str) -> Sequence[ActiveTool]:
        """Returns the tools that `resolve` returns for this account in this lane, sorted by name."""
        return [entry for entry in self._listings[lane] if _admits(entry, account)]


def permitted(entry: ActiveTool, account: AccountEntry, lane: str) -> ActiveTool:
    """Returns the version, which this account may use in this lane.

    Raises PermissionDeniedError, LaneNotConfiguredError.
    """
    if not _admits(entry, account):
        raise PermissionDeniedError(tool=entry.name)
    if lane not in entry.definition.endpoints:
        raise LaneNotConfiguredError(tool=entry.name, lane=lane)
    return entry


def _admits(entry: ActiveTool, account: AccountEntry) -> bool:
    access = entry.definition.access
    return access is None or access.admits(account.client_id, account.plan.name)


def _order(version: str) -> tuple[Version, str]:
    try:
        return Version(version), version
    except InvalidVersion:
        return Version("0"), version


class _Rows(NamedTuple):
    revision: int
    tools: Sequence[str]
    active: Sequence[Key]
    definitions: Sequence[tuple[str, str, bytes]]
    accounts: Sequence[tuple[str, str, int]]
    secrets: Sequence[tuple[str, bytes]]


class Catalog:
    """Keeps the newest view. A version is immutable, so that it is read once as long as it stays active."""

    def __init__(self, database: Database, plans: Mapping[str, Plan], pepper: bytes) -> None:
        self._database = database
        self.plans = plans
        self._known: dict[Key, ActiveTool | None] = {}
        self._running: dict[Key, Running] = {}
        self._absent: dict[str, AbsentPlan] = {}
        self._held = CompiledSchemas()
        self._pepper = pepper
        self._lock = asyncio.Lock()
        self._begun = 0
        self._done = 0
        self.view = View(-1, {}, {}, pepper)

    async def load(self) -> View:
        """Reads the database, whatever the revision. All who come while one load runs share the next one.

        Raises what the database raises (`UNAVAILABLE`).
        """
        # A load that began before this call may have missed what the caller has just committed.
        wanted = self._begun + 1
        async with self._lock:
            if self._done < wanted:
                self._begun += 1
                self.view = await self._read()
                self._done = self._begun
            return self.view

    async def fresh(self) -> View:
        """Returns a view that was the newest during this call. Raises what the database raises (`UNAVAILABLE`)."""
        if await self._database.revision() != self.view.revision:
            return await self.load()
        return self.view

    async def version(self, tool: str, version: str) -> ActiveTool:
        """Returns a version, active or not, ready to run. It is read anew each time: few are asked for by name.

        Raises ToolVersionNotFoundError, and what the database raises (`UNAVAILABLE`).
        """
        async with self._database.sessions() as session:
            key = await _spelled(session, tool, version)
            definitions = [] if key is None else await _definitions(session, [key])
        if key is not None and definitions:
            read = await asyncio.to_thread(read_all, definitions, {key: self._counter(key)}, self._held)
            if (entry := read[key]) is not None:
                return entry
        raise ToolVersionNotFoundError(tool=tool[:_NAME_TOLD], version=version[:_NAME_TOLD])

    async def watch(self) -> None:
        """Reloads when another process changes something, until cancelled."""
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._database.listen(changed.set))
            group.create_task(self._follow(changed))

    async def _follow(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            try:
                await self.fresh()
            except UNAVAILABLE as error:
                # The next admission compares the revision anyway.
                _log.warning("catalog.reload_failed", error=type(error).__name__)

    async def _read(self) -> View:
        rows = await self._rows()
        if rows.definitions:
            # A large import takes seconds, and the calls of this process must not wait for it.
            counters = {(tool, version): self._counter((tool, version)) for tool, version, _ in rows.definitions}
            self._known |= await asyncio.to_thread(read_all, rows.definitions, counters, self._held)
        self._forget(set(rows.active))
        tools: dict[str, dict[str, ActiveTool | None]] = {name: {} for name in rows.tools}
        for name, version in rows.active:
            if name in tools:
                tools[name][version] = self._known[name, version]
        return View(rows.revision, self._account_entries(rows), tools, self._pepper)

    async def _rows(self) -> _Rows:
        """Reads until nothing was changed in between: PostgreSQL shows each statement what is newest."""
        while True:
            async with self._database.sessions() as session:
                revision = await _revision(session)
                active = await _active(session)
                rows = _Rows(
                    revision=revision,
                    tools=(await session.scalars(select(Tool.name).where(Tool.delete_time.is_(None)))).all(),
                    active=active,
                    definitions=await _definitions(session, [key for key in active if key not in self._known]),
                    accounts=await _accounts(session),
                    secrets=await _secrets(session),
                )
                if await _revision(session) == revision:
                    return rows

    def _counter(self, key: Key) -> Running:
        return self._running.setdefault(key, Running())

    def _forget(self, active: set[Key]) -> None:
        """Drops what is no longer active; a counter stays until its calls have ended."""
        self._known = {key: entry for key, entry in self._known.items() if key in active}
        self._running = {key: running for key, running in self._running.items() if key in active or running.count}

    def _account_entries(self, rows: _Rows) -> dict[str, AccountEntry]:
        digests: dict[str, tuple[bytes, ...]] = {}
        for client_id, digest in rows.secrets:
            digests[client_id] = (*digests.get(client_id, ()), digest)
        return {
            client_id: AccountEntry(client_id, self._plan(plan), state, digests.get(client_id, ()))
            for client_id, plan, state in rows.accounts
        }

    def _plan(self, name: str) -> Plan:
        plan = self.plans.get(name) or self._absent.get(name)
        if plan is None:
            _log.error("catalog.plan_absent", plan=name)
            plan = self._absent[name] = AbsentPlan(name, "", frozenset())
        return plan


async def _revision(session: AsyncSession) -> int:
    return (await session.execute(select(CatalogRevision.revision))).scalar_one()


async def _active(session: AsyncSession) -> list[Key]:
    query = select(ToolVersion.tool, ToolVersion.version)
    rows = await session.execute(query.where(ToolVersion.active, ToolVersion.delete_time.is_(None)))
    return [(tool, version) for tool, version in rows]


async def _spelled(session: AsyncSession, tool: str, text: str) -> Key | None:
    """Returns the key of a version that PEP 440 calls equal: it may be stored under another spelling."""
    try:
        wanted = read_version(text)
    except ValueError:
        return None
    query = select(ToolVersion.version).join(Tool, Tool.name == ToolVersion.tool)
    live = Tool.name == tool, Tool.delete_time.is_(None), ToolVersion.delete_time.is_(None)
    for spelling in await session.scalars(query.where(*live)):
        if Version(spelling) == wanted:
            return tool, spelling
    return None


async def _definitions(session: AsyncSession, keys: Sequence[Key]) -> list[tuple[str, str, bytes]]:
    query = select(ToolVersion.tool, ToolVersion.version, ToolVersion.definition)
    found: list[tuple[str, str, bytes]] = []
    for start in range(0, len(keys), _ROWS_AT_ONCE):
        wanted = tuple_(ToolVersion.tool, ToolVersion.version).in_(keys[start : start + _ROWS_AT_ONCE])
        found += [(tool, version, document) for tool, version, document in await session.execute(query.where(wanted))]
    return found


async def _accounts(session: AsyncSession) -> list[tuple[str, str, int]]:
    rows = await session.execute(select(Account.client_id, Account.plan, Account.state))
    return [(client_id, plan, state) for client_id, plan, state in rows]


async def _secrets(session: AsyncSession) -> list[tuple[str, bytes]]:
    query = select(Secret.client_id, Secret.digest).where(Secret.revoke_time.is_(None))
    rows = await session.execute(query.order_by(Secret.create_time, Secret.id))
    return [(client_id, digest) for client_id, digest in rows]
