"""Names what keeps a database from being used: the word `cause` of failures, of health and of the log."""

import errno
import sqlite3
from collections.abc import Iterator

import asyncpg

from registry_service.storage.database import DatabaseReplacedError

UNREACHABLE = "database_unreachable"

# Names of SQLite's result codes, without what an extended code adds.
_SQLITE = {
    "SQLITE_FULL": "disk_full",
    "SQLITE_READONLY": "database_read_only",
    "SQLITE_IOERR": "disk_error",
    "SQLITE_CORRUPT": "database_corrupt",
    "SQLITE_BUSY": "database_locked",
}
# Errors of the operating system, as at the probe for room.
_SYSTEM = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EROFS: "database_read_only",
    errno.EIO: "disk_error",
}


def cause_of(error: BaseException) -> str:
    """Returns the cause of an error that a database raised."""
    for cause in _chain(error):
        if isinstance(cause, DatabaseReplacedError):
            return "database_replaced"
        if isinstance(cause, asyncpg.DiskFullError):
            return "disk_full"
        if isinstance(cause, asyncpg.ReadOnlySQLTransactionError):
            return "database_read_only"
        if isinstance(cause, sqlite3.Error):
            name = "_".join((getattr(cause, "sqlite_errorname", None) or "").split("_")[:2])
            return _SQLITE.get(name, UNREACHABLE)
        if isinstance(cause, OSError) and cause.errno in _SYSTEM:
            return _SYSTEM[cause.errno]
    return UNREACHABLE


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and those behind it. SQLAlchemy keeps the driver's own as `orig`."""
    following: BaseException | None = error
    for _ in range(10):
        if following is None:
            return
        yield following
        following = getattr(following, "orig", None) or following.__cause__
