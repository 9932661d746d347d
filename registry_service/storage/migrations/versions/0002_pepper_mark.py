"""A mark of the pepper that the secrets were made with, and names of tools of up to 128 characters."""

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

_NAMES = (("tools", "name"), ("tool_versions", "tool"), ("calls", "tool"))


def upgrade() -> None:
    op.create_table(
        "pepper_mark",
        sa.Column("id", sa.SmallInteger, nullable=False),
        sa.Column("mark", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pepper_mark_pkey"),
    )
    _set_length(64, 128)


def downgrade() -> None:
    _set_length(128, 64)
    op.drop_table("pepper_mark")


def _set_length(before: int, after: int) -> None:
    # SQLite holds no text to its length, and would copy the whole table.
    if op.get_bind().dialect.name == "postgresql":
        for table, column in _NAMES:
            op.alter_column(table, column, type_=sa.String(after), existing_type=sa.String(before))
