"""Stages with copies: each takes its share of the microbatches, and their sums are those of one process."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.training.streams import serialized
from planner.errors import StepNotApplied
from planner.partition.objective import Activations, PipelineSchedule
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.training.records import OptimizerSettings, ParameterGroup
from tests.stage_daemon.runtime.training.devices import Cluster, train_on_threads
from tests.stage_daemon.runtime.training.modules import WIDTH, Layers, Normed, Skips, Tied, rows, tokens
from tests.stage_daemon.runtime.training.test_checkpoints import MODULES, exported, saved_by, steps
from tests.stage_daemon.runtime.training.test_step import ANYWHERE, assert_same_steps, both, cut_into
from tests.stage_daemon.runtime.training.trainers import SavedHere, trainer_on

# In float64, so that another order of sums stays far below any error.
TOLERANCE = 1e-12
DECAYING = OptimizerSettings(name="adamw", groups=(ParameterGroup(pattern="*", options={"weight_decay": 0.1}),))
# Devices of the stages, and of their further copies.
PLACES: tuple[tuple[Sequence[int], Sequence[Sequence[int]]], ...] = (
    ((0,), ((1, 2),)),
    ((0, 1), ((2,), ())),
    ((0, 1), ((), (2, 3))),
    ((0, 1), ((2,), (3,))),
    ((0, 1, 2), ((), (3, 4), ())),
    ((0, 0), ((1,), (1,))),
    ((0, 1, 0), ((2,), (), (2,))),
)


def double_rows(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    return tuple(one.double() for one in rows(count, seed))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ANYWHERE)
@pytest.mark.parametrize(("devices", "replicas"), PLACES)
def test_copies_add_up_to_one_process(
    schedule: PipelineSchedule, devices: Sequence[int], replicas: Sequence[Sequence[int]]
) -> None:
    """Five microbatches where four are planned: the second round begins with the first copies again."""
    cluster, eager = both(Layers().double(), double_rows, len(devices), devices, replicas=replicas, schedule=schedule)
    assert_same_steps(cluster, eager, double_rows, num_steps=2, tolerance=TOLERANCE, clip_norm=0.05)
    assert_copies_are_one(cluster)


def assert_copies_are_one(cluster: Cluster) -> None:
    for stage in cluster.plan.stages:
        first, *others = (_held(cluster, device_id, stage.index) for device_id in stage.device_ids)
        for other in others:
            assert first.keys() == other.keys()
            assert all(torch.equal(first[name], other[name]) for name in first)


def _held(cluster: Cluster, device_id: str, stage: int) -> dict[str, torch.Tensor]:
    module = cluster.told[device_id].around.stages[stage].module
    assert module is not None
    return {name: one for name, one in module.states().items() if one.requires_grad}


@pytest.mark.parametrize("replicas", [((3,), (), ()), ((), (), (3, 4)), ((3,), (), (4,))])
def test_values_read_by_copies_of_several_stages(replicas: Sequence[Sequence[int]]) -> None:
    cluster, eager = both(Skips().double(), double_rows, 3, (0, 1, 2), replicas=replicas)
    assert_same_steps(cluster, eager, double_rows, num_steps=2, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("devices", "replicas"),
    [
        ((0, 1, 2), ((3,), (), ())),
        ((0, 1, 2), ((3,), (), (4, 5))),
        # The table and the head are one parameter on both devices.
        ((0, 0, 1), ((2,), (2,), ())),
        ((0, 0, 1), ((2,), (), ())),
    ],
)
def test_ties_over_copies_count_each_copy_once(devices: Sequence[int], replicas: Sequence[Sequence[int]]) -> None:
    cluster, eager = both(Tied().double(), tokens, 3, devices, replicas=replicas)
    eager.loss_of = lambda outputs: outputs[0]
    assert_same_steps(cluster, eager, tokens, num_steps=2, tolerance=TOLERANCE, clip_norm=0.5)


@pytest.mark.parametrize(
    ("module", "make", "devices", "replicas"),
    [(Layers, rows, (0, 1), ((2,), ())), (Tied, tokens, (0, 1, 2), ((), (), ()))],
    ids=["copies", "tied"],
)
def test_masters_step_by_one_sum_on_all_devices(
    module: type[nn.Module], make: Any, devices: Sequence[int], replicas: Sequence[Sequence[int]]
) -> None:
    """Which is rounded to the weight's own precision on its way, and no more than that."""

    def of_bfloat16(count: int, seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(one.bfloat16() if one.is_floating_point() else one for one in make(count, seed))

    settings = OptimizerSettings(name="sgd", master_weights=True)
    torch.manual_seed(0)
    trained = module().bfloat16()
    states = {}
    for places, copies in ((devices, replicas), ((0,), ((),))):
        cluster = train_on_threads(
            copy.deepcopy(trained),
            of_bfloat16(4, 99),
            stage_of_node=cut_into(len(places)),
            devices=places,
            replicas=copies,
            optimizer=settings,
            loss="0" if module is Tied else "output",
            microbatches=16,
        )
        before = {name: one.float() for name, one in cluster.states().items()}
        cluster.step([of_bfloat16(4, one) for one in range(16)], rate=1e3)
        assert_copies_are_one(cluster)
        states[places] = {name: before[name] - one.float() for name, one in cluster.states().items()}
    for name, step in states[(0,)].items():
        largest = float(step.abs().max())
        assert largest > 0
        assert float((states[devices][name] - step).abs().max()) <= 2**-6 * largest


def test_copies_without_a_microbatch_step_with_the_others() -> None:
    cluster, eager = both(Layers().double(), double_rows, 2, (0, 1), replicas=((2, 3), ()))
    assert_same_steps(cluster, eager, double_rows, sizes=(4,), num_steps=2, tolerance=TOLERANCE)
    assert_copies_are_one(cluster)


class Idle(nn.Module):
    """A layer that no loss depends on, though it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return functional.mse_loss(self.layer(x), y), self.idle(x)


def test_what_no_copy_has_a_gradient_for_is_not_stepped() -> None:
    """A gradient of zeros would let the optimizer's weight decay at it."""
    module = Idle().double()
    before = module.idle.weight.detach().clone()
    cluster = train_on_threads(
        copy.deepcopy(module),
        double_rows(4, 99),
        stage_of_node=cut_into(1),
        devices=(0,),
        replicas=((1,),),
        optimizer=DECAYING,
        loss="0",
    )
    outcome = cluster.step([double_rows(4, one) for one in range(4)])
    assert outcome.applied
    assert torch.equal(cluster.states()["idle.weight"], before)
    assert not torch.equal(cluster.states()["layer.weight"], module.layer.weight)


def test_computed_again_and_with_dropout_it_is_the_same_step() -> None:
    """What is drawn depends on the microbatch, whichever copy runs it; batch norms' statistics are each copy's own."""
    torch.manual_seed(0)
    module = Normed(dropout=0.5).double()
    losses = []
    for replicas, activations in (
        (((), ()), Activations.KEPT),
        (((2,), ()), Activations.RECOMPUTED),
        (((2,), (3, 4)), Activations.KEPT),
    ):
        cluster = train_on_threads(
            copy.deepcopy(module),
            double_rows(4, 99),
            stage_of_node=cut_into(2),
            devices=(0, 1),
            replicas=replicas,
            activations=activations,
        )
        outcomes = [cluster.step([double_rows(4, 10 * step + one) for one in range(4)]) for step in range(3)]
        losses.append([float(output[0]) for outcome in outcomes for output in outcome.outputs.values()])
    assert losses[1] == pytest.approx(losses[0], rel=TOLERANCE)
    assert losses[2] == pytest.approx(losses[0], rel=TOLERANCE)


def test_a_loss_of_one_copy_that_is_no_number_stops_all() -> None:
    cluster, eager = both(Layers().double(), double_rows, 2, (0, 1), replicas=((), (2,)))
    before = {name: one.clone() for name, one in cluster.states().items()}
    x, y = double_rows(3, 1)
    for bad in range(3):
        outcome = cluster.step([(x * math.nan if one == bad else x, y) for one in range(3)])
        assert (outcome.applied, outcome.failure) == (False, None)
    assert all(torch.equal(before[name], one) for name, one in cluster.states().items())
    assert_same_steps(cluster, eager, double_rows, num_steps=1, tolerance=TOLERANCE)


def test_a_microbatch_that_one_copy_cannot_run_fails_the_step_and_no_later_one() -> None:
    cluster, eager = both(Tied().double(), tokens, 3, (0, 1, 2), replicas=((3,), (), (4,)))
    eager.loss_of = lambda outputs: outputs[0]
    before = {name: one.clone() for name, one in cluster.states().items()}
    ids, targets = tokens(2, 1)
    for bad, stage, device in (((ids + 100, targets), 0, "node3/cpu"), ((ids, targets + 100), 2, "node4/cpu")):
        failure = cluster.step([(ids, targets), bad, (ids, targets)]).failure
        assert failure is not None
        assert (failure.stage, failure.device_id) == (stage, device)
    assert all(torch.equal(before[name], one) for name, one in cluster.states().items())
    assert_same_steps(cluster, eager, tokens, num_steps=1, tolerance=TOLERANCE)


def cluster_of(name: str, devices: Sequence[int], replicas: Sequence[Sequence[int]]) -> Cluster:
    program, module = exported(name)
    return train_on_threads(
        module,
        MODULES[name][1](4, 99),
        stage_of_node=cut_into(len(devices)),
        devices=devices,
        replicas=replicas,
        exported=program,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers", "tied"])
def test_a_checkpoint_goes_on_on_other_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written once, by the first of the copies, and read by each that needs it."""
    saved = SavedHere()
    plans: list[Any] = [((0, 1), ((2,), ())), ((0,), ((1, 2),)), ((0, 1, 2), ()), ((0, 1), ((), (2, 3)))]
    first, _ = trainer_on(cluster_of(name, *plans[0]), "adamw:lr=0.01", monkeypatch, saved=saved)
    steps(first, name, range(2))
    checkpoint = saved_by(first, saved)
    assert len(checkpoint) == len(saved.find_checkpoint("run").tensors)
    weights = {key: one.clone() for key, one in first.state_dict().items()}
    expected = steps(first, name, (7, 8))
    for plan in plans[1:]:
        second, streams = trainer_on(cluster_of(name, *plan), "adamw:lr=0.01", monkeypatch, saved=saved, seed="other")
        second.load("run")
        states = second.state_dict()
        assert states.keys() == weights.keys()
        assert all(torch.equal(states[key], weights[key]) for key in weights)
        for device_id, device in streams.devices.items():
            own_states = device._states.select((key for key, _ in device._states.read()), device.interpreter)
            assert streams.blobs[device_id].read_bytes <= sum(tensor.nbytes for tensor in own_states.values())
        again = steps(second, name, (7, 8))
        assert again == [pytest.approx(losses, rel=1e-5) for losses in expected]


def test_results_come_in_the_order_of_the_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_on(cluster_of("tied", (0, 1), ((2, 5), (3, 4))), "sgd:lr=0.0", monkeypatch)
    alone, _ = trainer_on(cluster_of("tied", (0, 1), ()), "sgd:lr=0.0", monkeypatch)
    batches = [tokens(size, size) for size in (3, 1, 2, 4, 2, 3, 1)]
    outcome, expected = trainer.step_microbatches(batches), alone.step_microbatches(batches)
    assert outcome.losses == expected.losses
    assert all(torch.equal(one[1], other[1]) for one, other in zip(outcome.outputs, expected.outputs, strict=True))


def test_inputs_of_a_microbatch_that_lacks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, streams = trainer_on(cluster_of("layers", (0, 1), ((2,), ())), "sgd:lr=0.1", monkeypatch)
    ask = streams.ask

    def without_the_last(requests: Any) -> Any:
        asked = {key: stage_daemon_pb2.TrainRequest.FromString(serialized(one)) for key, one in requests.items()}
        for request in asked.values():
            if request.step.microbatches:
                del request.step.microbatches[-1]
        return ask(asked)

    monkeypatch.setattr(streams, "ask", without_the_last)
    with pytest.raises(StepNotApplied, match=r"brings 0 here, needs 0, 2|brings 1 here, needs 1, 3"):
        trainer.step(*rows(8, 1))
