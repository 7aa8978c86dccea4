"""What ends a training step beside its bytes: norms of gradients and an optimizer's step, measured by profiles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_SECONDS = ("norm_seconds", "optimizer_seconds")


def upgrade() -> None:
    for name in _SECONDS:
        op.add_column("profiles", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    for name in _SECONDS:
        op.drop_column("profiles", name)
