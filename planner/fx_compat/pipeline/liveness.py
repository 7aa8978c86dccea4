"""Slapo's liveness table of a pipeline: what each stage receives, uses and hands on.

What differs from Slapo: "submod_1" makes the tensors of "submod_1" only, not those of "submod_10"; what the top module
returns stays live up to the last stage; parameters of the top module are no traffic, as their stage can hold them.
"""

from __future__ import annotations

import logging

from torch import fx

from planner.fx_compat.pipeline.layout import LiveTensor, PipelineLayout, layout_of
from planner.fx_compat.splitting.errors import PipelineError

_LOGGER = logging.getLogger(__name__)


def analyze_pipeline_module(
    top_mod: fx.GraphModule,
) -> tuple[dict[int, list[str]], dict[int, str], dict[int, list[str]]]:
    """(stage_id_2_arg_names, stage_id_2_name, liveness), all by stage id, stages numbered in call order.

    stage_id_2_arg_names: what the stage's module is called with, in order; at -1 the top module's inputs. liveness:
    what must be there when the stage starts: its arguments, then what only later stages need, in one deterministic
    order; for stage 0 the top module's inputs. Raises PipelineError (an AssertionError).
    """
    layout = layout_of(top_mod)
    if not layout.stages:
        raise PipelineError("the top module calls no stage; split it first, e.g. with split_module")
    live = liveness_by_stage(layout)
    inputs = [tensor.name for tensor in layout.inputs]
    first = [tensor.name for tensor in live[0]]
    if first != inputs:
        _LOGGER.warning(
            "the first stage uses %s and the top module is given %s: the table lists the latter, in their order",
            first,
            inputs,
        )
    arguments = {-1: inputs} | {
        stage_id: [tensor.name for tensor in used] for stage_id, used in enumerate(layout.stages.values())
    }
    liveness = {stage_id: [tensor.name for tensor in tensors] for stage_id, tensors in enumerate(live)}
    return arguments, dict(enumerate(layout.stages)), liveness | {0: inputs}


def liveness_by_stage(layout: PipelineLayout) -> tuple[tuple[LiveTensor, ...], ...]:
    """For each stage its arguments but for states, then what bypasses it. Linear in the table's own size."""
    live: dict[LiveTensor, None] = dict.fromkeys(tensor for tensor in layout.returned if _travels(tensor, layout))
    table: list[tuple[LiveTensor, ...]] = []
    for name, arguments in reversed(layout.stages.items()):
        used = dict.fromkeys(tensor for tensor in arguments if _travels(tensor, layout))
        live = {tensor: None for tensor in live | used if tensor.maker != name}
        table.append((*used, *(tensor for tensor in live if tensor not in used)))
    return tuple(reversed(table))


def _travels(tensor: LiveTensor, layout: PipelineLayout) -> bool:
    return tensor.maker not in layout.states
