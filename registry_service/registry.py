"""The Registry service: tools, their versions, which of those are active, manifests, and what an account may see."""

import asyncio
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import grpc
import msgspec
from google.protobuf.empty_pb2 import Empty
from packaging.version import Version
from sqlalchemy import Table, bindparam, case, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from naru.v1 import registry_pb2, registry_pb2_grpc
from registry_service.catalog import Catalog
from registry_service.errors import (
    DefinitionInvalidError,
    Fact,
    PageTokenInvalidError,
    RequestInvalidError,
    ToolNotFoundError,
    ToolVersionExistsError,
    ToolVersionNotFoundError,
)
from registry_service.identity.caller import CALLER
from registry_service.rpc.pagination import MAX_PAGE, PageTokens, page_size, timestamp
from registry_service.storage.database import Database
from registry_service.storage.models import CatalogRevision, Tool, ToolVersion, now_micros
from registry_service.tools.definition import name_fault, parse_definition, read_version
from registry_service.tools.definition_lint import Site
from registry_service.tools.json_document import Fault
from registry_service.tools.manifest import (
    Entry,
    Known,
    ManifestFault,
    Steps,
    manifest_warnings,
    plan_steps,
    read_manifest,
)
from registry_service.upstreams.reach import Reach

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

# A page ends where its JSON grows beyond this: a gRPC message may have 16 MiB.
MAX_PAGE_BYTES = 8 * 1024 * 1024
MAX_FAULTS_TOLD_BYTES = 4096

_TOOLS, _VERSIONS = cast(Table, Tool.__table__), cast(Table, ToolVersion.__table__)
_T = TypeVar("_T")


