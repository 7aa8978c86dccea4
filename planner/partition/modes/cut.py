"""Mode "cut": a stage ends after each named module has run for the last time (Slapo's cut_pipeline_stage)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.errors import OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.constraints import unknown_module
from planner.partition.describe import describe_node
from planner.partition.infeasible import memory_shortage
from planner.partition.modes.balanced import check_num_stages
from planner.partition.ordered.least_bottleneck import least_bottleneck
from planner.partition.problem import PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    path: str
    position: int
    reason: str


def cut(problem: PartitionProblem, module_paths: Sequence[str]) -> Assignment:
    """Devices are chosen as in mode balanced, for a program that may be cut here alone.

    Raises OptionsError for paths that give no stages, Infeasible for want of memory.
    """
    ends = _ends_of_modules(problem)
    paths = list(dict.fromkeys(module_paths))
    if not paths:
        raise OptionsError("mode cut: no module paths; name at least one module to cut after")
    cuts = sorted((_cut_after(problem, path, ends) for path in paths), key=lambda one: (one.position, one.path))
    _check_stages_not_empty(problem, cuts)
    boundaries = (0, *(one.position for one in cuts), problem.num_nodes)
    reasons = (*(one.reason for one in cuts), "the program ends")
    is_boundary = np.zeros_like(problem.cut_allowed)
    is_boundary[list(boundaries)] = True
    cut_here, num_stages = replace(problem, cut_allowed=is_boundary), len(boundaries) - 1
    check_num_stages(cut_here, num_stages, "cut")
    layout = least_bottleneck(cut_here, num_stages)
    if layout is None:
        raise memory_shortage(cut_here, "cut", num_stages)
    return contiguous(problem, boundaries, layout.devices, reasons, layout.lower_bound_seconds)


def _ends_of_modules(problem: PartitionProblem) -> dict[str, int]:
    """Module path to the position after its last node, or that of any module inside it."""
    ends: dict[str, int] = {}
    for node, path in enumerate(problem.labels.module_paths):
        while path and ends.get(path) != node + 1:
            ends[path] = node + 1
            path = path.rpartition(".")[0]
    return ends


def _cut_after(problem: PartitionProblem, path: str, ends: dict[str, int]) -> _Cut:
    if path not in ends:
        raise unknown_module("mode cut", path, ends)
    module_end = ends[path]
    if problem.cut_allowed[module_end]:
        return _Cut(path=path, position=module_end, reason=f"module {path!r} has run for the last time")
    allowed = np.flatnonzero(problem.cut_allowed)
    position = int(allowed[np.lexsort((-allowed, np.abs(allowed - module_end)))[0]])
    distance, way = abs(position - module_end), "later" if position > module_end else "earlier"
    reason = (
        f"module {path!r} ends at {describe_node(problem, module_end - 1)}, but nodes around it share storage that is "
        f"written in place: cut {distance} nodes {way}"
    )
    return _Cut(path=path, position=position, reason=reason)


def _check_stages_not_empty(problem: PartitionProblem, cuts: Sequence[_Cut]) -> None:
    for one, other in pairwise(cuts):
        if one.position == other.position:
            raise OptionsError(
                f"mode cut: {one.path!r} and {other.path!r} end at the same place, which leaves an empty stage between "
                f"them: name only one of the two",
                module_paths=f"{one.path}, {other.path}",
            )
    for one in (cuts[0], cuts[-1]):
        if one.position in (0, problem.num_nodes):
            side = "after" if one.position else "before"
            raise OptionsError(
                f"mode cut: no node can stand in a stage {side} {one.path!r} ({one.reason}); leave this path out",
                module_paths=one.path,
            )
