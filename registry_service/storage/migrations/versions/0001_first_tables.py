"""The first tables, and the catalog at revision 1."""

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    _create_catalog()
    _create_accounts()
    _create_ledger()


def downgrade() -> None:
    for table in ("usage", "calls", "secrets", "accounts", "tool_versions", "tools", "catalog_revision"):
        op.drop_table(table)


def _create_catalog() -> None:
    revisions = op.create_table(
        "catalog_revision",
        sa.Column("id", sa.SmallInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="catalog_revision_pkey"),
    )
    op.bulk_insert(revisions, [{"id": 1, "revision": 1}])
    op.create_table(
        "tools",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("create_time", sa.BigInteger, nullable=False),
        sa.Column("update_time", sa.BigInteger, nullable=False),
        sa.Column("delete_time", sa.BigInteger),
        sa.PrimaryKeyConstraint("name", name="tools_pkey"),
    )
    op.create_table(
        "tool_versions",
        sa.Column("tool", sa.String(64), nullable=False),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("definition", sa.LargeBinary, nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("create_time", sa.BigInteger, nullable=False),
        sa.Column("delete_time", sa.BigInteger),
        sa.PrimaryKeyConstraint("tool", "version", name="tool_versions_pkey"),
        sa.ForeignKeyConstraint(["tool"], ["tools.name"], name="tool_versions_tool_fkey"),
    )


def _create_accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("client_id", sa.String(32), nullable=False),
        sa.Column("display_name", sa.String(200), nullable=False),
        sa.Column("plan", sa.String(64), nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("create_time", sa.BigInteger, nullable=False),
        sa.Column("update_time", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("client_id", name="accounts_pkey"),
    )
    op.create_table(
        "secrets",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("client_id", sa.String(32), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("hint", sa.String(4), nullable=False),
        sa.Column("create_time", sa.BigInteger, nullable=False),
        sa.Column("revoke_time", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="secrets_pkey"),
        sa.ForeignKeyConstraint(["client_id"], ["accounts.client_id"], name="secrets_client_id_fkey"),
    )
    op.create_index("secrets_client_id_idx", "secrets", ["client_id"])


def _create_ledger() -> None:
    op.create_table(
        "calls",
        sa.Column("call_id", sa.String(32), nullable=False),
        sa.Column("client_id", sa.String(32), nullable=False),
        sa.Column("tool", sa.String(64), nullable=False),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("lane", sa.String(16), nullable=False),
        sa.Column("executor", sa.String(32), nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("reason", sa.SmallInteger, nullable=False),
        sa.Column("session_id", sa.String, nullable=False),
        sa.Column("request_id", sa.String, nullable=False),
        sa.Column("create_time", sa.BigInteger, nullable=False),
        sa.Column("settle_time", sa.BigInteger),
        sa.PrimaryKeyConstraint("call_id", name="calls_pkey"),
        sqlite_with_rowid=False,
    )
    running = sa.text("state = 1")
    op.create_index("calls_running", "calls", ["executor"], sqlite_where=running, postgresql_where=running)
    op.create_table(
        "usage",
        sa.Column("client_id", sa.String(32), nullable=False),
        sa.Column("lane", sa.String(16), nullable=False),
        sa.Column("period", sa.String(10), nullable=False),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("client_id", "lane", "period", name="usage_pkey"),
        sqlite_with_rowid=False,
    )