class RegistryServicer(registry_pb2_grpc.RegistryServicer):
    """A change is in force on every replica once its method has returned: the next admission sees its revision."""

    def __init__(self, database: Database, catalog: Catalog, pages: PageTokens, reach: Reach, site: Site) -> None:
        self._database = database
        self._catalog = catalog
        self._reach = reach
        self._pages = pages
        self._site = site

    async def ListTools(  # noqa: N802
        self, request: registry_pb2.ListToolsRequest, context: Context
    ) -> registry_pb2.ListToolsResponse:
        size = page_size(request.page_size)
        # Names sort by their bytes, whatever the collation of the database.
        name = Tool.name.collate("C" if self._database.dialect == "postgresql" else "BINARY")
        query = select(Tool).where(Tool.delete_time.is_(None)).order_by(name).limit(size + 1)
        if request.page_token:
            query = query.where(name > self._pages.key_after("tools", request.page_token))
        async with self._database.sessions() as session:
            rows = (await session.scalars(query)).all()
            tools = await _tools(session, rows[:size])
        more = rows[size - 1].name if len(rows) > size else None
        return registry_pb2.ListToolsResponse(tools=tools, next_page_token=self._pages.issue("tools", more))

    async def GetTool(  # noqa: N802
        self, request: registry_pb2.GetToolRequest, context: Context
    ) -> registry_pb2.Tool:
        async with self._database.sessions() as session:
            return await _tool(session, await _find_tool(session, request.name))

    async def DeleteTool(  # noqa: N802
        self, request: registry_pb2.DeleteToolRequest, context: Context
    ) -> Empty:
        async with self._database.change() as session:
            tool = await _find_tool(session, request.name)
            tool.delete_time = tool.update_time = now_micros()
            live = update(ToolVersion).where(ToolVersion.tool == tool.name, ToolVersion.delete_time.is_(None))
            await session.execute(live.values(active=False, delete_time=tool.delete_time))
        await self._catalog.load()
        return Empty()

    async def ListToolVersions(  # noqa: N802
        self, request: registry_pb2.ListToolVersionsRequest, context: Context
    ) -> registry_pb2.ListToolVersionsResponse:
        size = page_size(request.page_size)
        kind = f"versions of {request.tool}"
        after = self._after_version(kind, request.page_token)
        async with self._database.sessions() as session:
            tool = await _find_tool(session, request.tool)
            sizes = await _live_versions(session, tool.name)
            newest = sorted(sizes, key=Version, reverse=True)
            rest = [version for version in newest if after is None or Version(version) < after]
            page = rest[: _fitting([sizes[version] for version in rest[:size]])]
            chosen = ToolVersion.tool == tool.name, ToolVersion.version.in_(page)
            rows = {row.version: row for row in await session.scalars(select(ToolVersion).where(*chosen))}
        more = page[-1] if len(page) < len(rest) else None
        return registry_pb2.ListToolVersionsResponse(
            tool_versions=[_tool_version(rows[version]) for version in page],
            next_page_token=self._pages.issue(kind, more),
        )

    def _after_version(self, kind: str, token: str) -> Version | None:
        if not token:
            return None
        try:
            return read_version(self._pages.key_after(kind, token))
        except ValueError:
            raise PageTokenInvalidError("the page token is not one that this service issued") from None

    async def GetToolVersion(  # noqa: N802
        self, request: registry_pb2.GetToolVersionRequest, context: Context
    ) -> registry_pb2.ToolVersion:
        async with self._database.sessions() as session:
            tool = await _find_tool(session, request.tool)
            return _tool_version(await _find_version(session, tool, request.version))

    async def CreateToolVersion(  # noqa: N802
        self, request: registry_pb2.CreateToolVersionRequest, context: Context
    ) -> registry_pb2.ToolVersion:
        if message := name_fault(request.tool):
            raise RequestInvalidError(f"tool: {message}", field="tool", detail=message)
        version = _read_version(request.version)
        definition = await asyncio.to_thread(parse_definition, request.definition, self._catalog.plans.keys())
        if isinstance(definition, list):
            raise DefinitionInvalidError("the definition has faults", faults=_told(definition))
        async with self._database.change() as session:
            known = await _known(session, [request.tool])
            if taken := known.get(request.tool, {}).get(version):
                raise ToolVersionExistsError("the version number was used", tool=request.tool, version=taken.spelling)
            await _touch(session, [request.tool])
            row = _row(request.tool, version, definition.document)
            session.add(row)
        await self._catalog.load()
        return _tool_version(row)

    async def ActivateToolVersion(  # noqa: N802
        self, request: registry_pb2.ActivateToolVersionRequest, context: Context
    ) -> registry_pb2.Tool:
        async with self._database.change() as session:
            tool = await _find_tool(session, request.tool)
            version = (await _find_version(session, tool, request.version)).version
            active = set(await _active_versions(session, tool.name))
            wanted = {version} | (active if request.keep_others_active else set())
            message = await _switch(session, tool, active, wanted)
        await self._catalog.load()
        return message

    async def DeactivateToolVersion(  # noqa: N802
        self, request: registry_pb2.DeactivateToolVersionRequest, context: Context
    ) -> registry_pb2.Tool:
        async with self._database.change() as session:
            tool = await _find_tool(session, request.tool)
            version = (await _find_version(session, tool, request.version)).version
            active = set(await _active_versions(session, tool.name))
            message = await _switch(session, tool, active, active - {version})
        await self._catalog.load()
        return message

    async def ApplyManifest(  # noqa: N802
        self, request: registry_pb2.ApplyManifestRequest, context: Context
    ) -> registry_pb2.ApplyManifestResponse:
        # A large one takes seconds, and the calls of this process must not wait for it.
        entries, faults = await asyncio.to_thread(read_manifest, request.manifest, self._catalog.plans.keys())
        warnings = await asyncio.to_thread(manifest_warnings, entries, self._site)
        if request.strict:
            faults, warnings = [*faults, *warnings], []
        steps = await self._applied(entries, faults, validate_only=request.validate_only)
        return registry_pb2.ApplyManifestResponse(
            changes=steps.changes, faults=_shown(steps.faults), warnings=_shown(warnings)
        )

    async def _applied(
        self, entries: Sequence[Entry], faults: Sequence[ManifestFault], *, validate_only: bool
    ) -> Steps:
        """Plans before it takes the lock of the catalog, for which every call waits, and once more only if needed."""
        names = {entry.tool for entry in entries}
        async with self._database.sessions() as session:
            # First: if the rows are newer than this revision, they are read again.
            revision = await _revision(session)
            known = await _known(session, names)
        steps = await asyncio.to_thread(plan_steps, entries, faults, known)
        if validate_only or not _changes_anything(steps):
            return steps
        async with self._database.change() as session:
            if await _revision(session) != revision:
                known = await _known(session, names)
                steps = await asyncio.to_thread(plan_steps, entries, faults, known)
            await _carry_out(session, steps)
        await self._catalog.load()
        return steps

    async def CheckEndpoint(  # noqa: N802
        self, request: registry_pb2.CheckEndpointRequest, context: Context
    ) -> registry_pb2.CheckEndpointResponse:
        obstacle = await self._reach.obstacle(request.url)
        unknown = self._reach.unknown_secrets([request.url])
        return registry_pb2.CheckEndpointResponse(allowed=not obstacle, detail=obstacle, unknown_secrets=unknown)

    async def ListCatalog(  # noqa: N802
        self, request: registry_pb2.ListCatalogRequest, context: Context
    ) -> registry_pb2.ListCatalogResponse:
        view = await self._catalog.fresh()
        account = view.authenticate(CALLER.get().credential)
        lane = account.plan.lane(request.requested_lane)
        size = page_size(request.page_size, MAX_PAGE)
        listing = view.listing(account, lane)
        kind = f"catalog of {account.client_id} in {lane}"
        if request.page_token:
            after = self._pages.key_after(kind, request.page_token)
            listing = listing[bisect_right(listing, after, key=lambda entry: entry.name) :]
        sizes = [len(entry.mcp_tool) for entry in listing[:size]]
        page = listing[: _fitting(sizes)]
        more = page[-1].name if len(page) < len(listing) else None
        shown = registry_pb2.ListCatalogResponse.Entry
        return registry_pb2.ListCatalogResponse(
            entries=[shown(tool=entry.mcp_tool) for entry in page],
            next_page_token=self._pages.issue(kind, more),
            lane=lane,
        )


