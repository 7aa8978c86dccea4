"""Checkpoints of trainings: their files, and which tensors are where in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("graph_id", sa.String(length=64), nullable=False),
        sa.Column("optimizer", sa.Text(), nullable=False),
        sa.Column("num_steps", sa.BigInteger(), nullable=False),
        sa.Column("seed", sa.Text(), nullable=False),
        sa.Column("loss_scale", sa.Double(), nullable=False),
        sa.Column("num_grown", sa.BigInteger(), nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name=op.f("fk_checkpoints_graph_id_graphs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
    )
    for column in ("run", "graph_id", "created_at"):
        op.create_index(op.f(f"ix_checkpoints_{column}"), "checkpoints", [column], unique=False)
    op.create_table(
        "checkpoint_files",
        sa.Column("checkpoint_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("is_model", sa.Boolean(), nullable=False),
        _of_checkpoint("checkpoint_files"),
        sa.PrimaryKeyConstraint("checkpoint_id", "position", name=op.f("pk_checkpoint_files")),
    )
    op.create_index(op.f("ix_checkpoint_files_sha256"), "checkpoint_files", ["sha256"], unique=False)
    op.create_table(
        "checkpoint_tensors",
        sa.Column("checkpoint_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("optimizer_tensor", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("dims", sa.JSON(), nullable=False),
        sa.Column("file_sha256", sa.String(length=64), nullable=False),
        sa.Column("offset_bytes", sa.BigInteger(), nullable=False),
        sa.Column("length_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        _of_checkpoint("checkpoint_tensors"),
        sa.PrimaryKeyConstraint("checkpoint_id", "position", name=op.f("pk_checkpoint_tensors")),
    )


def downgrade() -> None:
    for table in ("checkpoint_tensors", "checkpoint_files", "checkpoints"):
        op.drop_table(table)


def _of_checkpoint(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["checkpoint_id"],
        ["checkpoints.id"],
        name=op.f(f"fk_{table}_checkpoint_id_checkpoints"),
        ondelete="CASCADE",
    )
