"""Bearer tokens as rows: who holds each, what it allows and until when. Never the token itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import NotFound
from planner.store.paging import PageRequest
from planner.store.tables import TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    id: str
    holder: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


async def add_token(session: AsyncSession, token: Token, sha256: bytes) -> None:
    session.add(
        TokenRow(
            id=token.id,
            sha256=sha256.hex(),
            holder=token.holder,
            scopes=list(token.scopes),
            created_at=token.created_at,
            expires_at=token.expires_at,
        )
    )


async def find_token(session: AsyncSession, sha256: bytes) -> Token | None:
    row = await session.scalar(select(TokenRow).where(TokenRow.sha256 == sha256.hex()))
    return None if row is None else _record(row)


async def list_tokens(session: AsyncSession, page: PageRequest, *, holder: str = "") -> tuple[tuple[Token, ...], str]:
    """Newest first; an empty holder lets everything through."""
    query = select(TokenRow).where(TokenRow.holder == holder) if holder else select(TokenRow)
    rows = await session.scalars(page.select(query, TokenRow.created_at, TokenRow.id))
    return page.cut([_record(row) for row in rows])


async def revoke_token(session: AsyncSession, token_id: str, now: datetime) -> Token:
    """Idempotent: the first moment stands. Raises NotFound."""
    row = await session.get(TokenRow, token_id)
    if row is None:
        raise NotFound(f"no token {token_id[:80]!r}; `planner-cli tokens list` has their ids", token_id=token_id)
    row.revoked_at = row.revoked_at or now
    return _record(row)


def _record(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        holder=row.holder,
        scopes=tuple(row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