def _shown(faults: Sequence[ManifestFault]) -> list[registry_pb2.ApplyManifestResponse.Fault]:
    shown = registry_pb2.ApplyManifestResponse.Fault
    return [shown(pointer=pointer, tool=tool, message=message) for pointer, tool, message in faults]


async def _find_tool(session: AsyncSession, name: str) -> Tool:
    tool = None if name_fault(name) else await session.get(Tool, name)
    if tool is None or tool.delete_time is not None:
        raise ToolNotFoundError("there is no tool of this name", tool=name[:128])
    return tool


async def _find_version(session: AsyncSession, tool: Tool, text: str) -> ToolVersion:
    """Returns the version that PEP 440 calls equal: it may be stored under another spelling."""
    wanted = _read_version(text)
    for spelling in await _live_versions(session, tool.name):
        if Version(spelling) == wanted:
            return await session.get_one(ToolVersion, (tool.name, spelling))
    raise ToolVersionNotFoundError("the tool has no such version", tool=tool.name, version=str(wanted))


async def _live_versions(session: AsyncSession, tool: str) -> dict[str, int]:
    """Returns the versions of a tool, each with the size of its definition in bytes."""
    query = select(ToolVersion.version, func.length(ToolVersion.definition))
    rows = await session.execute(query.where(ToolVersion.tool == tool, ToolVersion.delete_time.is_(None)))
    return dict(rows.all())


async def _active_versions(session: AsyncSession, tool: str) -> Sequence[str]:
    return (
        await session.scalars(select(ToolVersion.version).where(ToolVersion.tool == tool, ToolVersion.active))
    ).all()


async def _switch(session: AsyncSession, tool: Tool, active: set[str], wanted: set[str]) -> registry_pb2.Tool:
    """Makes the wanted versions active in place of those that are, and returns the tool as it is then."""
    if active == wanted:
        session.info["unchanged"] = True
    else:
        await _set_active(session, {(tool.name, version) for version in active - wanted}, active=False)
        await _set_active(session, {(tool.name, version) for version in wanted - active}, active=True)
        tool.update_time = now_micros()
        await session.flush()
    return await _tool(session, tool)


async def _set_active(session: AsyncSession, keys: Iterable[tuple[str, str]], *, active: bool) -> None:
    if rows := [{"of_tool": tool, "of_version": version} for tool, version in keys]:
        chosen = update(_VERSIONS).where(
            _VERSIONS.c.tool == bindparam("of_tool"), _VERSIONS.c.version == bindparam("of_version")
        )
        # On the connection, where a list of rows is one round trip to the database.
        await (await session.connection()).execute(chosen.values(active=active), rows)


async def _known(session: AsyncSession, tools: Collection[str]) -> dict[str, dict[Version, Known]]:
    """Returns every version number that these tools have used."""
    known: dict[str, dict[Version, Known]] = {}
    columns = (_VERSIONS.c.tool, _VERSIONS.c.version, _VERSIONS.c.definition, _VERSIONS.c.active)
    for names in _chunks(sorted(tools)):
        query = select(*columns, _VERSIONS.c.delete_time).where(_VERSIONS.c.tool.in_(names))
        for tool, version, definition, active, delete_time in await session.execute(query):
            entry = Known(version, definition, active, delete_time is not None)
            known.setdefault(tool, {})[Version(version)] = entry
    return known


