"""The steps that bring the tables to what models.py says, by Alembic; one file a step in `versions/`."""

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


class UnknownRevisionError(Exception):
    """The tables are those of a newer version of Naru; the message tells their revision."""


def is_current(connection: Connection) -> bool:
    """Tells whether the tables are exactly those of this program."""
    return _revision(connection) == ScriptDirectory.from_config(_config()).get_current_head()


def upgrade(connection: Connection) -> None:
    """Takes the steps that are missing, in the connection's transaction. Raises UnknownRevisionError."""
    config = _config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    revision = _revision(connection)
    if revision is not None and revision not in known:
        raise UnknownRevisionError(f"the database is at revision {revision}, which this version of Naru does not know")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "registry_service.storage:migrations")
    return config


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
