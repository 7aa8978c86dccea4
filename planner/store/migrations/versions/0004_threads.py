"""How many threads a deployment's workers use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLES = ("deployments", "deployment_stages")


def upgrade() -> None:
    for table in TABLES:
        # 0 is what a deployment without the setting has; the default stays, for SQLite cannot drop one.
        op.add_column(table, sa.Column("num_threads", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "num_threads")
