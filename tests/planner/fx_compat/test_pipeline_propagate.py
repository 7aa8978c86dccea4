"""Cuts inside parts of a model become stages of the model, on a schedule of Slapo's shape."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree

from planner.fx_compat import generate_pipeline_partition, pipeline_stages, propagate_partition
from planner.fx_compat.splitting.errors import PipelineError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Half(nn.Module):
    """Returns a structure, some of it made before the last block."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(Block() for _ in range(depth))
        self.gain = nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        hidden = x * self.gain
        early = hidden
        for index, block in enumerate(self.block):
            hidden = block(hidden) * mask
            early = hidden + 1 if index == 0 else early
        return {"hidden": hidden * scale, "kept": (early, hidden - 1)}


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.encoder = Half(3)
        self.decoder = Half(4)
        self.after = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, Any]:
        encoded = self.encoder(self.before(x), mask=mask)
        pair = encoded["kept"]
        decoded = self.decoder(encoded["hidden"], scale=3.0, mask=mask)
        return self.after(decoded.get("hidden")) + pair[0], (pair[1], decoded["kept"], decoded.get("absent"))


class Leaves(fx.Tracer):
    def __init__(self, leaves: type[nn.Module]) -> None:
        super().__init__()
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaves) or super().is_leaf_module(m, module_qualified_name)


class Metadata:
    def __init__(self) -> None:
        self.primitives: dict[str, list[str]] = {"cut_pipeline_stage": []}


class Schedule:
    """As much of Slapo's as its partitioning uses."""

    def __init__(self, mod: nn.Module, name: str = "", parent: Schedule | None = None) -> None:
        self.mod = mod
        self.name = name
        self.parent = parent
        self.child: dict[str, Schedule] = {}
        self.partition_idx = -1
        self.metadata: Metadata = parent.metadata if parent else Metadata()

    def __getitem__(self, full_path: str) -> Schedule:
        return self.child[full_path] if full_path else self

    def replace(self, new_mod_or_func: nn.Module) -> None:
        self.mod = new_mod_or_func
        if self.parent is not None:
            setattr(self.parent.mod, self.name, new_mod_or_func)
            return
        self.child = {name: Schedule(child, name, self) for name, child in new_mod_or_func.named_children()}

    def cut(self, *targets: str) -> None:
        for node in self.mod.graph.find_nodes(op="call_module"):
            if node.target in targets:
                node.meta["partition"] = True
        self.metadata.primitives["cut_pipeline_stage"].append(self.name)


def schedule_of(model: Whole) -> Schedule:
    top = Schedule(fx.GraphModule(model, Leaves(Half).trace(model)))
    for name in ("encoder", "decoder"):
        half = model.get_submodule(name)
        top.child[name] = Schedule(fx.GraphModule(half, Leaves(Block).trace(half)), name, top)
        setattr(top.mod, name, top.child[name].mod)
    return top


def results(model: nn.Module) -> list[Any]:
    torch.manual_seed(3)
    return _pytree.tree_leaves(model(torch.rand(2, 4), torch.rand(2, 4)))


def assert_same(ours: list[Any], expected: list[Any]) -> None:
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        assert one is other or torch.equal(one, other)


def test_cuts_in_two_parts_become_stages_of_the_whole() -> None:
    model = Whole()
    reference = copy.deepcopy(model)
    schedule = schedule_of(model)
    schedule["encoder"].cut("block.0", "block.1")
    schedule["decoder"].cut("block.2")
    generate_pipeline_partition(schedule)
    called = [node.target for node in schedule.mod.graph.find_nodes(op="call_module")]
    assert called == ["submod_0", "submod_1", "submod_2", "submod_3"]
    assert_same(results(schedule.mod), results(reference))
    blocks = [
        sorted(name for name, part in schedule.mod.get_submodule(stage).named_modules() if isinstance(part, Block))
        for stage in called
    ]
    assert [len(names) for names in blocks] == [1, 1, 4, 1]

    torch.manual_seed(3)
    live: Any = (torch.rand(2, 4), torch.rand(2, 4))
    for stage in pipeline_stages(schedule.mod):
        live = stage(*live)
    assert_same(_pytree.tree_leaves(live), results(reference))


def test_a_cut_at_the_end_of_a_part_stays_where_the_part_is_cut_after_too() -> None:
    model = Whole()
    reference = copy.deepcopy(model)
    schedule = schedule_of(model)
    schedule["encoder"].cut("block.1")
    schedule.cut("encoder")
    schedule.metadata.primitives["cut_pipeline_stage"].remove("")
    schedule["decoder"].cut("block.2")
    generate_pipeline_partition(schedule)
    assert len(schedule.mod.graph.find_nodes(op="call_module")) == 4
    assert_same(results(schedule.mod), results(reference))


def test_schedules_are_numbered_by_stage() -> None:
    schedule = schedule_of(Whole())
    schedule["encoder"].cut("block.0")
    schedule["decoder"].cut("block.0")
    generate_pipeline_partition(schedule)
    stages = {name: child.partition_idx for name, child in schedule.child.items() if name.startswith("submod_")}
    assert stages == {"submod_0": 0, "submod_1": 1, "submod_2": 2}


def test_nodes_of_the_graph_are_not_numbered() -> None:
    schedule = schedule_of(Whole())
    schedule.cut("encoder")
    graph = schedule.mod.graph
    propagate_partition(schedule)
    assert [node.name for node in graph.nodes if "partition" in node.meta] == ["encoder"]
    assert [node.meta["partition"] for node in graph.find_nodes(op="call_module", target="encoder")] == [True]


def test_what_cannot_be_cut_is_told() -> None:
    schedule = schedule_of(Whole())
    with pytest.raises(PipelineError, match="no module is cut"):
        generate_pipeline_partition(schedule)
    with pytest.raises(PipelineError, match='no node of encoder is marked "partition"'):
        propagate_partition(schedule["encoder"])
    with pytest.raises(PipelineError, match="before is a Linear; trace it"):
        propagate_partition(Schedule(nn.Linear(4, 4), "before", schedule))
    schedule["encoder"].cut("block.0")
    schedule["encoder"].name = "elsewhere"
    with pytest.raises(PipelineError, match="the parent of elsewhere does not call it"):
        propagate_partition(schedule["encoder"])
