"""The page that a list call asks for, and what every list can be narrowed by: who owns the objects, since when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from planner.errors import InvalidArgument
from planner.store.paging import PageRequest, parse_page


def page_of(request: Any, kind: str, **filters: object) -> PageRequest:
    """`filters` are those that the list has besides: a page's token fits the same ones alone.

    Raises InvalidArgument for a token of another list, and for a moment that is none.
    """
    scope = " ".join((kind, *(f"{name}={value}" for name, value in filters.items() if value)))
    owner = str(getattr(request, "owner", ""))
    return parse_page(
        scope, request.page_size, request.page_token, kind=kind, owner=owner, created_since=_created_since(request)
    )


def _created_since(request: Any) -> datetime | None:
    if not request.HasField("created_since"):
        return None
    try:
        moment: datetime = request.created_since.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        seconds = request.created_since.seconds
        raise InvalidArgument(f"created_since is {seconds} seconds after 1970, needs a year from 1 to 9999") from None
    return moment
