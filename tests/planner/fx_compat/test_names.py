"""A change of import is enough: every public name of torch's modules is here, with the same parameters."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
import torch
from torch.fx.experimental import accelerator_partitioner, partitioner_utils
from torch.fx.passes import split_module

from planner import fx_compat


@pytest.mark.parametrize("module", [accelerator_partitioner, partitioner_utils, split_module])
def test_public_names_and_parameters(module: ModuleType) -> None:
    names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    public = [name for name in names if not name.startswith("_") and callable(getattr(module, name))]
    assert public
    for name in public:
        theirs, ours = getattr(module, name), getattr(fx_compat, name)
        if inspect.isfunction(theirs):
            names_of_torch = list(inspect.signature(theirs).parameters)
            parameters = inspect.signature(ours).parameters
            assert list(parameters)[: len(names_of_torch)] == names_of_torch, name
            assert all(
                parameters[more].default is not inspect.Parameter.empty
                for more in list(parameters)[len(names_of_torch) :]
            )


def test_the_quick_split_gives_what_torchs_does() -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + y) * y

    module = torch.fx.symbolic_trace(Sum())
    operations = [node for node in module.graph.nodes if node.op == "call_function"]
    partition = {node: index for index, node in enumerate(operations)}
    ours = fx_compat.split_module_simple(module, partition, partition_affix="part")
    theirs = split_module.split_module_simple(module, partition, partition_affix="part")
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(ours(x, y), theirs(x, y))
    assert [name for name, _ in ours.named_children()] == [name for name, _ in theirs.named_children()]
