"""Parameters that are one memory, in one stage and across stages."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from planner.fx_compat import analyze_tie_weights, split_module


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


class Tied(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.first = Embedding()
        for index in range(heads):
            self.add_module(f"head_{index}", Head())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


def values(groups: dict[nn.Parameter, object]) -> list[set[tuple[str, int]]]:
    return [set(group) for group in groups.values()]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_one_group_by_names_of_the_model_and_by_names_within_stages(device: str) -> None:
    with torch.device(device):
        model = Tied()
    model.head_0.out.weight = model.first.table.weight
    model.head_1.out.weight = model.first.table.weight
    whole = analyze_tie_weights(model, False)
    assert list(whole) == [model.first.table.weight]
    assert whole[model.first.table.weight] == {
        ("first.table.weight", 0),
        ("head_0.out.weight", 0),
        ("head_1.out.weight", 0),
    }
    staged = analyze_tie_weights(model, True)
    assert staged[model.first.table.weight] == [("table.weight", 0), ("out.weight", 1), ("out.weight", 2)]


def test_groups_are_apart_and_untied_weights_are_in_none() -> None:
    model = Tied(4)
    model.head_3.out.weight = model.first.table.weight
    model.head_2.out.weight = model.head_1.out.weight
    assert values(analyze_tie_weights(model, True)) == [
        {("table.weight", 0), ("out.weight", 4)},
        {("out.weight", 2), ("out.weight", 3)},
    ]


def test_a_tie_within_one_stage_is_none_of_the_pipeline() -> None:
    model = Tied(1)
    model.head_0.again = model.head_0.out
    assert analyze_tie_weights(model, True) == {}
    assert values(analyze_tie_weights(model, False)) == [{("head_0.out.weight", 0), ("head_0.again.weight", 0)}]


def test_views_of_one_storage_are_tied_where_they_overlap() -> None:
    model = Tied(3)
    flat = torch.rand(72)
    model.first.table.weight = nn.Parameter(flat[:36].view(6, 6))
    model.head_0.out.weight = nn.Parameter(flat[36:].view(6, 6))
    model.head_1.out.weight = nn.Parameter(flat[:36].view(6, 6).t())
    assert values(analyze_tie_weights(model, True)) == [{("table.weight", 0), ("out.weight", 2)}]


def test_stages_of_a_split_module_are_numbered_as_they_are_called() -> None:
    model = Tied(11)
    model.head_10.out.weight = model.first.table.weight
    traced = fx.symbolic_trace(model)
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    split = split_module(traced, None, lambda node: calls.index(node))
    assert values(analyze_tie_weights(split, True)) == [{("first_table.weight", 0), ("head_10_out.weight", 11)}]


def test_empty_and_uninitialised_parameters_are_tied_to_themselves_only() -> None:
    model = nn.Module()
    model.a = nn.Parameter(torch.empty(0))
    model.b = nn.Parameter(torch.empty(0))
    model.c = model.a
    model.lazy = nn.LazyLinear(3)
    assert values(analyze_tie_weights(model, False)) == [{("a", 0), ("c", 0)}]


@pytest.mark.slow
def test_many_parameters_are_not_compared_with_each_other() -> None:
    """20 000 parameters are 200 million pairs, which would not end within the tests' deadline."""
    model = nn.ParameterList(nn.Parameter(torch.empty(1)) for _ in range(20_000))
    model.append(model[0])
    assert values(analyze_tie_weights(model, False)) == [{("0", 0), ("20000", 0)}]
