from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Connection, Integer, MetaData, Table, select

from registry_service.storage.database import Database
from registry_service.storage.models import Base, CatalogRevision


def differences(connection: Connection, metadata: MetaData) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, metadata))


async def test_the_migrations_make_the_tables_of_the_models(database: Database):
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences, Base.metadata) == []


async def test_the_comparison_sees_a_difference(database: Database):
    other = MetaData(naming_convention=Base.metadata.naming_convention)
    for table in Base.metadata.tables.values():
        table.to_metadata(other)
    other.tables["usage"].append_column(Column("added", Integer))
    Table("another", other, Column("id", Integer, primary_key=True))
    async with database.engine.connect() as connection:
        found = await connection.run_sync(differences, other)
    assert {str(difference[0]) for difference in found} == {"add_table", "add_column"}  # type: ignore[index]


async def test_names_of_constraints_are_those_of_the_models(database: Database):
    """A later migration changes and drops by name."""

    def names(metadata: MetaData) -> set[str]:
        tables = [table for table in metadata.tables.values() if table.name != "alembic_version"]
        constraints = {str(constraint.name) for table in tables for constraint in table.constraints}
        return constraints | {str(index.name) for table in tables for index in table.indexes}

    def reflected(connection: Connection) -> set[str]:
        found = MetaData()
        found.reflect(connection)
        return names(found)

    async with database.engine.connect() as connection:
        assert await connection.run_sync(reflected) == names(Base.metadata)


async def test_the_catalog_begins_at_revision_1(database: Database):
    async with database.sessions() as session:
        assert [(row.id, row.revision) for row in await session.scalars(select(CatalogRevision))] == [(1, 1)]
