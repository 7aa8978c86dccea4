"""Backward passes in two: for what a stage or a node is given, and for weights."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_HALVES = ("input_gradient_seconds", "weight_gradient_seconds")


def upgrade() -> None:
    for half in _HALVES:
        op.add_column("profile_nodes", sa.Column(half, sa.Double(), nullable=True))
    op.add_column("plan_stages", sa.Column("weight_share", sa.Double(), nullable=False, server_default="0.5"))


def downgrade() -> None:
    op.drop_column("plan_stages", "weight_share")
    for half in _HALVES:
        op.drop_column("profile_nodes", half)
