"""Pages of a list, newest first: a page goes on after the last row of the one before, so new rows never shift it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from sqlalchemy import Select, exists, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from planner.errors import InvalidArgument
from planner.store.tables import OwnerRow

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000


class Listed(Protocol):
    """What can stand in a list."""

    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> datetime: ...


Item = TypeVar("Item", bound=Listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """`scope` names the list and its filters: a token of one list does not fit another.

    `owner` lets only what that principal owns of the kind `kind` through; empty, everything.
    """

    scope: str
    size: int
    after: tuple[datetime, str] | None
    kind: str = ""
    owner: str = ""
    created_since: datetime | None = None

    def select(
        self, query: Select[Any], created_at: InstrumentedAttribute[datetime], id_: InstrumentedAttribute[str]
    ) -> Select[Any]:
        """The page's rows, and one more to know whether there is another page."""
        if self.owner:
            its_own = exists().where(
                OwnerRow.kind == self.kind, OwnerRow.object_id == id_, OwnerRow.principal == self.owner
            )
            query = query.where(its_own)
        if self.created_since is not None:
            query = query.where(created_at >= self.created_since)
        if self.after is not None:
            query = query.where(tuple_(created_at, id_) < tuple_(*self.after))
        return query.order_by(created_at.desc(), id_.desc()).limit(self.size + 1)

    def cut(self, rows: Sequence[Item]) -> tuple[tuple[Item, ...], str]:
        """The page and the token of the next; an empty token after the last."""
        items = tuple(rows[: self.size])
        return items, self._token(items[-1]) if len(rows) > self.size else ""

    def _token(self, last: Listed) -> str:
        content = json.dumps([self.scope, last.created_at.isoformat(), last.id])
        return base64.urlsafe_b64encode(content.encode()).decode()


def parse_page(
    scope: str,
    page_size: int,
    page_token: str,
    *,
    kind: str = "",
    owner: str = "",
    created_since: datetime | None = None,
) -> PageRequest:
    """A size of 0 means 50; above 1000 it is 1000. Raises InvalidArgument for a token of another list."""
    size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    if owner or created_since:
        scope = f"{scope} owner={owner} since={created_since}"
    first = PageRequest(scope=scope, size=size, after=None, kind=kind, owner=owner, created_since=created_since)
    if not page_token:
        return first
    try:
        token_scope, created_at, last_id = json.loads(base64.urlsafe_b64decode(page_token.encode()))
        after = (datetime.fromisoformat(created_at), str(last_id))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidArgument("page_token is not one that this server gave; start again without it") from None
    if token_scope != scope or after[0].tzinfo is None:
        raise InvalidArgument("page_token is of another list or other filters; start again without it")
    return replace(first, after=after)
