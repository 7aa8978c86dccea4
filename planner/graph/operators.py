"""The operators that a graph may hold: the wire contract's fixed list, read from operators.txt beside the protos.

One `kind name overload` per line; scalar and higher-order operators have no overload.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from planner.graph.ir import OperatorKind

OperatorName = tuple[OperatorKind, str, str]


@cache
def load_vocabulary() -> frozenset[OperatorName]:
    """(kind, name, overload) of every operator that can be deployed."""
    text = files("protos.v1").joinpath("operators.txt").read_text(encoding="utf-8")
    return frozenset(_parse(line) for line in text.splitlines())


def _parse(line: str) -> OperatorName:
    kind, name, *overload = line.split()
    return OperatorKind(kind), name, overload[0] if overload else ""
