"""Bytes and seconds as people write and read them."""

from __future__ import annotations

import re
from fractions import Fraction

from planner.errors import InvalidArgument

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_BYTES = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """ "2GiB", "512 MB" or "1024", to the byte; part of a byte is dropped. Raises InvalidArgument for anything else."""
    match = _BYTES.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidArgument(
            f"{text[:80]!r} is no size; write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB, TB"
        )
    return int(Fraction(match[1]) * unit)


def format_bytes(size_bytes: int) -> str:
    """ "1.5 GiB"; three digits that matter."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.0f} TiB" if size >= 100 else f"{size:.3g} TiB"


def format_seconds(seconds: float) -> str:
    """ "1.23 ms"; three digits that matter."""
    if seconds == 0:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            number = seconds / size
            return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def format_gap(gap: float) -> str:
    """A share above 0, never as 0.00%: that would look like a proof."""
    return f"{gap:.2%}" if gap >= 5e-5 else "less than 0.01%"
