"""A drawn training as the unsplit step does it, and over devices that are threads of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from planner.client.pytree import flatten_inputs
from planner.partition.objective import Activations, PipelineSchedule
from planner.plan.options import Routing
from tests.builders.case import Batch
from tests.builders.training_cases import DrawnTraining
from tests.stage_daemon.runtime.training.devices import Cluster, train_on_threads
from tests.stage_daemon.runtime.training.eager import Eager

RATE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """`losses` by step and microbatch; `norms` before they are clipped; `states` as they are after the last step."""

    losses: list[list[float]]
    norms: list[float]
    states: dict[str, torch.Tensor]
    clip_norm: float | None = None

    @property
    def farthest(self) -> float:
        """How far a step moves all weights together."""
        largest = max(self.norms)
        return RATE * (largest if self.clip_norm is None else min(largest, self.clip_norm))


def unsplit(drawn: DrawnTraining) -> Trained:
    """torch's own step. What draws random numbers is one stage on one device, since torch draws others."""
    if not drawn.draws_random:
        return _eager(drawn)
    return on_threads(
        replace(
            drawn,
            devices=(0,),
            copies=False,
            schedule=PipelineSchedule.GPIPE,
            routing=Routing.DIRECT,
            activations=Activations.KEPT,
        )
    )


def _eager(drawn: DrawnTraining) -> Trained:
    case = drawn.case()
    eager = Eager(_Called(case.module), torch.optim.SGD(case.module.parameters(), lr=RATE, momentum=0.9))
    losses, norms = [], []
    for batches in drawn.steps():
        outcome = eager.step([(one,) for one in batches], shares(batches), rate=RATE, clip_norm=drawn.clip_norm)
        losses.append(outcome[0])
        norms.append(outcome[1])
    named = case.module.named_parameters(remove_duplicate=False)
    states = {name: one.detach() for name, one in named if one.requires_grad}
    return Trained(losses=losses, norms=norms, states=states, clip_norm=drawn.clip_norm)


def cluster_of(drawn: DrawnTraining) -> Cluster:
    case = drawn.case()
    return train_on_threads(
        case.module,
        case.args,
        kwargs=case.kwargs,
        dynamic_shapes=case.dynamic_shapes,
        stage_of_node=drawn.stage_of_node,
        devices=drawn.devices,
        replicas=drawn.replicas,
        schedule=drawn.schedule,
        microbatches=drawn.microbatches,
        routing=drawn.routing,
        activations=drawn.activations,
    )


def on_threads(drawn: DrawnTraining) -> Trained:
    cluster = cluster_of(drawn)
    losses, norms = [], []
    for batches in drawn.steps():
        leaves = [flatten_inputs(cluster.graph, one.args, one.kwargs) for one in batches]
        outcome = cluster.step(leaves, shares(batches), rate=RATE, clip_norm=drawn.clip_norm)
        assert outcome.applied
        losses.append([float(output[0]) for output in outcome.outputs.values()])
        norms.append(outcome.gradient_norm)
    states = cluster.states()
    named = dict(drawn.case().module.named_parameters(remove_duplicate=False))
    identities = {id(named[name]) for name in states}
    # As a trainer's state_dict has it: what no stage reads is as it came.
    unread = {name: one.detach() for name, one in named.items() if one.requires_grad and id(one) not in identities}
    return Trained(losses=losses, norms=norms, states=states | unread, clip_norm=drawn.clip_norm)


def shares(batches: Sequence[Batch]) -> list[float]:
    """Of the rows of all."""
    counts = [_num_rows(batch) for batch in batches]
    return [count / sum(counts) for count in counts]


def _num_rows(batch: Batch) -> int:
    leaves = (*batch.args, *batch.kwargs.values())
    return next(len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))


class _Called(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.module(*batch.args, **batch.kwargs)
        return loss


def difference(trained: Trained, expected: Trained) -> float:
    """The largest: of losses and norms relative to themselves, of a weight relative to the largest of its tensor, or to
    how far a step moves all weights where that is more: the bias of keys begins at 0, and its gradient is rounding.
    """
    assert [len(step) for step in trained.losses] == [len(step) for step in expected.losses]
    pairs = list(zip(_flat(trained), _flat(expected), strict=True))
    scalars = [abs(one - other) / abs(other) for one, other in pairs if one != other]
    common = {name: state for name, state in expected.states.items() if name in trained.states}
    assert {state.data_ptr() for state in common.values()} == {state.data_ptr() for state in expected.states.values()}
    weights = [
        float((trained.states[name] - state).abs().max()) / max(float(state.abs().max()), expected.farthest)
        for name, state in common.items()
        if not torch.equal(trained.states[name], state)
    ]
    return max((*scalars, *weights), default=0.0)


def _flat(trained: Trained) -> list[float]:
    return [*(loss for step in trained.losses for loss in step), *trained.norms]
