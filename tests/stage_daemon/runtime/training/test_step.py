"""Training steps over devices: to the bit what one process does, where sums have one order."""

from __future__ import annotations

import copy
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from planner.client.export import ExportedModel, export
from planner.graph.ir import Graph
from planner.partition.objective import Activations, PipelineSchedule
from planner.plan.options import Routing
from stage_daemon.runtime.training.passes import StagePass
from stage_daemon.runtime.training.records import OptimizerSettings, ParameterGroup
from tests.builders.cuts import even_cuts
from tests.stage_daemon.runtime.training.devices import Cluster, train_on_threads
from tests.stage_daemon.runtime.training.eager import Eager
from tests.stage_daemon.runtime.training.modules import (
    BATCH,
    Follows,
    Half,
    Layers,
    Looked,
    Normed,
    Skips,
    StraightThrough,
    Tied,
    rows,
    tokens,
)

SHAPES = ({0: BATCH}, {0: BATCH})
UNEVEN = (3, 2, 4, 2, 3)
EXPORTED: dict[tuple[object, ...], ExportedModel] = {}


def cut_into(num_stages: int) -> Callable[[Graph], list[int]]:
    """Stages of about as many nodes each."""
    return lambda graph: [index * num_stages // len(graph.nodes) for index in range(len(graph.nodes))]


def both(
    module: nn.Module, make: Callable[[int, int], Any], num_stages: int, devices: Sequence[int], **options: Any
) -> tuple[Cluster, Eager]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    # What decides the graph: the kind, its layers, its parameters, how it is called.
    parameters = tuple((one.dtype, one.requires_grad) for one in module.parameters())
    key = (type(module), repr(module), module.training, parameters, make)
    if key not in EXPORTED:
        EXPORTED[key] = export(copy.deepcopy(module), make(4, 99), dynamic_shapes=SHAPES)
    cluster = train_on_threads(
        copy.deepcopy(module),
        make(4, 99),
        stage_of_node=cut_into(num_stages),
        devices=devices,
        exported=EXPORTED[key],
        **options,
    )
    return cluster, Eager(module, optimizer)


def assert_same_steps(
    cluster: Cluster,
    eager: Eager,
    make: Callable[[int, int], Any],
    *,
    sizes: Sequence[int] = UNEVEN,
    num_steps: int = 3,
    loss_position: int = 0,
    tolerance: float = 0.0,
    **options: Any,
) -> None:
    for step in range(num_steps):
        microbatches = [make(size, 10 * step + index) for index, size in enumerate(sizes)]
        weights = [size / sum(sizes) for size in sizes]
        outcome = cluster.step(microbatches, weights, **options)
        losses, norm = eager.step(microbatches, weights, **options)
        assert outcome.applied
        assert [float(output[loss_position]) for output in outcome.outputs.values()] == pytest.approx(
            losses, rel=tolerance, abs=0
        )
        assert outcome.gradient_norm == pytest.approx(norm, rel=tolerance, abs=0)
    states, expected = cluster.states(), eager.states()
    # Of tied names the graph may know one.
    addresses = {expected[name].data_ptr() for name in states}
    assert addresses == {one.data_ptr() for one in expected.values()}
    for name in states:
        torch.testing.assert_close(states[name], expected[name], rtol=tolerance, atol=tolerance)


# These need two stages on each device, there and back.
IN_A_V = (PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.V_HALF)
ANYWHERE = [schedule for schedule in PipelineSchedule if schedule not in IN_A_V]
PLACES = [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, (0, 1, 0, 1)), (4, (0, 1, 1, 0))]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ANYWHERE)
@pytest.mark.parametrize(("num_stages", "devices"), PLACES)
def test_layers_are_trained_to_the_bit(schedule: PipelineSchedule, num_stages: int, devices: tuple[int, ...]) -> None:
    cluster, eager = both(Layers(), rows, num_stages, devices, schedule=schedule)
    assert_same_steps(cluster, eager, rows, clip_norm=0.05)


@pytest.mark.parametrize("schedule", IN_A_V)
@pytest.mark.parametrize(("num_stages", "devices"), [(2, (0, 0)), (4, (0, 1, 1, 0))])
def test_layers_in_a_v_are_trained_to_the_bit(
    schedule: PipelineSchedule, num_stages: int, devices: tuple[int, ...]
) -> None:
    cluster, eager = both(Layers(), rows, num_stages, devices, schedule=schedule)
    assert_same_steps(cluster, eager, rows, clip_norm=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ANYWHERE)
