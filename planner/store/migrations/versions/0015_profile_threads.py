"""The threads that a profile's operators used, where they were asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profiles", sa.Column("num_threads", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("profiles", "num_threads")
