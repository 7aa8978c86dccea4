"""Bytes and seconds as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.quantities import format_bytes, format_gap, format_seconds, parse_bytes
from planner.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("2GiB", 2 << 30), ("1.5 KiB", 1536), ("512mb", 512_000_000), (" 3 TB ", 3 * 10**12)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 parsec", "1e9", "1.2.3", "٣x"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no size"):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=2**63))
def test_a_size_is_read_back_within_its_three_digits(size: int) -> None:
    shown = format_bytes(size).replace(",", "")
    assert parse_bytes(shown) == pytest.approx(size, rel=0.006, abs=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3e-10, "0.3 ns"), (1.5e-6, "1.5 µs"), (0.0123, "12.3 ms"), (2, "2 s"), (4321, "4,321 s")],
)
def test_seconds_are_shown(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_gap_that_is_there_is_never_shown_as_none() -> None:
    assert format_gap(0.0279) == "2.79%"
    assert format_gap(1e-6) == "less than 0.01%"