@pytest.mark.parametrize("routing", Routing)
def test_gradients_of_several_readers_are_summed(schedule: PipelineSchedule, routing: Routing) -> None:
    cluster, eager = both(Skips(), rows, 4, (0, 1, 2, 0), schedule=schedule, routing=routing)
    assert_same_steps(cluster, eager, rows, tolerance=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ANYWHERE)
@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 1, 0), (0, 0, 0)])
def test_tied_weights_stay_one(schedule: PipelineSchedule, devices: tuple[int, ...]) -> None:
    cluster, eager = both(Tied(), tokens, 3, devices, schedule=schedule)
    eager.loss_of = lambda outputs: outputs[0]
    assert_same_steps(cluster, eager, tokens, tolerance=1e-6, clip_norm=0.5)


def test_a_step_that_is_over_holds_nothing_of_its_batch() -> None:
    """The next step may be long in coming, and a batch as large as what the stages keep of it."""
    cluster, _ = both(Layers(), rows, 2, (0, 1))
    microbatches = [rows(4, index) for index in range(4)]
    outputs = cluster.step(microbatches).outputs
    held = [weakref.ref(tensor) for tensor in (*itertools.chain(*microbatches), *itertools.chain(*outputs.values()))]
    del microbatches, outputs
    cluster.outcomes.clear()
    assert [reference for reference in held if reference() is not None] == []


def test_gradients_of_one_value_are_added_with_the_last_reader_first() -> None:
    """As autograd does: from the last stage back, which rounds otherwise than from the first on."""
    stage_pass = StagePass(stage=0, microbatch=0)
    root = torch.zeros((), requires_grad=True)
    stage_pass.keep_graph([7], [root], [7])
    for stage, gradient in ((1, 1.0), (2, 1e8), (3, -1e8)):
        stage_pass.receive_gradients([7], [torch.full((1,), gradient)], stage)
    stage_pass.backward()
    assert root.grad == 1.0


def test_more_and_fewer_microbatches_than_planned() -> None:
    cluster, eager = both(Layers(), rows, 3, (0, 1, 2), microbatches=4)
    steps = [(2,), (3, 1), (1,) * 4, (2,) * 5, (1, 2) * 5]
    for sizes in steps:
        assert_same_steps(cluster, eager, rows, sizes=sizes, num_steps=1)
    metrics = [stage for told in cluster.told.values() for stage in told.around.metrics.values()]
    assert [stage.num_microbatches for stage in metrics] == [sum(map(len, steps))] * 3


def test_buffers_change_in_microbatch_order() -> None:
    cluster, eager = both(Normed(), rows, 3, (0, 1, 2))
    assert_same_steps(cluster, eager, rows)
    draws = {
        name: tensor
        for stage in cluster.stages.values()
        if stage.module is not None
        for name, tensor in stage.module.states().items()
    }
    for name, expected in eager.module.named_buffers():
        assert torch.equal(draws[name], expected), name


@pytest.mark.parametrize(
    ("schedule", "activations"),
    [
        (PipelineSchedule.ONE_F_ONE_B, Activations.KEPT),
        (PipelineSchedule.ONE_F_ONE_B, Activations.RECOMPUTED),
        (PipelineSchedule.GPIPE, Activations.KEPT),
        (PipelineSchedule.ZERO_BUBBLE, Activations.KEPT),
    ],
)
def test_states_that_are_written_on_the_way_are_those_of_each_microbatch(
    schedule: PipelineSchedule, activations: Activations
) -> None:
    cluster, eager = in_three(Follows(), schedule=schedule, activations=activations)
    assert_same_steps(cluster, eager, rows)


def test_what_is_written_without_gradients_keeps_the_one_that_it_has() -> None:
    cluster, eager = in_three(StraightThrough())
    assert_same_steps(cluster, eager, rows)


def in_three(module: nn.Module, **options: Any) -> tuple[Cluster, Eager]:
    """Stages that hold together what writes and what reads."""
    exported = export(copy.deepcopy(module), rows(4, 99), dynamic_shapes=SHAPES)
    stage_of_node = even_cuts(exported.graph, max_stages=3)
    assert max(stage_of_node) == 2
    cluster = train_on_threads(
        copy.deepcopy(module),
        rows(4, 99),
        exported=exported,
        stage_of_node=lambda _: stage_of_node,
        devices=(0, 1, 2),
        **options,
    )
    return cluster, Eager(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))


