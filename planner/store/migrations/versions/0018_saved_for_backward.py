"""What backward passes were measured to keep."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_COLUMNS = {"saves_inputs": sa.Boolean, "saves_outputs": sa.Boolean, "saved_within_bytes": sa.BigInteger}


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.add_column("profile_nodes", sa.Column(name, kind(), nullable=True))


def downgrade() -> None:
    for name in reversed(_COLUMNS):
        op.drop_column("profile_nodes", name)
