"""Which of the planners on one database hears the daemons and rolls plans out: the one that has claimed the role.

It is one role, not one for each deployment: a daemon's heartbeat speaks of all that it holds, to one planner. On SQLite
there is one planner, and nothing to claim.
"""

from __future__ import annotations

import secrets

from sqlalchemy import select, true
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import NotLeading
from planner.store.claims import claim_next, give_back, renew_claims
from planner.store.database import Database
from planner.store.tables import RoleRow


class Leadership:
    """Taken when it is free or its holder fell silent. What is written under it is refused once another has it."""

    def __init__(self, database: Database, claim_seconds: float) -> None:
        self.claim_seconds = claim_seconds
        self._database = database
        self._planner_id = f"planner-{secrets.token_hex(6)}"
        self._fence: int | None = None

    async def take(self) -> None:
        """Raises NotLeading where another planner has it. Does nothing where this one has it already."""
        if not self._database.is_shared or await self.renew():
            return
        async with self._database.session() as session:
            row = await claim_next(session, RoleRow, self._planner_id, self.claim_seconds, true())
        if row is None:
            raise _not_leading()
        self._fence = row.fence

    async def renew(self) -> bool:
        """False where it was never taken, or another planner has it by now. What the database says counts: that this
        one took it may not have been confirmed."""
        if not self._database.is_shared:
            return True
        async with self._database.session() as session:
            await renew_claims(session, RoleRow, self._planner_id, self.claim_seconds, true())
            fence = await session.scalar(select(RoleRow.fence).where(RoleRow.claimed_by == self._planner_id))
        self._fence = fence
        return fence is not None

    async def check(self, session: AsyncSession) -> None:
        """Raises NotLeading where another planner has it; none can take it before the transaction ends."""
        if not self._database.is_shared:
            return
        holder = select(RoleRow.fence).where(RoleRow.claimed_by == self._planner_id).with_for_update(read=True)
        if self._fence is None or await session.scalar(holder) != self._fence:
            raise _not_leading()

    async def give_up(self) -> None:
        """Another planner has it at once."""
        if self._database.is_shared and self._fence is not None:
            self._fence = None
            async with self._database.session() as session:
                await give_back(session, RoleRow, RoleRow.claimed_by == self._planner_id)


def _not_leading() -> NotLeading:
    return NotLeading(
        "another planner on this database hears the daemons and rolls plans out; give clients and daemons the "
        "addresses of all planners (a:1,b:2), and they find it"
    )
