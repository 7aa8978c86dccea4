"""The distinct rows of a matrix that has few: devices of one kind have equal rows, and a kind is worked out once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Floats, Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistinctRows:
    """`rows` [kinds, columns] in order of their first, `kind_of_row` [rows], `counts` [kinds]."""

    rows: Floats
    kind_of_row: Integers
    counts: Integers


def distinct_rows(matrix: Floats) -> DistinctRows:
    """Linear, where np.unique sorts."""
    kinds: dict[bytes, int] = {}
    kind_of_row = np.array([kinds.setdefault(row.tobytes(), len(kinds)) for row in matrix], dtype=np.int64)
    _, first = np.unique(kind_of_row, return_index=True)
    return DistinctRows(rows=matrix[first], kind_of_row=kind_of_row, counts=np.bincount(kind_of_row))