def test_dropout_draws_the_same_wherever_stages_are() -> None:
    def losses(devices: Sequence[int], number: int = 0) -> list[float]:
        torch.manual_seed(1)
        cluster, _ = both(Normed(dropout=0.5), rows, len(devices), devices)
        cluster.num_steps = number
        return [float(loss) for _ in range(2) for (loss,) in cluster.step([rows(4, 1)] * 3).outputs.values()]

    once = losses((0, 1, 2))
    assert once == losses((0, 0, 1)) == losses((0,)) == losses((0, 1, 2, 0, 1))
    assert once != losses((0, 1, 2), number=7)
    assert len(set(once)) == len(once)


def test_what_is_frozen_stays_and_gets_no_gradient() -> None:
    module = Layers()
    for layer in (0, 2):
        module.layers[layer].requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    cluster, eager = both(module, rows, 4, (0, 1, 2, 3), schedule=PipelineSchedule.ZERO_BUBBLE)
    assert_same_steps(cluster, eager, rows)
    assert set(cluster.states()) == {"layers.1.weight", "layers.1.bias", "layers.3.weight", "layers.3.bias"}
    assert all(torch.equal(eager.module.state_dict()[name], before[name]) for name in before if name[7] in "02")


def test_gradients_that_torch_may_keep_sparse_are_dense() -> None:
    module = Looked(sparse=True)
    cluster, _ = both(module, tokens, 3, (0, 1, 2))
    dense = Looked(sparse=False)
    dense.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.1, momentum=0.9)
    assert_same_steps(cluster, Eager(dense, optimizer), tokens, clip_norm=0.5)


@pytest.mark.parametrize("schedule", [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE])
def test_no_gradient_is_not_a_gradient_of_zeros(schedule: PipelineSchedule) -> None:
    """The square root of 0 has an infinite derivative; zeros times that are not a number."""
    cluster, eager = both(Half(), rows, 3, (0, 1, 2), schedule=schedule)
    eager.loss_of = lambda outputs: outputs[0]
    assert_same_steps(cluster, eager, rows)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.95)}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "adafactor": (torch.optim.Adafactor, {"weight_decay": 0.01}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_torchs_own_with_groups_by_name(name: str) -> None:
    make, options = OPTIMIZERS[name]
    module = Layers()
    biases = {"weight_decay": 0.0}
    settings = OptimizerSettings(
        name=name,
        groups=(
            ParameterGroup(pattern="*.bias", options={**options, **biases}),
            ParameterGroup(pattern="*", options=options),
        ),
    )
    cluster, eager = both(module, rows, 3, (0, 1, 2), optimizer=settings)
    groups = [
        {"params": [one for key, one in module.named_parameters() if key.endswith(".bias")], **biases},
        {"params": [one for key, one in module.named_parameters() if not key.endswith(".bias")]},
    ]
    eager.optimizer = make(groups, lr=0.1, **options)
    for step in range(3):
        microbatches = [rows(3, step)] * 2
        cluster.step(microbatches, rates=(0.05, 0.05))
        eager.step(microbatches, rate=0.05)
    for key, expected in eager.states().items():
        assert torch.equal(cluster.states()[key], expected), key


@pytest.mark.parametrize("pattern", ["table.*", "head.*"])
@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 1, 0)])
def test_a_tied_weight_is_in_the_group_of_any_of_its_names(pattern: str, devices: Sequence[int]) -> None:
    """The module calls it after its table first, and the stages know it by one name alone."""
    settings = OptimizerSettings(name="sgd", groups=(ParameterGroup(pattern=pattern), ParameterGroup(pattern="*")))
    cluster, _ = both(Tied(), tokens, 3, devices, optimizer=settings)
    before = {name: one.clone() for name, one in cluster.states().items()}
    assert cluster.step([tokens(3, 1)] * 2, rates=(0.0, 0.1)).applied
    stayed = {name for name, one in cluster.states().items() if torch.equal(one, before[name])}
    assert stayed == before.keys() & {"table.weight", "head.weight"}
    assert stayed


def test_a_device_without_the_first_group_takes_the_rate_of_its_own() -> None:
    settings = OptimizerSettings(name="sgd", groups=(ParameterGroup(pattern="layers.0.*"), ParameterGroup(pattern="*")))
    cluster, _ = both(Layers(), rows, 3, (0, 1, 2), optimizer=settings)
    before = {name: one.clone() for name, one in cluster.states().items()}
    assert cluster.step([rows(3, 1)] * 2, rates=(0.0, 0.1)).applied
    stayed = {name for name, one in cluster.states().items() if torch.equal(one, before[name])}
    assert stayed == {"layers.0.weight", "layers.0.bias"}


