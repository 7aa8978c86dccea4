"""What a worker spends on a client's inputs and outputs: measured by profiles, counted in plans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("input_seconds", "output_seconds"):
        op.add_column("profiles", sa.Column(name, sa.Double(), nullable=True))
    op.add_column("plan_stages", sa.Column("delivery_seconds", sa.Double(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("plan_stages", "delivery_seconds")
    for name in ("input_seconds", "output_seconds"):
        op.drop_column("profiles", name)
