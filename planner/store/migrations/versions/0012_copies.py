"""A stage of a deployment may run on several devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLE = "deployment_stages"
KEY = "pk_deployment_stages"


def upgrade() -> None:
    with op.batch_alter_table(TABLE) as table:
        table.add_column(sa.Column("position", sa.BigInteger(), nullable=False, server_default="0"))
        table.drop_constraint(KEY, type_="primary")
        table.create_primary_key(KEY, ["deployment_id", "stage", "position"])


def downgrade() -> None:
    # Of a stage's copies the first stays.
    op.execute(
        f"DELETE FROM {TABLE} WHERE EXISTS (SELECT 1 FROM {TABLE} AS earlier"
        f" WHERE earlier.deployment_id = {TABLE}.deployment_id AND earlier.stage = {TABLE}.stage"
        f" AND earlier.position < {TABLE}.position)"
    )
    with op.batch_alter_table(TABLE) as table:
        table.drop_constraint(KEY, type_="primary")
        table.create_primary_key(KEY, ["deployment_id", "stage"])
        table.drop_column("position")
