"""What a split module looks like: partitions, what passes between them, names; each as torch.fx has it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.passes.split_module import split_module as torch_split_module

from planner.fx_compat import split_module
from planner.fx_compat.splitting.errors import PartitionCycle, TargetNotFound


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.rand(3, 4))
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = self.linear(x + self.shift).clamp(min=0.1, max=0.9)
        return first + self.linear(y).clamp(min=0.0, max=1.0)


def in_turn(count: int) -> Callable[[fx.Node], int]:
    """Gives the operations to `count` partitions in turn. It counts its calls, so each must be asked for once."""
    nodes: list[fx.Node] = []

    def callback(node: fx.Node) -> int:
        nodes.append(node)
        return (len(nodes) - 1) % count

    return callback


def by_name(**partitions: int) -> Callable[[fx.Node], int]:
    return lambda node: partitions[node.name]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(3, 4), torch.rand(3, 4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep_original_order": True},
        {"keep_original_node_name": True},
        {"keep_original_input_name": False},
        {"partition_affix": "pp"},
        {"tuple_return": True},
    ],
)
def test_every_option_gives_the_code_that_torch_gives(options: dict[str, Any]) -> None:
    traced = fx.symbolic_trace(TwoBranches())
    ours = split_module(traced, None, in_turn(3), **options)
    theirs = torch_split_module(fx.symbolic_trace(TwoBranches()), None, in_turn(3), **options)
    assert ours.code == theirs.code
    children = {name: child.code for name, child in ours.named_children() if isinstance(child, fx.GraphModule)}
    assert children == {
        name: child.code for name, child in theirs.named_children() if isinstance(child, fx.GraphModule)
    }
    assert ours.meta == theirs.meta
    tensors = inputs()
    assert torch.equal(ours(*tensors), traced(*tensors))


def test_callback_is_asked_once_for_each_operation_in_order() -> None:
    traced = fx.symbolic_trace(TwoBranches())
    names: list[str] = []
    split_module(traced, None, lambda node: names.append(node.name) or 0)
    assert names == [node.name for node in traced.graph.nodes if node.op.startswith("call_")]


@pytest.mark.parametrize("lazy", [True, False])
def test_metadata_of_nodes_is_kept_and_lazy_modules_are_made_where_asked_for(lazy: bool) -> None:
    traced = fx.symbolic_trace(TwoBranches())
    for node in traced.graph.nodes:
        node.meta["mark"] = node.name
    with _use_lazy_graph_module(lazy):
        split = split_module(traced, None, in_turn(3))
    for _, child in split.named_children():
        if isinstance(child, fx.GraphModule):
            assert all("mark" in node.meta for node in child.graph.nodes if node.op != "output")
    tensors = inputs()
    assert torch.equal(split(*tensors), traced(*tensors))


def test_the_split_graph_is_only_read() -> None:
    traced = fx.symbolic_trace(TwoBranches())
    before = [(str(node.format_node()), dict(node.meta), sorted(vars(node))) for node in traced.graph.nodes]
    state = {name: id(value) for name, value in traced.named_parameters()}
    split_module(traced, None, in_turn(3))
    assert [(str(node.format_node()), dict(node.meta), sorted(vars(node))) for node in traced.graph.nodes] == before
    assert {name: id(value) for name, value in traced.named_parameters()} == state


def test_a_module_can_be_split_twice_and_a_part_be_split_again() -> None:
    traced = fx.symbolic_trace(TwoBranches())
    tensors = inputs()
    for count in (6, 3):
        split = split_module(traced, None, in_turn(count), keep_original_order=True)
        again = split_module(split, None, lambda node: 0)
        assert torch.equal(again(*tensors), traced(*tensors))
    part = split.submod_0
    parts = split_module(part, None, in_turn(2), keep_original_order=True)
    assert [name for name, _ in parts.named_children()] == ["submod_0", "submod_1"]


def test_names_that_differ_by_a_dot_only_stay_two_modules() -> None:
    class Alike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Module()
            self.a.b_c = nn.Linear(4, 4)
            self.a_b = nn.Module()
            self.a_b.c = nn.Linear(4, 4)
            self.a_b_c_1 = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a_b_c_1(self.a_b.c(self.a.b_c(x)))

    traced = fx.symbolic_trace(Alike())
    names: dict[str, str] = {}
    split = split_module(traced, None, lambda node: 0, names)
    x = torch.rand(2, 4)
    assert torch.equal(split(x), traced(x))
    assert sorted(names.values()) == ["a.b_c", "a_b.c", "a_b_c_1"]
    for new, old in names.items():
        assert split.get_submodule(new) is traced.get_submodule(old)


def test_qualified_names_map_back_for_every_partition_that_calls_a_module() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4)])
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = self.layers[0](x) @ self.weight
            return x

    names: dict[str, str] = {}
    split = split_module(fx.symbolic_trace(Reused()), None, in_turn(4), names, keep_original_order=True)
    assert names == {"submod_0.layers_0": "layers.0", "submod_2.layers_0": "layers.0"}
    assert split.submod_0.layers_0 is split.submod_2.layers_0


def test_a_state_named_like_a_partition_does_not_replace_it() -> None:
    class Misnamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.submod_0 = nn.Parameter(torch.rand(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + self.submod_0) * 2

    traced = fx.symbolic_trace(Misnamed())
    x = torch.rand(4)
    assert torch.equal(split_module(traced, None, in_turn(2))(x), traced(x))


def test_dead_code_and_operations_without_a_result_get_their_partition() -> None:
    def dead(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        x + 2
        return doubled

    split = split_module(fx.symbolic_trace(dead), None, by_name(mul=1, add=2))
    assert {name for name, _ in split.named_children()} == {"submod_1", "submod_2"}
    assert all(len(child.graph.find_nodes(op="output")) == 1 for _, child in split.named_children())
    assert torch.equal(split(torch.ones(3)), torch.full((3,), 2.0))


def test_one_output_is_bare_several_are_a_tuple_and_a_tuple_can_be_asked_for() -> None:
    def one_and_two(x: torch.Tensor) -> torch.Tensor:
        first = x + 1
        second = first * 2
        third = first - 1
        return second / third

    partitions = by_name(add=0, mul=1, sub=1, truediv=2)
    traced = fx.symbolic_trace(one_and_two)
    split = split_module(traced, None, partitions)
    x = torch.rand(3) + 1
    assert isinstance(split.submod_0(x), torch.Tensor)
    assert isinstance(split.submod_1(x), tuple)
    boxed = split_module(traced, None, partitions, tuple_return=True)
    assert all(isinstance(boxed.get_submodule(f"submod_{part}")(x), tuple) for part in (0, 1))
    assert torch.equal(boxed(x), traced(x))


def test_variadic_and_defaulted_inputs_are_those_of_the_module() -> None:
    class Keywords(nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 2.0, **more: torch.Tensor) -> torch.Tensor:
            return x * scale + more["shift"]

    traced = fx.symbolic_trace(Keywords())
    x, shift = torch.rand(3), torch.rand(3)
    for options in ({}, {"keep_original_order": True}):
        split = split_module(traced, None, in_turn(3), **options)
        assert torch.equal(split(x, shift=shift), x * 2.0 + shift)
        assert torch.equal(split(x, 3.0, shift=shift), x * 3.0 + shift)


@pytest.mark.parametrize("keep_original_order", [True, False])
def test_a_graph_without_operations_stays_as_it_is(keep_original_order: bool) -> None:
    split = split_module(fx.symbolic_trace(lambda x: (x,)), None, lambda node: 0, None, keep_original_order)
    assert [node.op for node in split.graph.nodes] == ["placeholder", "output"]


def test_a_module_that_is_fetched_is_given_to_each_partition_and_comes_after_its_inputs() -> None:
    root = nn.Module()
    root.branch = nn.Identity()
    graph = fx.Graph()
    x = graph.placeholder("x")
    branch = graph.get_attr("branch")
    y = graph.placeholder("y")
    first = graph.call_function(_applied, (branch, x))
    graph.output(graph.call_function(_applied, (branch, graph.call_function(operator.add, (first, y)))))
    module = fx.GraphModule(root, graph)
    for options in ({}, {"keep_original_order": True}):
        split = split_module(module, None, by_name(_applied=0, add=1, _applied_1=1), **options)
        for part in (split.submod_0, split.submod_1):
            ops = [node.op for node in part.graph.nodes]
            assert "placeholder" not in ops[ops.index("get_attr") :]
            assert part.branch is root.branch
        assert split(2, 3) == 5


@pytest.mark.parametrize("parts", [(0, 0, 0, 0, 0), (0, 0, 1, 1, 1), (0, 1, 1, 2, 2), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("options", [{}, {"keep_original_order": True}, {"keep_original_input_name": False}])
def test_states_fetched_between_the_inputs_are_where_torch_has_them(
    options: dict[str, bool], parts: tuple[int, ...]
) -> None:
    """In each part the inputs come before the modules that it fetches; a tensor that is fetched is an input."""
    root = nn.Module()
    root.branch, root.other, root.shift = nn.Linear(2, 2), nn.ReLU(), nn.Parameter(torch.ones(2))
    graph = fx.Graph()
    x = graph.placeholder("x")
    branch, shift = graph.get_attr("branch"), graph.get_attr("shift")
    y = graph.placeholder("y")
    other = graph.get_attr("other")
    shifted = graph.call_function(operator.add, (graph.call_function(_applied, (branch, x)), shift))
    scaled = graph.call_function(operator.mul, (graph.call_function(_applied, (other, shifted)), y))
    graph.output(graph.call_function(_applied, (branch, scaled)))
    module = fx.GraphModule(root, graph)
    of = dict(zip([node for node in graph.nodes if node.op == "call_function"], parts, strict=True))
    ours, expected = (split(module, None, of.__getitem__, **options) for split in (split_module, torch_split_module))
    assert ours.code == expected.code
    for number in set(parts):
        name = f"submod_{number}"
        assert getattr(ours, name).code == getattr(expected, name).code
    tensors = torch.rand(3, 2), torch.rand(3, 2)
    assert torch.equal(ours(*tensors), module(*tensors))


def _applied(module: nn.Module, value: object) -> object:
    return module(value)


def test_original_order_is_kept_where_there_is_one_and_else_a_valid_order_is_found() -> None:
    def parallel(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) * 2 - (x / 2)

    traced = fx.symbolic_trace(parallel)
    split = split_module(traced, None, by_name(add=0, mul=1, truediv=2, sub=3), keep_original_order=True)
    called = [node.target for node in split.graph.find_nodes(op="call_module")]
    assert called == ["submod_0", "submod_1", "submod_2", "submod_3"]

    # Partition 0 appears first and needs partition 1: torch.fx fails on this.
    crossed = split_module(traced, None, by_name(add=0, mul=0, truediv=1, sub=0), keep_original_order=True)
    x = torch.rand(3)
    assert torch.equal(crossed(x), traced(x))
    assert [node.target for node in crossed.graph.find_nodes(op="call_module")] == ["submod_1", "submod_0"]


def test_a_state_that_is_only_returned_is_there_in_every_order() -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Parameter(torch.rand(2))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, self.kept

    for keep_original_order in (True, False):
        split = split_module(fx.symbolic_trace(Returned()), None, lambda node: 0, None, keep_original_order)
        assert torch.equal(split(torch.zeros(2))[1], split.kept)


def test_a_cycle_of_data_names_the_nodes_and_the_partitions() -> None:
    traced = fx.symbolic_trace(lambda x: (x + 1) * 2 - 3)
    with pytest.raises(RuntimeError, match="cycle exists between partitions!") as raised:
        split_module(traced, None, by_name(add=0, mul=1, sub=0))
    assert isinstance(raised.value, PartitionCycle)
    assert set(raised.value.metadata["partitions"].split(", ")) == {"0", "1"}
    assert "mul in partition 1 must come after add in partition 0" in raised.value.message
    assert "sub in partition 0 must come after mul in partition 1" in raised.value.message


def test_a_target_that_is_not_there_is_named() -> None:
    traced = fx.symbolic_trace(TwoBranches())
    del traced.linear
    with pytest.raises(AttributeError, match="Node target linear not found!") as raised:
        split_module(traced, None, in_turn(2))
    assert isinstance(raised.value, TargetNotFound)


@pytest.mark.slow
def test_symbols_of_a_dynamic_input_are_brought_along() -> None:
    def dynamic(x: torch.Tensor) -> torch.Tensor:
        first = torch.sin(x) + 1
        return torch.cos(first).reshape(first.shape[0] * 2, -1) * 3

    splits: list[tuple[fx.GraphModule, fx.GraphModule]] = []

    def backend(module: fx.GraphModule, _: list[Any]) -> fx.GraphModule:
        splits.append((split_module(module, None, in_turn(99)), torch_split_module(module, None, in_turn(99))))
        return splits[-1][0]

    torch._dynamo.reset()
    x = torch.rand(4, 6)
    assert torch.equal(torch.compile(dynamic, backend=backend, dynamic=True)(x), dynamic(x))
    ours, theirs = splits[0]
    assert ours.code == theirs.code
    symbols = [node.name for node in ours.graph.find_nodes(op="placeholder") if "SymInt" in str(node.type)]
    arguments_of_calls = [node.args for node in ours.graph.find_nodes(op="call_module")]
    assert symbols
    assert sum(any(argument.name in symbols for argument in arguments) for arguments in arguments_of_calls) > 1


def test_symbols_that_appear_in_the_middle_cross_as_ints() -> None:
    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            expert = self.router(x).argmax(1)
            counts = torch.zeros(4, dtype=torch.long).scatter_add(0, expert, torch.ones_like(expert))
            return x[expert.argsort(stable=True)].split(counts.tolist())

    module, x = Ragged(), torch.rand(12, 8)
    for options in ({}, {"keep_original_order": True, "keep_original_node_name": True}):
        torch._dynamo.reset()
        ids: dict[fx.Node, int] = {}
        compiled = torch.compile(
            module,
            backend=lambda graph, _, ids=ids, options=options: split_module(
                graph, None, lambda node: ids.setdefault(node, len(ids) // 3), **options
            ),
        )
        assert all(torch.equal(ours, right) for ours, right in zip(compiled(x), module(x), strict=True))
        assert len(set(ids.values())) > 2


def test_containers_of_inputs_and_outputs_are_kept() -> None:
    """An exported program's module takes keywords, dicts and lists; torch's split takes their leaves."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, batch: dict[str, Any], *, scale: torch.Tensor) -> dict[str, Any]:
            first = self.first(batch["x"])
            return {"first": first, "rest": [self.second(first + batch["y"][0]), scale * 2]}

    batch = {"x": torch.rand(2, 3), "y": [torch.rand(2, 3)]}
    scale = torch.rand(1)
    module = torch.export.export(Nested(), (batch,), {"scale": scale}).module()
    assert isinstance(module, fx.GraphModule)
    targets = [str(node.target) for node in module.graph.nodes]
    half = targets.index("aten.linear.default")
    order = {node: index for index, node in enumerate(module.graph.nodes)}
    split = split_module(module, None, lambda node: int(order[node] > half))
    outputs, expected = split(batch, scale=scale), module(batch, scale=scale)
    assert list(outputs) == list(expected)
    assert torch.equal(outputs["first"], expected["first"])
    assert all(map(torch.equal, outputs["rest"], expected["rest"]))
    assert [node.target for node in split.graph.find_nodes(op="call_module")] == ["submod_0", "submod_1"]
