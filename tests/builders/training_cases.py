"""Trainings drawn at random: a model, how it is cut, where its stages stand, its schedule, and uneven microbatches."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from examples import tiny_gpt
from planner.graph.alias import no_cut_groups
from planner.graph.ir import Graph
from planner.partition.objective import Activations, PipelineSchedule
from planner.plan.options import Routing
from tests.builders.case import Batch, Case
from tests.builders.exported import SMALL
from tests.builders.registry import FAMILIES
from tests.stage_daemon.runtime.training.modules import BATCH, Normed, Skips, rows

MAX_DEVICES = 4
NUM_STEPS = 5
_WHOLE = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED)
# In training mode their norms are over a pixel or two, and gradients hundreds of times as large as losses: after whole
# steps of that, rounding in the order of sums would be as large as anything.
_STEEP, _SMALL_NORM = ("resnet50",), 0.01
_IN_A_V = (PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.V_HALF)


def with_loss(model: nn.Module) -> nn.Module:
    """Takes what the model takes, by the same names; returns its loss, or the mean square of what it returns first."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            output = self.model(*args, **kwargs)
            if not isinstance(output, torch.Tensor):
                output = output[0] if isinstance(output, tuple) else next(iter(output.values()))
            return output.pow(2).mean() if output.dim() else output

    # Dynamic shapes speak of parameters by name.
    WithLoss.forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]
    return WithLoss()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTraining:
    """`devices` has each stage's. With `copies` there are as many devices again, each with what one of the others has.
    `microbatches` are planned for; steps have those of `num_of_step`."""

    seed: int
    family: str
    devices: tuple[int, ...]
    copies: bool
    schedule: PipelineSchedule
    routing: Routing
    activations: Activations
    microbatches: int
    num_of_step: tuple[int, ...]
    is_double: bool
    is_partly_frozen: bool
    draws_random: bool
    clip_norm: float | None

    def __str__(self) -> str:
        facts = {
            "copies": self.copies,
            "recomputed": self.activations is Activations.RECOMPUTED,
            "frozen parts": self.is_partly_frozen,
            "dropout": self.draws_random,
            "float64": self.is_double,
            "relay": self.routing is Routing.RELAY,
        }
        places = ",".join(map(str, self.devices))
        parts = [f"{self.seed}: {self.family} on {places}", self.schedule.value, f"{self.microbatches} microbatches"]
        return ", ".join([*parts, *(name for name, is_so in facts.items() if is_so)])

    @property
    def num_devices(self) -> int:
        return len(set(self.devices))

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        return tuple((device + self.num_devices,) if self.copies else () for device in self.devices)

    def case(self) -> Case:
        """The module with its loss, as it is trained, and the batches that microbatches are drawn from."""
        case = CASES[self.family](self.draws_random)
        module = with_loss(case.module).train(self.draws_random)
        if self.is_partly_frozen:
            named = list(module.parameters())
            for parameter in named[: len(named) // 2]:
                parameter.requires_grad_(False)
        varied = replace(case, module=module)
        return _doubled(varied) if self.is_double else varied

    def stage_of_node(self, graph: Graph) -> list[int]:
        """Cut anywhere between nodes that need not stay together."""
        together = {index for group in no_cut_groups(graph) for index in range(min(group) + 1, max(group) + 1)}
        allowed = [index for index in range(1, len(graph.nodes)) if index not in together]
        cuts = random.Random(self.seed).sample(allowed, len(self.devices) - 1)
        return [sum(cut <= index for cut in cuts) for index in range(len(graph.nodes))]

    def steps(self) -> list[list[Batch]]:
        """The microbatches of each step: uneven, and of changing number."""
        case, chosen = self.case(), random.Random(self.seed)
        batches = (case.example, *case.other_batches)
        return [[chosen.choice(batches) for _ in range(count)] for count in self.num_of_step]


def drawn_training(seed: int) -> DrawnTraining:
    chosen = random.Random(seed)
    family = list(CASES)[seed % len(CASES)]
    schedule = chosen.choice(list(PipelineSchedule))
    copies = schedule not in _IN_A_V and chosen.random() < 0.3
    most = MAX_DEVICES // 2 if copies else MAX_DEVICES
    if schedule in _IN_A_V:
        there = range(chosen.randint(1, 3))
        devices = (*there, *reversed(there))
    else:
        devices = _in_order_of_use([chosen.randrange(most) for _ in range(chosen.randint(1, 7))])
    microbatches = chosen.randint(1, 6)
    drawn = DrawnTraining(
        seed=seed,
        family=family,
        devices=devices,
        copies=copies,
        schedule=schedule,
        routing=chosen.choice(list(Routing)),
        activations=chosen.choice((Activations.KEPT, Activations.RECOMPUTED))
        if schedule in _WHOLE
        else Activations.KEPT,
        microbatches=microbatches,
        num_of_step=tuple(chosen.randint(1, 2 * microbatches) for _ in range(NUM_STEPS)),
        is_double=chosen.random() < 0.5,
        is_partly_frozen=chosen.random() < 0.3,
        draws_random=chosen.random() < 0.3,
        clip_norm=chosen.choice((None, 0.5)),
    )
    return replace(drawn, clip_norm=_SMALL_NORM) if family in _STEEP and drawn.draws_random else drawn


def _in_order_of_use(devices: Sequence[int]) -> tuple[int, ...]:
    """The same map, the first device that is used being 0, the next other one 1."""
    names = {device: name for name, device in enumerate(dict.fromkeys(devices))}
    return tuple(names[device] for device in devices)


def _doubled(case: Case) -> Case:
    def double(leaf: Any) -> Any:
        if isinstance(leaf, list | tuple):
            return type(leaf)(map(double, leaf))
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    def doubled(batch: Batch) -> Batch:
        return Batch(args=double(batch.args), kwargs={name: double(leaf) for name, leaf in batch.kwargs.items()})

    example = doubled(case.example)
    return replace(
        case,
        module=case.module.double(),
        args=example.args,
        kwargs=example.kwargs,
        other_batches=tuple(map(doubled, case.other_batches)),
    )


def _registered(family: str) -> Callable[[bool], Case]:
    return lambda train: FAMILIES[family](train=train, **{**SMALL.get(family, {}), **_MORE.get(family, {})})


# Layers enough for several stages.
_MORE: Mapping[str, Mapping[str, int]] = {name: {"layers": 2} for name in ("bert", "gpt2", "llama", "t5", "vit")}


def _of_rows(make: Callable[[], nn.Module]) -> Callable[[bool], Case]:
    def case(train: bool) -> Case:
        torch.manual_seed(0)
        others = tuple(Batch(args=rows(count, count)) for count in (2, 3, 7))
        return Case(module=make(), args=rows(4, 0), dynamic_shapes=({0: BATCH}, {0: BATCH}), other_batches=others)

    return case


def _tiny_gpt(train: bool) -> Case:
    module, args, _, shapes = tiny_gpt.build()
    ids, targets = next(tiny_gpt.batches())
    others = tuple(Batch(args=(ids[:count], targets[:count])) for count in (1, 2, 3))
    return Case(module=module, args=args, dynamic_shapes=shapes, other_batches=others)


# What is quick to build comes first.
CASES: Mapping[str, Callable[[bool], Case]] = {
    "skips": _of_rows(Skips),
    "norms": _of_rows(lambda: Normed(dropout=0.5)),
    "tiny_gpt": _tiny_gpt,
    **{family: _registered(family) for family in FAMILIES},
}