async def _revision(session: AsyncSession) -> int:
    return (await session.execute(select(CatalogRevision.revision))).scalar_one()


def _changes_anything(steps: Steps) -> bool:
    return bool(steps.created or steps.activated or steps.deactivated)


async def _carry_out(session: AsyncSession, steps: Steps) -> None:
    if not _changes_anything(steps):
        session.info["unchanged"] = True
        return
    await _touch(session, {name for name, _ in steps.activated | steps.deactivated} | {e.tool for e in steps.created})
    now = now_micros()
    for entries in _chunks(steps.created):
        keys = [(entry.tool, str(entry.version)) for entry in entries]
        rows = [
            {
                "tool": tool,
                "version": version,
                "definition": entry.definition.document,
                "active": (tool, version) in steps.activated,
                "create_time": now,
            }
            for entry, (tool, version) in zip(entries, keys, strict=True)
        ]
        await (await session.connection()).execute(insert(_VERSIONS), rows)
    await _set_active(session, steps.deactivated, active=False)
    # Those that were created have it from the start.
    new = {(entry.tool, str(entry.version)) for entry in steps.created}
    await _set_active(session, steps.activated - new, active=True)


async def _touch(session: AsyncSession, names: Collection[str]) -> None:
    """Makes or revives the tools, and marks them as changed now."""
    now = now_micros()
    connection = await session.connection()
    since = case((_TOOLS.c.delete_time.is_(None), _TOOLS.c.create_time), else_=now)
    touched = update(_TOOLS).values(create_time=since, update_time=now, delete_time=None)
    for chunk in _chunks(sorted(names)):
        known = set(await session.scalars(select(_TOOLS.c.name).where(_TOOLS.c.name.in_(chunk))))
        if known:
            await connection.execute(touched.where(_TOOLS.c.name.in_(known)))
        if new := [{"name": name, "create_time": now, "update_time": now} for name in chunk if name not in known]:
            await connection.execute(insert(_TOOLS), new)


def _chunks(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Statements have a bound on their parameters, and other tasks their turn between them."""
    return (items[start : start + MAX_PAGE] for start in range(0, len(items), MAX_PAGE))


def _row(tool: str, version: Version, definition: bytes) -> ToolVersion:
    return ToolVersion(tool=tool, version=str(version), definition=definition, active=False, create_time=now_micros())


async def _tool(session: AsyncSession, tool: Tool) -> registry_pb2.Tool:
    return (await _tools(session, [tool]))[0]


async def _tools(session: AsyncSession, tools: Sequence[Tool]) -> list[registry_pb2.Tool]:
    query = select(ToolVersion.tool, ToolVersion.version, ToolVersion.active).where(
        ToolVersion.tool.in_([tool.name for tool in tools]), ToolVersion.delete_time.is_(None)
    )
    versions: dict[str, list[tuple[str, bool]]] = {tool.name: [] for tool in tools}
    for name, version, active in await session.execute(query):
        versions[name].append((version, active))
    return [_tool_message(tool, versions[tool.name]) for tool in tools]


def _tool_message(tool: Tool, versions: Sequence[tuple[str, bool]]) -> registry_pb2.Tool:
    active = [version for version, is_active in versions if is_active]
    return registry_pb2.Tool(
        name=tool.name,
        active_versions=sorted(active, key=Version, reverse=True),
        version_count=len(versions),
        create_time=timestamp(tool.create_time),
        update_time=timestamp(tool.update_time),
    )


def _tool_version(row: ToolVersion) -> registry_pb2.ToolVersion:
    return registry_pb2.ToolVersion(
        tool=row.tool,
        version=row.version,
        active=row.active,
        definition=row.definition,
        create_time=timestamp(row.create_time),
    )


def _read_version(text: str) -> Version:
    try:
        return read_version(text)
    except ValueError as error:
        raise RequestInvalidError(f"version: {error}", field="version", detail=str(error)) from None


def _told(faults: Sequence[Fault]) -> list[Fact]:
    told: list[Fact] = []
    left = MAX_FAULTS_TOLD_BYTES
    for fault in faults:
        fact: Fact = {"pointer": fault.pointer, "message": fault.message}
        left -= len(msgspec.json.encode(fact)) + 1
        if left < 0:
            break
        told.append(fact)
    return told


def _fitting(sizes: Sequence[int]) -> int:
    """Returns how many of the first items fit into a page: one at least, if there is one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > MAX_PAGE_BYTES:
            return count
    return len(sizes)
