"""The planner's own secret: one row that all planners of a database share, made by the first."""

from __future__ import annotations

import secrets
from datetime import datetime

from sqlalchemy.exc import IntegrityError

from planner.store.database import Database
from planner.store.tables import SecretRow

SECRET_BYTES = 32
_NAME = "deployments"


async def planner_secret(database: Database, now: datetime) -> bytes:
    """What the secrets of deployments are derived from."""
    secret = await _find(database)
    if secret is not None:
        return secret
    try:
        async with database.session() as session:
            session.add(SecretRow(name=_NAME, value=secrets.token_hex(SECRET_BYTES), created_at=now))
    except IntegrityError:
        # Another planner was first.
        pass
    secret = await _find(database)
    assert secret is not None
    return secret


async def _find(database: Database) -> bytes | None:
    async with database.reading() as session:
        row = await session.get(SecretRow, _NAME)
    return None if row is None else bytes.fromhex(row.value)
