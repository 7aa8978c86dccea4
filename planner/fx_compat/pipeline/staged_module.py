"""A split module whose stages are told apart by whoever exports it, and so can be planned and run as it was split."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from planner.fx_compat.pipeline.stage import pipeline_stages


class StagedModule(nn.Module):
    """Computes what the top module does, stage by stage: `CutMode(module_paths=staged.cuts)` makes these the plan's.

    Stages are modules of their own here, since torch.export does not say which graph module a call stood in. Weights
    are the top module's own, under `stages.<stage>.mod.<name>`.
    """

    def __init__(self, top_mod: fx.GraphModule) -> None:
        super().__init__()
        self.stages = nn.ModuleList(pipeline_stages(top_mod))

    @property
    def cuts(self) -> tuple[str, ...]:
        """Paths of the modules after which a stage ends."""
        return tuple(f"stages.{stage}" for stage in range(len(self.stages) - 1))

    def forward(self, *inputs: Any) -> Any:
        live: Any = inputs
        for stage in self.stages:
            live = stage(*live)
        return live
