"""CPUs whose workers share the cores of their host."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TABLES = ("inventory_devices", "daemons")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("shares_cores", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "shares_cores")
