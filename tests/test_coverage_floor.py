"""Which package a file counts for, and when its share is too little."""

from __future__ import annotations

from tests.coverage_floor import Row, package_of, rows_of


def summary(lines: tuple[int, int], branches: tuple[int, int]) -> dict[str, int]:
    return {
        "covered_lines": lines[0],
        "num_statements": lines[1],
        "covered_branches": branches[0],
        "num_branches": branches[1],
    }


def test_a_file_counts_for_the_package_below_the_service() -> None:
    assert package_of("planner/client/export/states.py") == "planner/client"
    assert package_of("planner/planning.py") == "planner"


def test_lines_and_branches_of_a_package_are_summed() -> None:
    rows = rows_of(
        [
            ("planner/store/blobs.py", summary((8, 10), (1, 4))),
            ("planner/store/plans.py", summary((10, 10), (0, 0))),
            ("planner/settings.py", summary((5, 5), (0, 0))),
        ]
    )
    assert [(row.package, row.num_covered, row.num_all) for row in rows] == [
        ("planner", 5, 5),
        ("planner/store", 19, 24),
    ]


def test_ninety_percent_are_enough_and_less_is_not() -> None:
    assert Row(package="planner/store", num_covered=90, num_all=100).is_enough
    assert not Row(package="planner/store", num_covered=89, num_all=100).is_enough
    assert Row(package="planner/partition", num_covered=1, num_all=100).is_enough
    assert Row(package="planner/empty", num_covered=0, num_all=0).is_enough
