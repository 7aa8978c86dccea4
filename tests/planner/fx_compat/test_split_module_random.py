"""Random modules, cut at random: the same parts as torch's, and the module's own numbers where torch's are wrong."""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.passes.split_module import split_module as torch_split_module

from planner.fx_compat import split_module
from tests.random_examples import random_seeds

Step = Callable[[fx.Graph, fx.Node, fx.Node], fx.Node]

_PURE: tuple[Step, ...] = (
    lambda graph, a, b: graph.call_function(operator.add, (a, b)),
    lambda graph, a, b: graph.call_function(torch.mul, (a, 0.5)),
    lambda graph, a, b: graph.call_function(torch.ops.aten.sub.Tensor, (a, b)),
    lambda graph, a, b: graph.call_function(torch.tanh, (a,)),
    lambda graph, a, b: graph.call_module("linear", (a,)),
    lambda graph, a, b: graph.call_method("t", (a,)),
    lambda graph, a, b: graph.call_method("view", (graph.call_method("contiguous", (a,)), 4, 4)),
    lambda graph, a, b: graph.call_function(torch.transpose, (a, 0, 1)),
    lambda graph, a, b: graph.call_function(getattr, (a, "T")),
    lambda graph, a, b: graph.call_module("same", (a,)),
)

_EFFECTS: tuple[Step, ...] = (
    lambda graph, a, b: graph.call_method("add_", (a, 1)),
    lambda graph, a, b: graph.call_method("mul_", (a, b)),
    lambda graph, a, b: graph.call_function(torch.relu_, (a,)),
    lambda graph, a, b: graph.call_function(F.relu, (a,), {"inplace": True}),
    lambda graph, a, b: graph.call_module("clip", (a,)),
    lambda graph, a, b: graph.call_function(operator.iadd, (a, b)),
    lambda graph, a, b: graph.call_function(torch.ops.aten.add_.Tensor, (a, b)),
    lambda graph, a, b: graph.call_function(torch.rand_like, (a,)),
    lambda graph, a, b: graph.call_module("drop", (a,)),
    lambda graph, a, b: graph.call_function(F.dropout, (a,), {"p": 0.4}),
    lambda graph, a, b: graph.call_module("norm", (a,)),
)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.same = nn.Identity()
        self.clip = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.weight = nn.Parameter(torch.rand(4, 4))
        self.register_buffer("kept", torch.rand(4, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    module: fx.GraphModule
    ids: dict[fx.Node, int]
    options: dict[str, Any]
    pure: bool


def make_case(seed: int) -> Case:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    pure = draw.random() < 0.4
    graph = fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y"), graph.get_attr("weight"), graph.get_attr("kept")]
    for _ in range(draw.randint(3, 12)):
        with_effect = not pure and draw.random() < 0.4
        recent = [value for value in values[-6:] if value.name != "weight"] if with_effect else values[-6:]
        first, second = draw.choice(recent), draw.choice(values)
        values.append(draw.choice(_EFFECTS if with_effect else _PURE)(graph, first, second))
    graph.output((*draw.sample(values, 3), values[-1]))
    module = fx.GraphModule(Parts(), graph)
    options = {"keep_original_order": draw.random() < 0.5, "tuple_return": draw.random() < 0.3}
    return Case(module=module, ids=_random_ids(module, draw), options=options, pure=pure)


def _random_ids(module: fx.GraphModule, draw: random.Random) -> dict[fx.Node, int]:
    """Each operation at or after what it reads, mostly; then the partitions' numbers are shuffled."""
    ids: dict[fx.Node, int] = {}
    reckless = draw.random() < 0.2
    for node in module.graph.nodes:
        if node.op.startswith("call_"):
            earliest = max((ids[source] for source in node.all_input_nodes if source in ids), default=0)
            ids[node] = draw.randrange(4) if reckless else earliest + draw.choice((0, 0, 0, 1, 2))
    numbers = draw.sample(range(100), 1 + max(ids.values()))
    return {node: numbers[partition] for node, partition in ids.items()}


def outcome(run: nn.Module, case: Case, before: dict[str, torch.Tensor]) -> list[torch.Tensor] | None:
    """What is returned, and what is left of the inputs and states; None if these numbers cannot be computed."""
    states = case.module.state_dict()
    for name, value in before.items():
        states[name].copy_(value)
    torch.manual_seed(1)
    inputs = [torch.rand(4, 4), torch.rand(4, 4)]
    try:
        returned = run(*inputs)
    except RuntimeError:
        return None
    return [value.clone() for value in (*returned, *inputs, *states.values())]


def equal(one: list[torch.Tensor] | None, other: list[torch.Tensor] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True))


def attempt(split: Callable[..., fx.GraphModule], case: Case) -> fx.GraphModule | None:
    """None where the split is refused, or fails as torch's does for partitions in an impossible order."""
    try:
        return split(case.module, None, case.ids.__getitem__, **case.options)
    except (RuntimeError, KeyError):
        return None


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore")
def test_numbers_are_the_modules_and_parts_are_torchs() -> None:
    seen: Counter[str] = Counter()
    with torch.no_grad():
        for seed in random_seeds(100):
            seen[check(make_case(seed))] += 1
    assert seen["as torch's"] > 0.45 * seen.total()
    assert seen["torch's is wrong"] > 0
    assert seen["torch fails"] > 0
    # Writes that change nothing, draws that nobody uses: nothing in the graph tells.
    assert seen["refused, torch's is right"] < 0.15 * seen.total()


def check(case: Case) -> str:
    before = {name: value.clone() for name, value in case.module.state_dict().items()}
    expected = outcome(case.module, case, before)
    if expected is None:
        return "not computable"
    ours, theirs = attempt(split_module, case), attempt(torch_split_module, case)
    if ours is None:
        if theirs is None:
            return "both refuse"
        assert not case.pure
        return f"refused, torch's is {'right' if equal(outcome(theirs, case, before), expected) else 'wrong'}"
    assert equal(outcome(ours, case, before), expected), case.module.code
    if theirs is None:
        return "torch fails"
    assert parts_of(ours) == parts_of(theirs)
    assert not case.pure or ours.code == theirs.code
    return "as torch's" if equal(outcome(theirs, case, before), expected) else "torch's is wrong"


def parts_of(split: fx.GraphModule) -> dict[str, tuple[str, list[str]]]:
    """Each part's code and the names of what it is called with."""
    arguments = {node.target: [str(item) for item in node.args] for node in split.graph.find_nodes(op="call_module")}
    return {
        name: (child.code, [node.name for node in child.graph.find_nodes(op="placeholder")])
        for name, child in split.named_children()
        if name in arguments and isinstance(child, fx.GraphModule)
    }
