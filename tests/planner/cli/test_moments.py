"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from planner.cli.moments import parse_moment
from planner.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("3d", timedelta(days=3)),
        ("2w", timedelta(weeks=2)),
        ("0s", timedelta()),
    ],
)
def test_so_long_ago(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC) - ago
    assert before <= parse_moment(text) <= datetime.now(UTC) - ago


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31T12:00:05Z", datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31).astimezone(UTC)),
    ],
)
def test_a_date_or_time(text: str, moment: datetime) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-3d", "3", "3y", "9999999d", "2026-13-01", "0001-01-01T00:00+14:00"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no moment"):
        parse_moment(text)
