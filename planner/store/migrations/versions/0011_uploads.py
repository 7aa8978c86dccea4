"""Whose uploads a blob's bytes count as."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("principal", "sha256", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_sha256"), "uploads", ["sha256"], unique=False)


def downgrade() -> None:
    op.drop_table("uploads")
