"""Stages that compute their activations again: to the bit the same training, with less held at once."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.partition.objective import Activations, PipelineSchedule
from stage_daemon.runtime.training.records import Step
from tests.stage_daemon.runtime.training.devices import Cluster, train_on_threads
from tests.stage_daemon.runtime.training.modules import WIDTH, Layers, Normed, Skips, Tied, rows, tokens
from tests.stage_daemon.runtime.training.test_step import SHAPES, cut_into


class Counted(nn.Module):
    """What the layers give depends on how often they have run, which a buffer counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        for layer in self.layers:
            x = torch.tanh(layer(x) + self.count)
        return functional.mse_loss(x, y)


class WritesItsInput(nn.Module):
    """A second forward pass would find what the first one wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = x[:, :1]
        first.mul_(2.0)
        return functional.mse_loss(self.layer(x), y)


def both_ways(
    module: nn.Module, make: Callable[[int, int], Any], devices: Sequence[int], schedule: PipelineSchedule
) -> list[Cluster]:
    """Activations kept, and computed again."""
    exported = export(module, make(4, 99), dynamic_shapes=SHAPES)
    return [
        train_on_threads(
            copy.deepcopy(module),
            make(4, 99),
            exported=exported,
            stage_of_node=cut_into(len(devices)),
            devices=devices,
            schedule=schedule,
            activations=activations,
        )
        for activations in (Activations.KEPT, Activations.RECOMPUTED)
    ]


def assert_the_same(module: nn.Module, make: Any, devices: Sequence[int], schedule: PipelineSchedule) -> None:
    plain, again = both_ways(module, make, devices, schedule)
    assert [stage.recomputes_activations for stage in again.plan.stages] == [True] * len(devices)
    for number in range(3):
        sizes = (3, 2, 4, 2, 3)
        outcomes = [
            one.step([make(size, 10 * number + index) for index, size in enumerate(sizes)], clip_norm=1.0)
            for one in (plain, again)
        ]
        losses = [[float(output[0]) for output in outcome.outputs.values()] for outcome in outcomes]
        assert losses[0] == losses[1]
        assert outcomes[0].gradient_norm == outcomes[1].gradient_norm
        assert all(outcome.applied for outcome in outcomes)
    for index, stage in plain.stages.items():
        assert stage.module is not None
        other = again.stages[index].module
        assert other is not None
        for name, tensor in stage.module.states().items():
            assert torch.equal(tensor, other.states()[name]), name


@pytest.mark.parametrize("schedule", [PipelineSchedule.GPIPE, PipelineSchedule.INTERLEAVED])
def test_what_is_computed_again_is_what_was_kept(schedule: PipelineSchedule) -> None:
    torch.manual_seed(0)
    assert_the_same(Skips(), rows, (0, 1, 0), schedule)


def test_dropout_draws_the_same_again_and_buffers_change_once() -> None:
    torch.manual_seed(0)
    assert_the_same(Normed(dropout=0.5), rows, (0, 1), PipelineSchedule.GPIPE)
    assert_the_same(Counted(), rows, (0,), PipelineSchedule.GPIPE)


def test_tied_weights_and_steps_of_another_size() -> None:
    torch.manual_seed(0)
    assert_the_same(Tied(), tokens, (0, 1, 2), PipelineSchedule.ONE_F_ONE_B)


def test_a_stage_that_writes_its_input_keeps_its_activations() -> None:
    torch.manual_seed(0)
    assert_the_same(WritesItsInput(), rows, (0,), PipelineSchedule.GPIPE)


def test_a_microbatch_that_fails_fails_the_step_and_no_later_one() -> None:
    torch.manual_seed(0)
    _, cluster = both_ways(Tied(), tokens, (0, 1, 2), PipelineSchedule.GPIPE)
    ids, targets = tokens(2, 1)
    failure = cluster.step([(ids, targets), (ids, targets + 100), (ids, targets)]).failure
    assert failure is not None
    assert failure.stage == 2
    assert cluster.step([(ids, targets)] * 3).applied


@dataclass(eq=False)
class Saved:
    tensor: torch.Tensor


@contextmanager
def saved_bytes() -> Iterator[Callable[[], int]]:
    """The most bytes that graphs of backward passes held at once, of this thread."""
    alive: weakref.WeakSet[Saved] = weakref.WeakSet()
    most = 0

    def pack(tensor: torch.Tensor) -> Saved:
        nonlocal most
        saved = Saved(tensor.detach())
        alive.add(saved)
        sizes = {one.tensor.untyped_storage().data_ptr(): one.tensor.untyped_storage().nbytes() for one in alive}
        most = max(most, sum(sizes.values()))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        yield lambda: most


def test_graphs_of_one_microbatch_are_held_at_once() -> None:
    """Of four that are under way on one device."""
    torch.manual_seed(0)
    most = {}
    for cluster in both_ways(Layers(8), lambda count, seed: rows(16 * count, seed), (0,), PipelineSchedule.GPIPE):
        step = Step(
            number=1,
            weights=(0.25,) * 4,
            learning_rates=(0.1,),
            microbatches=dict.fromkeys(range(4), lambda: rows(64, 1)),
        )
        with saved_bytes() as read:
            assert cluster.interpreters[cluster.first].run(step).applied
        most[cluster.plan.stages[0].recomputes_activations] = read()
    assert most[True] < 0.4 * most[False]
