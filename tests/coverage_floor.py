"""Prints what share of each package's lines and branches the suite ran, and fails where that is under its floor.

Reads what `coverage run` and `coverage combine` left. Packages that are about to be rebuilt have no floor yet.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import coverage

FLOOR_PERCENT = 90.0
WITHOUT_FLOOR = {"planner/partition", "stage_daemon/runtime", "stage_daemon/worker", "stage_daemon/transport"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`num_covered` of `num_all` lines and branches."""

    package: str
    num_covered: int
    num_all: int

    @property
    def percent(self) -> float:
        return 100.0 * self.num_covered / self.num_all if self.num_all else 100.0

    @property
    def is_enough(self) -> bool:
        return self.package in WITHOUT_FLOOR or self.percent >= FLOOR_PERCENT


def package_of(file: str) -> str:
    """ "planner/store" of planner/store/blobs.py; "planner" of planner/planning.py."""
    return "/".join(Path(file).parts[:-1][:2])


def rows_of(files: Iterable[tuple[str, dict[str, int]]]) -> list[Row]:
    """`files`: name and the summary that coverage reports of it."""
    covered: dict[str, int] = {}
    total: dict[str, int] = {}
    for name, summary in files:
        package = package_of(name)
        covered[package] = covered.get(package, 0) + summary["covered_lines"] + summary["covered_branches"]
        total[package] = total.get(package, 0) + summary["num_statements"] + summary["num_branches"]
    return [Row(package=name, num_covered=covered[name], num_all=total[name]) for name in sorted(total)]


def main() -> int:
    data = coverage.Coverage()
    data.load()
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        data.json_report(outfile=report.name)
        files = json.loads(Path(report.name).read_text())["files"]
    rows = rows_of((name, covered["summary"]) for name, covered in files.items())
    print(f"{'package':26} {'lines and branches':>18} {'run':>8}")
    for row in rows:
        note = "" if row.is_enough else f"   needs {FLOOR_PERCENT:.0f} %"
        note = "   (no floor)" if row.package in WITHOUT_FLOOR else note
        print(f"{row.package:26} {row.num_all:18} {row.percent:7.1f}%{note}")
    return 0 if all(row.is_enough for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
