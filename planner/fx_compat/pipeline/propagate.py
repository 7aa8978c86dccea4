"""Slapo's pipeline partitioning of a schedule: cuts marked at some depth of a model become stages of its top module.

A schedule is anything with Slapo's attributes (`Schedule` below). What differs from Slapo: any structure of outputs is
carried up (see `pipeline_inline`), keywords are matched by name, and nodes are not numbered in their `meta`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import fx, nn

from planner.fx_compat.pipeline.inline import CUT_MARK, inline_stages
from planner.fx_compat.split_module import split_module
from planner.fx_compat.splitting.errors import PipelineError


class Metadata(Protocol):
    @property
    def primitives(self) -> Mapping[str, Iterable[str]]:
        """At "cut_pipeline_stage" the paths of the modules whose graphs are cut."""


class Schedule(Protocol):
    """A module of a model, the schedules of the modules in it, and the schedule of the one that it is in."""

    mod: nn.Module
    name: str
    partition_idx: int
    metadata: Metadata

    @property
    def parent(self) -> Schedule | None: ...

    @property
    def child(self) -> Mapping[str, Schedule]: ...

    def replace(self, new_mod_or_func: nn.Module) -> object: ...

    def __getitem__(self, full_path: str) -> Schedule: ...


def propagate_partition(
    sch: Schedule, starting_stage_id: int = 0, stop_at: str | None = None
) -> tuple[fx.GraphModule, int]:
    """Splits a schedule's graph after each marked node, and its parents' in turn up to the one named `stop_at`.

    Returns the last module that was split, and the id of its last stage. Raises PipelineError.
    """
    split, last_stage_id = _split(sch, starting_stage_id)
    parent = sch.parent
    if parent is None:
        sch.replace(split)
        return split, last_stage_id
    inline_stages(_graph_of(parent), _call_of(sch, _graph_of(parent)), split)
    sch.replace(split)
    if stop_at is None or parent.name != stop_at:
        return propagate_partition(parent, starting_stage_id, stop_at)
    return split, last_stage_id


def generate_pipeline_partition(sch: Schedule) -> Schedule:
    """Makes the marked cuts stages of the whole model and numbers the schedules in it by stage."""
    paths = list(sch.metadata.primitives["cut_pipeline_stage"])
    if not paths:
        raise PipelineError("no module is cut: call cut_pipeline_stage on the modules after which a stage ends")
    ancestor = _common_ancestor(paths)
    starting_stage_id = 0
    for path in paths:
        if path != ancestor:
            starting_stage_id = propagate_partition(sch[path], starting_stage_id, stop_at=ancestor)[1] + 1
    propagate_partition(sch[ancestor])
    for stage_id, child in enumerate(sch.child.values()):
        _number(child, stage_id)
    return sch


def _split(sch: Schedule, starting_stage_id: int) -> tuple[fx.GraphModule, int]:
    module = _graph_of(sch)
    stage_id = starting_stage_id
    stages: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        stages[node] = stage_id
        stage_id += CUT_MARK in node.meta
    if stage_id == starting_stage_id:
        raise PipelineError(
            f'no node of {sch.name or "the top module"} is marked "{CUT_MARK}": there is nothing to cut'
        )
    return split_module(module, None, stages.__getitem__, keep_original_order=True), stage_id


def _graph_of(sch: Schedule) -> fx.GraphModule:
    if not isinstance(sch.mod, fx.GraphModule):
        type_name = type(sch.mod).__name__
        raise PipelineError(f"{sch.name or 'the top module'} is a {type_name}; trace it before it is cut")
    return sch.mod


def _call_of(sch: Schedule, parent: fx.GraphModule) -> fx.Node:
    call: fx.Node | None = next(iter(parent.graph.find_nodes(op="call_module", target=sch.name)), None)
    if call is None:
        raise PipelineError(f"the parent of {sch.name} does not call it")
    return call


def _common_ancestor(paths: list[str]) -> str:
    """The longest path that all are in; the top module for a single one."""
    shared: list[str] = []
    for atoms in zip(*(path.split(".") for path in paths), strict=False) if len(paths) > 1 else ():
        if len(set(atoms)) != 1:
            break
        shared.append(atoms[0])
    return ".".join(shared)


def _number(sch: Schedule, stage_id: int) -> None:
    sch.partition_idx = stage_id
    for child in sch.child.values():
        _number(child, stage_id)
