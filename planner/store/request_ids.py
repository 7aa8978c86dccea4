"""Create calls that can be sent twice: the first result of a request id stands for good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import InvalidArgument, RequestIdReused
from planner.store.database import Database
from planner.store.tables import RequestIdRow

MAX_CHARACTERS = 200
ATTEMPTS = 5


async def find_result(session: AsyncSession, method: str, request_id: str, fingerprint: str) -> str | None:
    """What the same call answered before. Raises RequestIdReused where the call was another."""
    if len(request_id) > MAX_CHARACTERS:
        raise InvalidArgument(f"request_id has {len(request_id)} characters, at most {MAX_CHARACTERS} are taken")
    row = await session.get(RequestIdRow, (method, request_id)) if request_id else None
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise RequestIdReused(
            f"request_id {request_id!r} was used for another {method}; make a new one for a new request",
            result_id=row.result_id,
        )
    return row.result_id


async def create_once(
    database: Database,
    method: str,
    request_id: str,
    fingerprint: str,
    now: datetime,
    create: Callable[[AsyncSession], Awaitable[str]],
) -> tuple[str, bool]:
    """(id of the result, whether this call made it). `create` and the request id are one transaction.

    Of calls that arrive together one wins; the others are rolled back and find its result.
    """
    for attempt in range(ATTEMPTS):
        try:
            async with database.session() as session:
                earlier_id = await find_result(session, method, request_id, fingerprint)
                if earlier_id is not None:
                    return earlier_id, False
                result_id = await create(session)
                if request_id:
                    session.add(
                        RequestIdRow(
                            method=method,
                            request_id=request_id,
                            fingerprint=fingerprint,
                            result_id=result_id,
                            created_at=now,
                        )
                    )
            return result_id, True
        except IntegrityError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
