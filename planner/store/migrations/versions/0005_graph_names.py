"""Every name that a graph was submitted under."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "graph_names",
        sa.Column("graph_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name=op.f("fk_graph_names_graph_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("graph_id", "name", name=op.f("pk_graph_names")),
    )
    op.create_index(op.f("ix_graph_names_name"), "graph_names", ["name"])
    op.execute("INSERT INTO graph_names (graph_id, name) SELECT id, name FROM graphs")


def downgrade() -> None:
    op.drop_index(op.f("ix_graph_names_name"), table_name="graph_names")
    op.drop_table("graph_names")