def of_bfloat16(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    return tuple(one.bfloat16() for one in rows(count, seed))


@pytest.mark.parametrize(
    ("devices", "schedule"),
    [
        ((0, 1), PipelineSchedule.GPIPE),
        ((0, 1), PipelineSchedule.ZERO_BUBBLE),
        ((0, 0, 1), PipelineSchedule.ONE_F_ONE_B),
    ],
)
def test_masters_take_steps_and_sums_that_bfloat16_would_lose(
    devices: Sequence[int], schedule: PipelineSchedule
) -> None:
    """To the bit: gradients of bfloat16 add up in float32, over many microbatches, and so do steps."""
    module = Layers().bfloat16()
    settings = OptimizerSettings(name="sgd", master_weights=True)
    cluster, eager = both(module, of_bfloat16, len(devices), devices, optimizer=settings, schedule=schedule)
    masters = {name: one.float() for name, one in eager.states().items()}
    for step in range(3):
        microbatches = [of_bfloat16(3, 20 * step + one) for one in range(12)]
        cluster.step(microbatches, rate=1e-3, clip_norm=0.5)
        sums = {name: torch.zeros_like(one) for name, one in masters.items()}
        for microbatch in microbatches:
            loss = module(*microbatch)
            loss.backward(torch.full_like(loss, 1 / len(microbatches)))
            for name, parameter in module.named_parameters():
                assert parameter.grad is not None
                sums[name] += parameter.grad
            module.zero_grad()
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in sums.values()]))
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                masters[name] -= 1e-3 * (sums[name] * (0.5 / (norm + 1e-6)).clamp(max=1.0))
                parameter.copy_(masters[name])
    for name, expected in eager.states().items():
        assert torch.equal(cluster.states()[name], expected), name
    for interpreter in cluster.interpreters.values():
        for name, (stepping, weight) in interpreter.trained().items():
            assert torch.equal(stepping.kept(weight)["master"], masters[name]), name


def test_the_scale_of_the_loss_changes_nothing_but_its_overflow() -> None:
    cluster, eager = both(Layers(), rows, 2, (0, 1))
    before = {name: one.clone() for name, one in cluster.states().items()}
    x, y = rows(3, 1)
    overflown = cluster.step([(x, 1e6 * y)] * 2, loss_scale=2.0**127)
    assert (overflown.applied, overflown.failure) == (False, None)
    assert all(torch.equal(before[name], one) for name, one in cluster.states().items())
    cluster.step([rows(3, 1)] * 2, loss_scale=1024.0)
    eager.step([rows(3, 1)] * 2)
    for name, expected in eager.states().items():
        torch.testing.assert_close(cluster.states()[name], expected, rtol=1e-6, atol=1e-7)


def test_a_loss_that_is_no_number_changes_no_weight() -> None:
    cluster, eager = both(Layers(), rows, 3, (0, 1, 2))
    before = {name: one.clone() for name, one in cluster.states().items()}
    x, y = rows(3, 1)
    outcome = cluster.step([(x, y), (x * math.nan, y)])
    assert not outcome.applied
    assert outcome.failure is None
    assert math.isnan(float(outcome.outputs[1][0]))
    assert all(torch.equal(before[name], one) for name, one in cluster.states().items())
    assert_same_steps(cluster, eager, rows)


@pytest.mark.parametrize("schedule", ANYWHERE)
def test_a_microbatch_that_fails_fails_the_step_and_no_later_one(schedule: PipelineSchedule) -> None:
    cluster, eager = both(Tied(), tokens, 3, (0, 1, 2), schedule=schedule)
    eager.loss_of = lambda outputs: outputs[0]
    before = {name: one.clone() for name, one in cluster.states().items()}
    ids, targets = tokens(2, 1)
    for bad, stage in (((ids + 100, targets), 0), ((ids, targets + 100), 2)):
        failure = cluster.step([(ids, targets), bad, (ids, targets)]).failure
        assert failure is not None
        assert (failure.reason, failure.stage) == ("STAGE_FAILED", stage)
    assert all(torch.equal(before[name], one) for name, one in cluster.states().items())
    assert_same_steps(cluster, eager, tokens, tolerance=1e-6)
