"""From the setting DATABASE_URL to a database."""

from pathlib import Path

from registry_service.storage.database import Database
from registry_service.storage.postgresql import PostgresqlDatabase
from registry_service.storage.sqlite import SqliteDatabase


def open_database(url: str) -> Database:
    """Opens `sqlite:///path` or `postgresql://user:password@host/database`.

    PostgreSQL is not asked for a connection yet; everything that asyncpg reads from a URL works (`sslmode`, several
    hosts, `host=/socket/directory`).

    Raises:
        DatabaseInUseError: another process owns the SQLite file.
        DatabaseUnreachableError: the SQLite file cannot be opened.
        ValueError: the URL is of neither kind.
    """
    scheme, separator, rest = url.partition("://")
    kind = scheme.partition("+")[0]
    if kind == "sqlite" and rest.startswith("/") and len(rest) > 1 and "?" not in rest and ":memory:" not in rest:
        return SqliteDatabase(Path(rest[1:]))
    if kind in ("postgresql", "postgres") and separator:
        return PostgresqlDatabase(f"postgresql://{rest}")
    raise ValueError("a database URL is sqlite:///path/of/a/file or postgresql://user:password@host/database")
