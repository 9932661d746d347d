"""Adds how a call went (its duration, the endpoint's HTTP status, a detail) and whether it was a trial."""

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("calls", sa.Column("duration", sa.BigInteger))
    op.add_column("calls", sa.Column("http_status", sa.SmallInteger, nullable=False, server_default="0"))
    op.add_column("calls", sa.Column("detail", sa.String, nullable=False, server_default=sa.text("''")))
    op.add_column("calls", sa.Column("trial", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    for column in ("trial", "detail", "http_status", "duration"):
        op.drop_column("calls", column)
