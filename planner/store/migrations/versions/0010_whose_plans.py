"""Who asked for a plan, and when its turn is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plan_operations", sa.Column("principal", sa.Text(), nullable=False, server_default=""))
    op.add_column("plan_operations", sa.Column("due_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE plan_operations SET due_at = created_at")


def downgrade() -> None:
    for name in ("due_at", "principal"):
        op.drop_column("plan_operations", name)
