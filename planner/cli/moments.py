"""Moments as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from planner.errors import InvalidArgument

_AGO = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_moment(text: str) -> datetime:
    """ "90m", "12h" or "3d" ago, or an ISO date or time, local unless it says otherwise. Raises InvalidArgument."""
    ago = _AGO.fullmatch(text)
    if ago:
        return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{text[:80]!r} is no moment; write 90m, 12h, 3d or 2w for so long ago, or 2026-01-31 or 2026-01-31T12:00"
        ) from None
