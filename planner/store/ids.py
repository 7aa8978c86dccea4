"""Ids as people give them: whole, or the beginning of one that fits a single object. Resolved here alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select, union
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from planner.errors import InvalidArgument
from planner.store.tables import (
    CheckpointRow,
    DeploymentRow,
    GraphRow,
    InventoryRow,
    PlanOperationRow,
    PlanRow,
    ProfileRow,
    TokenRow,
)

# Fewer fit too much: whoever deletes should have meant it.
MIN_DIGITS = 6
MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """`start` and then hexadecimal digits, fewer than a whole id has."""

    start: str
    num_digits: int
    columns: tuple[InstrumentedAttribute[str], ...]

    def is_prefix(self, text: str) -> bool:
        digits = f"[0-9a-f]{{{MIN_DIGITS},{self.num_digits - 1}}}"
        return re.fullmatch(re.escape(self.start) + digits, text) is not None


# A plan that was deleted, or failed, has its operation left.
_KINDS: Mapping[str, _Kind] = {
    "graph": _Kind(start="", num_digits=64, columns=(GraphRow.id,)),
    "inventory": _Kind(start="inv-", num_digits=12, columns=(InventoryRow.id,)),
    "plan": _Kind(start="plan-", num_digits=12, columns=(PlanRow.id, PlanOperationRow.id)),
    "profile": _Kind(start="prof-", num_digits=12, columns=(ProfileRow.id,)),
    "deployment": _Kind(start="dep-", num_digits=12, columns=(DeploymentRow.id,)),
    "checkpoint": _Kind(start="ckpt-", num_digits=12, columns=(CheckpointRow.id,)),
    "token": _Kind(start="token-", num_digits=12, columns=(TokenRow.id,)),
}


def may_be_prefix(kind: str, text: str) -> bool:
    return _KINDS[kind].is_prefix(text)


async def whole_id(session: AsyncSession, kind: str, text: str) -> str:
    """The id that begins with `text`; `text` itself where none does. Raises InvalidArgument where several do.

    Needs six digits at least.
    """
    if not may_be_prefix(kind, text):
        return text
    ids = union(*(select(column).where(column.startswith(text)) for column in _KINDS[kind].columns)).subquery()
    column = ids.c[0]
    fitting = (await session.scalars(select(column).order_by(column).limit(MOST_NAMED + 1))).all()
    if len(fitting) > 1:
        named = ", ".join(fitting[:MOST_NAMED]) + (" and more" if len(fitting) > MOST_NAMED else "")
        raise InvalidArgument(f"{kind} id {text} fits {named}; give more digits")
    return fitting[0] if fitting else text
