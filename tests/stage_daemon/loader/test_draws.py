"""Who draws random numbers starts them anew, which takes time: nobody else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.draws import draws_random
from stage_daemon.loader.evaluation import evaluation_program
from stage_daemon.loader.operators import operator_table
from stage_daemon.loader.parse import parse_graph
from stage_daemon.loader.rebuild import rebuild_module
from stage_daemon.loader.vocabulary import facts_of
from stage_daemon.randomness import drawing, start_node
from tests.stage_daemon.loader.test_foreign_inputs import Of

X = torch.randn(2, 3, 4)
DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.5, True),
    "noise": lambda x: x + torch.rand_like(x),
    "attention that drops": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.25),
    "in a branch": lambda x: torch.cond(
        x.sum() > 0, lambda y: functional.dropout(y, 0.5, True), lambda y: y.clone(), (x,)
    ),
}
OTHERWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout that evaluates": lambda x: functional.dropout(x, 0.5, False),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x),
    "attention that drops nothing": lambda x: functional.scaled_dot_product_attention(x, x, x, None, 0.0),
    "a leaky unit that evaluates": lambda x: torch.rrelu(x),
    "in a branch": lambda x: torch.cond(
        x.sum() > 0, lambda y: functional.dropout(y, 0.5, False), lambda y: y.clone(), (x,)
    ),
    "nothing of the kind": lambda x: x + 1,
}


def graph_of(module: nn.Module) -> pb.Graph:
    return parse_graph(graph_to_bytes(export(module, (X,)).graph))


def num_started(program: torch.fx.GraphModule) -> int:
    return sum(node.target is start_node for node in program.graph.nodes)


@pytest.mark.parametrize("name", DRAWING)
def test_whatever_draws_starts_the_generators(name: str) -> None:
    graph = graph_of(Of(DRAWING[name]))
    assert draws_random(graph)
    assert num_started(rebuild_module(graph, X.device).program) == 1


@pytest.mark.parametrize("name", OTHERWISE)
def test_calls_that_evaluate_draw_nothing(name: str) -> None:
    graph = graph_of(Of(OTHERWISE[name]))
    assert not draws_random(graph)
    assert num_started(rebuild_module(graph, X.device).program) == 0


def test_a_module_that_was_captured_in_training_draws_nothing_once_it_evaluates() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.1), Of(lambda x: x + torch.rand_like(x)))
    program = rebuild_module(graph_of(module.train()), X.device).program
    assert num_started(program) == 3
    # What draws in evaluation too goes on doing so.
    assert num_started(evaluation_program(program, written=())) == 1


def test_who_may_leave_the_argument_out_evaluates_then() -> None:
    for (kind, name, _), implementation in operator_table().items():
        evaluation = facts_of(name).evaluation
        if evaluation is None:
            continue
        argument, value = evaluation
        position = implementation.argument_names.index(argument)
        if kind == pb.OPERATOR_KIND_ATEN and position >= implementation.num_required:
            [default] = {
                one.default_value
                for overload in getattr(torch.ops.aten, name.partition("::")[2]).overloads()
                for one in getattr(getattr(torch.ops.aten, name.partition("::")[2]), overload)._schema.arguments
                if one.name == argument
            }
            assert default == value, name


def test_generators_start_as_they_would_by_torch() -> None:
    with drawing("dep-1", 7):
        start_node(3)
        ours = torch.rand(5)
        seed = torch.initial_seed()
    torch.manual_seed(seed)
    assert torch.equal(torch.rand(5), ours)
