"""Whether a deployment's stages are compiled, and by how much that changes what they give."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deployments", sa.Column("compile", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("deployment_stages", sa.Column("compiled_difference", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("deployment_stages", "compiled_difference")
    op.drop_column("deployments", "compile")
