"""What still refers to an object that somebody wants to delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import Conflict, few_of

MOST_NAMED = 5


async def refuse_while_needed(
    session: AsyncSession, subject: str, needed_by: Mapping[str, Select[Any]], remedy: str
) -> None:
    """`needed_by` selects ids by what they are ids of. Raises Conflict with them; its metadata has them by kind.

    The caller has locked the subject's row: nothing begins to refer to it before the transaction ends.
    """
    referring: dict[str, str] = {}
    for kind, query in needed_by.items():
        ids = (await session.scalars(query)).all()
        if ids:
            referring[kind] = few_of(sorted(ids), MOST_NAMED)
    if referring:
        named = "; ".join(f"{kind} {ids}" for kind, ids in referring.items())
        raise Conflict(f"{subject} is needed by {named}; {remedy}", **referring)
