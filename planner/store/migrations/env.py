"""What Alembic runs: it migrates over the connection that Database.migrate hands it."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from planner.store.tables import Row, UtcDateTime


def render_item(kind: str, item: Any, _autogenerate_context: Any) -> str | Literal[False]:
    """A revision must not change when the package does, so it names SQLAlchemy's types only."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def run() -> None:
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=Row.metadata, render_item=render_item)
    with context.begin_transaction():
        context.run_migrations()


run()
