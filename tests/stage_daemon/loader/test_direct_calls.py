"""A program called directly gives what torch.fx's own code gives, keeps no more memory, and reads the right states."""

from __future__ import annotations

import operator
import weakref
from typing import Any

import pytest
import torch
from torch import fx, nn

from stage_daemon.loader.direct_calls import direct_function
from tests.stage_daemon.loader.test_evaluation import MODULES, rebuilt
from tests.stage_daemon.loader.test_returned_states import Counting

aten = torch.ops.aten


def program_of(build: Any) -> fx.GraphModule:
    graph, root = fx.Graph(), nn.Module()
    root.register_buffer("state", torch.arange(6.0))
    graph.output(build(graph))
    return fx.GraphModule(root, graph)


def every_kind_of_argument(graph: fx.Graph) -> tuple[Any, ...]:
    x, size = graph.placeholder("x"), graph.placeholder("size")
    state = graph.get_attr("state")
    filled = graph.call_function(
        aten.full.default, ([2, size], float("-inf")), {"dtype": torch.float64, "device": None}
    )
    parts = graph.call_function(aten.split_with_sizes.default, (x, [size, 2]))
    first = graph.call_function(operator.getitem, (parts, 0))
    sliced = graph.call_function(operator.getitem, (x, (Ellipsis, slice(size, None, 2))))
    summed = graph.call_function(aten.einsum.default, ("i,j->ij", [first, state]))
    joined = graph.call_function(aten.cat.default, ([state, x],), {"dim": -1})
    doubled = graph.call_method("mul", (joined, 2), {})
    whole = graph.call_function(operator.add, (size, 1))
    return filled, sliced, summed, doubled, whole, size, True, None, (x, [first])


@pytest.mark.parametrize("binds_states", [True, False])
def test_it_gives_what_the_program_does_whatever_its_arguments_are(binds_states: bool) -> None:
    program, x = program_of(every_kind_of_argument), torch.randn(6)
    given = direct_function(program, binds_states=binds_states)(x, 4)
    expected = program.forward(x, 4)
    assert torch.utils._pytree.tree_structure(given) == torch.utils._pytree.tree_structure(expected)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (given, expected)), strict=True):
        assert type(one) is type(other)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("name", MODULES)
def test_modules_give_the_same_bits(name: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(3, 4, 8)
    for function in (rebuilt(module, x).function(), rebuilt(module, x).forward):
        torch.manual_seed(1)
        given = function(x)
        torch.manual_seed(1)
        assert all(map(torch.equal, given, rebuilt(module, x).program.forward(x)))


def test_a_value_goes_once_nothing_reads_it_any_more() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        alive.append(weakref.ref(result := x + 1))
        return result

    def num_alive(x: torch.Tensor) -> int:
        return sum(one() is not None for one in alive)

    def build(graph: fx.Graph) -> tuple[Any, ...]:
        x = graph.placeholder("x")
        # The first is read twice, and nobody reads the third.
        first = graph.call_function(noted, (x,))
        second = graph.call_function(noted, (first,))
        graph.call_function(noted, (x,))
        counts = [graph.call_function(num_alive, (x,))]
        last = graph.call_function(noted, (first,))
        counts.append(graph.call_function(num_alive, (x,)))
        graph.call_function(noted, (second,))
        counts.append(graph.call_function(num_alive, (x,)))
        return (*counts, last)

    program, x = program_of(build), torch.ones(2)
    *counts, last = direct_function(program, binds_states=True)(x)
    assert counts == [2, 2, 1]
    assert float(last[0]) == 3.0


def test_states_are_those_that_were_there_or_those_that_are() -> None:
    program = program_of(lambda graph: (graph.call_function(aten.mul.Tensor, (graph.get_attr("state"), 2.0)),))
    bound, fetched = (direct_function(program, binds_states=binds) for binds in (True, False))
    program.state.add_(1)
    assert torch.equal(bound()[0], fetched()[0])
    program.state = torch.zeros(6)
    assert torch.equal(bound()[0], 2 * torch.arange(1.0, 7.0))
    assert torch.equal(fetched()[0], torch.zeros(6))


def test_a_stage_runs_on_states_that_stand_in_and_then_on_its_own_again() -> None:
    x = torch.rand(2, 3)
    stage = rebuilt(Counting("a sum"), x)
    assert torch.equal(stage(x)[0], x)
    with stage.standing_in({"count": torch.ones(2, 3)}):
        assert torch.equal(stage(x)[0], 1 + x)
    assert torch.equal(stage.states()["count"], x)
    assert torch.equal(stage(x)[0], x + x)


def test_what_an_operator_raises_is_raised() -> None:
    program = program_of(lambda graph: (graph.call_function(aten.view.default, (graph.placeholder("x"), [5])),))
    with pytest.raises(RuntimeError, match=r"shape '.5.' is invalid"):
        direct_function(program, binds_states=True)(torch.ones(4))
