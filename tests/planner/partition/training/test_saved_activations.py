"""What a plan says that a stage keeps for its backward pass, beside what torch keeps."""

from __future__ import annotations

import torch
from torch import nn

from planner.client.export import export
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import Routing
from tests.builders.plans import plan_of

ROWS, LENGTH, WIDTH = 2, 16, 32


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.sum()


def kept_bytes(module: nn.Module, hidden: torch.Tensor) -> int:
    """By torch, of all that is neither a parameter nor the input."""
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        module(hidden)
    apart = {one.untyped_storage().data_ptr() for one in (*module.parameters(), hidden)}
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    return sum(size for address, size in storages.items() if address not in apart)


def test_a_plan_counts_what_backward_reads_and_not_all_that_a_stage_makes() -> None:
    module, hidden = Encoder().train(), torch.randn(ROWS, LENGTH, WIDTH)
    graph = export(module, (hidden,)).graph
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=1)
    plan = plan_of(graph, [0] * len(graph.nodes), Routing.DIRECT, [0], training=training)
    [stage], kept = plan.stages, kept_bytes(module, hidden)
    planned = stage.memory.saved_bytes - hidden.nbytes
    assert kept <= planned <= 1.3 * kept, (planned, kept)
