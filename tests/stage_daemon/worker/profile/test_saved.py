"""What nodes were measured to keep for their backward passes, by itself and in a plan beside what torch keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.errors import GraphError, Infeasible, PlannerError
from planner.graph.saved import Saved
from planner.plan.verify import verify_plan
from tests.builders.saved_activations import kept_bytes, measured_saved, plan_of_one_stage

ROWS, LENGTH, WIDTH = 4, 32, 64
FLOAT_BYTES = 4


class Chain(nn.Module):
    """One node of each way to keep something."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.dropout(torch.relu(self.layer(x)), 0.5)
        # A product of many small matrices, of which one stands for all: it is copied for each.
        return (hidden.unsqueeze(1) @ hidden.transpose(1, 2)[:1].expand(3, WIDTH, LENGTH)).sum()


def test_what_a_node_keeps_is_what_it_reads_or_returns_or_makes_within() -> None:
    graph = export(Chain(), (torch.zeros(ROWS, LENGTH, WIDTH),)).graph
    saved = measured_saved(graph)
    kept = {graph.nodes[index].operator.name.removeprefix("aten::"): one for index, one in saved.items()}
    size = ROWS * LENGTH * WIDTH * FLOAT_BYTES
    assert kept["linear"] == Saved(inputs=True, outputs=False, within_bytes=0)
    assert kept["relu"] == Saved(inputs=False, outputs=True, within_bytes=0)
    assert kept["dropout"] == Saved(inputs=False, outputs=False, within_bytes=size)
    assert kept["unsqueeze"] == kept["expand"] == Saved(inputs=False, outputs=False, within_bytes=0)
    assert not kept["matmul"].outputs
    assert kept["matmul"].within_bytes >= 3 * size


class Encoder(nn.Module):
    """Attention with dropout, a batch times one matrix, and layers that read what is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.across = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x) @ self.table
        hidden = torch.einsum("bld,bmd->blm", hidden, hidden) @ hidden
        hidden = self.across(hidden.transpose(1, 2)).transpose(1, 2)
        return (hidden.unsqueeze(1) @ self.table.expand(3, WIDTH, WIDTH)).sum(1).pow(2).mean()


def test_a_plan_counts_what_was_measured() -> None:
    torch.manual_seed(0)
    module, x = Encoder().train(), torch.randn(ROWS, LENGTH, WIDTH)
    graph, kept = export(module, (x,)).graph, kept_bytes(module, x)
    [by_rule] = plan_of_one_stage(graph, {}).stages
    assert by_rule.memory.saved_bytes < 0.9 * kept, "rules have come to know this: find what they do not know"
    plan = plan_of_one_stage(graph, measured_saved(graph))
    assert kept <= plan.stages[0].memory.saved_bytes <= 1.05 * kept
    # It was verified by what was measured: by rule it would come to something else.
    with pytest.raises(PlannerError, match="stage 0 takes"):
        verify_plan(plan, graph)


@pytest.mark.parametrize(("within_bytes", "error"), [(1 << 41, Infeasible), (1 << 62, GraphError)])
def test_what_is_kept_has_to_fit_and_to_be_possible(within_bytes: int, error: type[PlannerError]) -> None:
    graph = export(Chain(), (torch.zeros(ROWS, LENGTH, WIDTH),)).graph
    too_much = {index: replace(one, within_bytes=within_bytes) for index, one in measured_saved(graph).items()}
    with pytest.raises(error, match=r"saved for backward \d{13}|what backward passes keep, take \d.*e\+19 bytes"):
        plan_of_one_stage(graph, too_much)
