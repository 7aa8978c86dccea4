"""The stages of a split module as modules that run one after the other, each given only what the liveness table says.

Slapo hands stages to an engine that lets a tensor bypass a stage only if it needs no gradient, and that returns what
the last stage returns. Here a bypass is passed on as it is, with its gradient, and the last stage returns whatever the
top module does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from planner.fx_compat.pipeline.layout import LiveTensor, PipelineLayout, layout_of
from planner.fx_compat.pipeline.liveness import liveness_by_stage
from planner.fx_compat.splitting.errors import PipelineError
from planner.fx_compat.splitting.targets import attribute_at, flat_names


class PipelineStage(nn.Module):
    """Takes what is live on entry, in the table's order, and returns what is live on entry of the next stage, a tuple.

    The last stage returns the top module's result. States of the top module that the stage is called with are its own.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        stage_id: int,
        name: str,
        layout: PipelineLayout,
        states: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        live = [tuple(layout.inputs), *liveness_by_stage(layout)[1:]]
        self.mod = module
        self.stage_id = stage_id
        self.name = name
        self.live = live[stage_id]
        self._handed_on = live[stage_id + 1] if stage_id + 1 < len(live) else None
        self._arguments = layout.stages[name]
        self._output = layout.output
        self._state_names = flat_names(states, taken=dir(self))
        for state_name, state in states.items():
            self._own(self._state_names[state_name], state)

    def forward(self, *live: Any) -> Any:
        if len(live) != len(self.live):
            expected = ", ".join(tensor.name for tensor in self.live)
            raise PipelineError(f"{self.name} was given {len(live)} values and takes {len(self.live)}: {expected}")
        values = dict(zip(self.live, live, strict=True))
        values |= {LiveTensor(maker=name): getattr(self, flat) for name, flat in self._state_names.items()}
        values[LiveTensor(maker=self.name)] = self.mod(*(_value(tensor, values) for tensor in self._arguments))
        if self._handed_on is not None:
            return tuple(_value(tensor, values) for tensor in self._handed_on)
        return _filled(self._output, values)

    def _own(self, name: str, state: torch.Tensor) -> None:
        if isinstance(state, nn.Parameter):
            self.register_parameter(name, state)
        else:
            self.register_buffer(name, state)


def pipeline_stages(top_mod: fx.GraphModule) -> tuple[PipelineStage, ...]:
    """One per stage of a split module, in call order: each called with what the one before it returned."""
    layout = layout_of(top_mod)
    last = next(reversed(layout.stages), None)
    if last is None:
        raise PipelineError("the top module calls no stage; split it first, e.g. with split_module")
    stages = []
    for stage_id, (name, arguments) in enumerate(layout.stages.items()):
        used = (*arguments, *(layout.returned if name == last else ()))
        states = dict.fromkeys(tensor.maker for tensor in used if tensor.maker in layout.states)
        stages.append(
            PipelineStage(
                attribute_at(top_mod, name),
                stage_id=stage_id,
                name=name,
                layout=layout,
                states={state: attribute_at(top_mod, state) for state in states},
            )
        )
    return tuple(stages)


def _value(tensor: LiveTensor, values: Mapping[LiveTensor, Any]) -> Any:
    """What is known under the tensor's own name, else found by its last keys in something that holds it."""
    for length in range(len(tensor.keys), -1, -1):
        holder = LiveTensor(maker=tensor.maker, keys=tensor.keys[:length])
        if holder in values:
            value = values[holder]
            for key in tensor.keys[length:]:
                value = value[key]
            return value
    raise PipelineError(f"{tensor.name} is needed and not live; the liveness table lacks it")


def _filled(structure: Any, values: Mapping[LiveTensor, Any]) -> Any:
    if isinstance(structure, LiveTensor):
        return _value(structure, values)
    if isinstance(structure, Mapping):
        return {key: _filled(item, values) for key, item in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(_filled(item, values) for item in structure))
    if isinstance(structure, list | tuple):
        items = [_filled(item, values) for item in structure]
        return items if isinstance(structure, list) else tuple(items)
    return structure
