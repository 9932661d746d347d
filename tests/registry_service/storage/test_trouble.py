"""One word for what keeps a database from being used, whoever says it."""

import errno
import sqlite3

import pytest

from registry_service.storage.database import DatabaseReplacedError, DatabaseUnreachableError
from registry_service.storage.trouble import cause_of


def behind(error: Exception) -> DatabaseUnreachableError:
    """Wraps an error as the journals do."""
    outer = DatabaseUnreachableError(str(error))
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full"),
        (OSError(errno.EROFS, "Read-only file system"), "database_read_only"),
        (OSError(errno.EIO, "Input/output error"), "disk_error"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "database_unreachable"),
        (TimeoutError(), "database_unreachable"),
        (sqlite3.OperationalError("made here, without a code"), "database_unreachable"),
        (DatabaseReplacedError("gone"), "database_replaced"),
    ],
)
def test_the_cause_of_an_error(error: Exception, cause: str):
    assert cause_of(error) == cause_of(behind(error)) == cause
