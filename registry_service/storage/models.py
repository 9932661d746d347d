"""The tables. Times are microseconds since the epoch, UTC: compact, exact and the same on SQLite and PostgreSQL."""

import time

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, LargeBinary, MetaData, SmallInteger, String, false, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite holds no text to its length, and what a column was declared as stays.
_TOOL_NAME = String(128).with_variant(String(64), "sqlite")


def now_micros() -> int:
    """The time as every table stores it."""
    return time.time_ns() // 1000


class Base(DeclarativeBase):
    # Names that a later migration can drop or change by, the same on both dialects.
    metadata = MetaData(
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
            "pk": "%(table_name)s_pkey",
        }
    )


class CatalogRevision(Base):
    """One row (id 1). Every change of tools, accounts or secrets adds one, in the same transaction."""

    __tablename__ = "catalog_revision"
    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    revision: Mapped[int] = mapped_column(BigInteger)


class PepperMark(Base):
    """One row (id 1): an HMAC under the pepper that the secrets are kept with."""

    __tablename__ = "pepper_mark"
    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    mark: Mapped[bytes] = mapped_column(LargeBinary)


class Tool(Base):
    __tablename__ = "tools"
    name: Mapped[str] = mapped_column(_TOOL_NAME, primary_key=True)
    create_time: Mapped[int] = mapped_column(BigInteger)
    update_time: Mapped[int] = mapped_column(BigInteger)
    # A deleted tool stays as a tombstone, so that its version numbers are never used again.
    delete_time: Mapped[int | None] = mapped_column(BigInteger)


class ToolVersion(Base):
    __tablename__ = "tool_versions"
    tool: Mapped[str] = mapped_column(ForeignKey("tools.name"), primary_key=True)
    version: Mapped[str] = mapped_column(String(128), primary_key=True)
    definition: Mapped[bytes] = mapped_column(LargeBinary)
    active: Mapped[bool] = mapped_column(Boolean)
    create_time: Mapped[int] = mapped_column(BigInteger)
    delete_time: Mapped[int | None] = mapped_column(BigInteger)


class Account(Base):
    __tablename__ = "accounts"
    client_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    display_name: Mapped[str] = mapped_column(String(200))
    plan: Mapped[str] = mapped_column(String(64))
    # A value of the contract's `Account.State`.
    state: Mapped[int] = mapped_column(SmallInteger)
    create_time: Mapped[int] = mapped_column(BigInteger)
    update_time: Mapped[int] = mapped_column(BigInteger)


class Secret(Base):
    __tablename__ = "secrets"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("accounts.client_id"), index=True)
    # HMAC-SHA-256 of the secret under the pepper, 32 bytes.
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    hint: Mapped[str] = mapped_column(String(4))
    create_time: Mapped[int] = mapped_column(BigInteger)
    revoke_time: Mapped[int | None] = mapped_column(BigInteger)


class Call(Base):
    __tablename__ = "calls"
    # On SQLite one page less for each group of calls to write.
    __table_args__ = ({"sqlite_with_rowid": False},)
    call_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    client_id: Mapped[str] = mapped_column(String(32))
    tool: Mapped[str] = mapped_column(_TOOL_NAME)
    version: Mapped[str] = mapped_column(String(128))
    lane: Mapped[str] = mapped_column(String(16))
    # Identifies the process that runs the call; see `Database.executor`.
    executor: Mapped[str] = mapped_column(String(32))
    # A value of the contract's `Call.State`.
    state: Mapped[int] = mapped_column(SmallInteger)
    # A value of the contract's `Reason`; 0 means none.
    reason: Mapped[int] = mapped_column(SmallInteger)
    session_id: Mapped[str] = mapped_column(String)
    request_id: Mapped[str] = mapped_column(String)
    create_time: Mapped[int] = mapped_column(BigInteger)
    settle_time: Mapped[int | None] = mapped_column(BigInteger)
    # From the admission to the outcome, in microseconds; None while it runs, and where nobody saw its end.
    duration: Mapped[int | None] = mapped_column(BigInteger)
    # The status of the endpoint's answer; 0 where there was none.
    http_status: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    # A few English words on what went wrong, for those who run the tool.
    detail: Mapped[str] = mapped_column(String, server_default=text("''"))
    # The admin named the version, which may have been inactive.
    trial: Mapped[bool] = mapped_column(Boolean, server_default=false())


# Finds the calls of processes that died, without an index entry for each of the millions of settled ones.
Index("calls_running", Call.executor, sqlite_where=Call.state == 1, postgresql_where=Call.state == 1)


class Usage(Base):
    __tablename__ = "usage"
    __table_args__ = ({"sqlite_with_rowid": False},)
    client_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    lane: Mapped[str] = mapped_column(String(16), primary_key=True)
    # A day `YYYY-MM-DD` or a month `YYYY-MM` in Asia/Seoul.
    period: Mapped[str] = mapped_column(String(10), primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)
