"""Bytes and seconds as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.quantities import format_bytes, format_gap, format_seconds, parse_bytes
from planner.errors import InvalidArgument
from tests.random_examples import random_examples


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("2GiB", 2 << 30), ("1.5 KiB", 1536), ("512mb", 512_000_000), (" 3 TB ", 3 * 10**12)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (f"{2**53 + 1}", 2**53 + 1),
        (f"{2**53 + 1}B", 2**53 + 1),
        (f"{2**53 + 1}.0", 2**53 + 1),
        (f"{2**53 + 1}.0 b", 2**53 + 1),
        (f"{2**33 + 1}.5MiB", (2**33 + 1) * 2**20 + 2**19),
        ("9007199.254740993GB", 9007199254740993),
        ("0.1KB", 100),
        ("8.07GB", 8_070_000_000),
        ("1.9", 1),
        ("1KiB", 1 << 10),
        ("1MiB", 1 << 20),
        ("1TiB", 1 << 40),
        ("1KB", 10**3),
        ("1GB", 10**9),
        ("1b", 1),
    ],
)
def test_sizes_are_read_to_the_byte(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.slow
@random_examples(100)
@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_whole_bytes_survive_exactly(size: int) -> None:
    assert parse_bytes(str(size)) == parse_bytes(f"{size}.000 B") == size
    assert parse_bytes(f"{size}KiB") == size * 1024


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (102_400, "100 KiB"),
        (12_345_678, "11.8 MiB"),
        (80 << 30, "80 GiB"),
        (1 << 40, "1 TiB"),
        (5 << 50, "5,120 TiB"),
    ],
)
def test_sizes_are_shown(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 parsec", "1e9", "1.2.3", "٣x"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no size"):
        parse_bytes(text)


@random_examples(100)
@given(st.integers(min_value=0, max_value=2**63))
def test_a_size_is_read_back_within_its_three_digits(size: int) -> None:
    text = format_bytes(size).replace(",", "")
    assert parse_bytes(text) == pytest.approx(size, rel=0.006, abs=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3e-10, "0.3 ns"),
        (1e-6, "1 µs"),
        (1.5e-6, "1.5 µs"),
        (1e-3, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (2, "2 s"),
        (4321, "4,321 s"),
    ],
)
def test_seconds_are_shown(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_gap_that_is_there_is_never_shown_as_none() -> None:
    assert format_gap(0.0279) == "2.79%"
    assert format_gap(5e-5) == "0.01%"
    assert format_gap(4.9e-5) == format_gap(1e-6) == "less than 0.01%"
