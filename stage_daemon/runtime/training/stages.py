"""Stages as steps run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stage_daemon.runtime.actions import Kind
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.training.records import TrainingLane

_IN_PARTS = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


def accumulating_stages(stages: Mapping[int, Stage], lane: TrainingLane) -> Mapping[int, Stage]:
    """Those whose large linear layers add to their weights' gradients as they are computed.

    Tied weights have to be in their places already. A backward pass in two asks for inputs' gradients first, when none
    of a weight is to be added yet; a stage that gives no gradient back has nothing to do then, and all in the second.
    """
    is_split = any(action.kind in _IN_PARTS for action in lane.actions)
    in_two = {edge.gradients.source_stage for edge in lane.edges.values() if edge.gradients} if is_split else set()
    return {index: stage if index in in_two else _accumulating(stage) for index, stage in stages.items()}


def _accumulating(stage: Stage) -> Stage:
    """What is compiled has a program of its own."""
    if stage.module is None or stage.run is not stage.module:
        return stage
    module = stage.module.accumulating()
    return replace(stage, run=module, module=module)
