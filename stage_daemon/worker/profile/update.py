"""What ends a training step on a device: the norms of all gradients, and a step of the optimizer.

Both are a few calls for each weight, and so take longer than its bytes say where weights are small. By what steps
themselves run, after a microbatch has gone forward and back, as in a step. The optimizer is SGD: others make more calls
and read what they keep besides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.runtime.training.optimizers import StageOptimizer
from stage_daemon.runtime.training.records import OptimizerSettings
from stage_daemon.runtime.training.weights import Weight, gradient_norms
from stage_daemon.worker.profile.clock import Effort, synchronize
from stage_daemon.worker.profile.rehearsal import MOST_SECONDS, Marks, Program, marks_on, typical

_SGD = OptimizerSettings(name="sgd")
# It changes no weight, and does all that another rate does.
_LEARNING_RATES = (0.0,)
_MOST_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSeconds:
    """Of all trained states of a graph."""

    norms: float
    optimizer: float


def rehearse_update(
    graph: pb.Graph, program: Program, device: torch.device, effort: Effort, on_round: Callable[[], None]
) -> UpdateSeconds:
    """`on_round` is called after each step."""
    weights = _weights(graph, program)
    optimizers = [StageOptimizer(_SGD, distinct) for distinct in _without_repeats(weights)]
    marks = marks_on(device)
    rounds: list[list[float]] = []
    until = time.monotonic() + MOST_SECONDS
    # The first to warm up, and one that counts however long they take.
    while len(rounds) <= min(effort.repetitions, _MOST_ROUNDS) and (len(rounds) <= 1 or time.monotonic() < until):
        for weight in weights:
            weight.parameter.grad = None
        program.train()
        rounds.append(_seconds_of_update(weights, optimizers, marks, device))
        on_round()
    norms, optimizer = (typical(seconds) for seconds in zip(*rounds[1:], strict=True))
    return UpdateSeconds(norms=norms, optimizer=optimizer)


def _seconds_of_update(
    weights: Sequence[Weight], optimizers: Sequence[StageOptimizer], marks: Marks, device: torch.device
) -> list[float]:
    synchronize(device)
    marks.mark()
    gradient_norms(weights)
    marks.mark()
    for optimizer in optimizers:
        optimizer.step(_LEARNING_RATES, None)
    marks.mark()
    return marks.seconds()


def _weights(graph: pb.Graph, program: Program) -> list[Weight]:
    """Each trained state once, tied ones too. Several of one shape may be one tensor."""
    states = program.module.states()
    ties: set[int] = set()
    weights = []
    for position, state in enumerate(graph.states):
        parameter = states.get(state.name)
        if not isinstance(parameter, torch.nn.Parameter) or not parameter.requires_grad or state.tie_group in ties:
            continue
        ties |= {state.tie_group} - {0}
        weights.append(
            Weight(stage=0, names=(state.name,), module_names=(state.name,), position=position, parameter=parameter)
        )
    return weights


def _without_repeats(weights: Sequence[Weight]) -> Iterator[list[Weight]]:
    """An optimizer takes a tensor once."""
    left = list(weights)
    while left:
        first = list({id(weight.parameter): weight for weight in reversed(left)}.values())
        yield first
        chosen = set(map(id, first))
        left = [weight for weight in left if id(weight) not in chosen]
