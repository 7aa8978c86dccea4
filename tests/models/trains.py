"""Trains an architecture in stages beside the module itself, on the mean square of what it returns."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from planner.client.export import export
from planner.client.export.exported_model import ExportedModel
from planner.client.pytree import flatten_inputs
from tests.builders.cuts import even_cuts
from tests.models.architectures import Inputs
from tests.stage_daemon.runtime.training.devices import train_on_threads
from tests.stage_daemon.runtime.training.eager import Eager
from tests.stage_daemon.runtime.training.unsplit import RATE, Trained, difference

STEPS = 2
CLIP_NORM = 1.0
SHARES = (0.5, 0.5)
LIMIT = 1e-6


def trains_as(module: nn.Module, example: Inputs) -> str:
    """What its losses, gradient norms and weights after two steps equal, within rounding: "eager", or "one stage" where
    the module draws random numbers, or torch.export makes another program of it. Dropout is off.

    Raises UnsupportedModule where it cannot be exported in training, AssertionError where it equals neither.
    """
    with_loss = _WithLoss(_without_dropout(module)).train()
    eager = copy.deepcopy(with_loss)
    batches = (example, {name: tensor.flip(0) for name, tensor in example.items()})
    exported = export(with_loss, (), example, compare=False)
    trained = _train(with_loss, exported, batches, even_cuts(exported.graph, max_stages=3))
    if difference(trained, _train_eagerly(eager, batches)) <= LIMIT:
        return "eager"
    apart = difference(trained, _train(with_loss, exported, batches, [0] * len(exported.graph.nodes)))
    assert apart <= LIMIT, f"its training in stages is off by {apart:.1e} from that in one"
    return "one stage"


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.__signature__ = inspect.signature(model.forward)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        leaves = pytree.tree_leaves(self.model(**inputs))
        floating = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        return torch.stack([leaf.float().square().mean() for leaf in floating]).sum()


class _Called(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.module(**inputs)
        return loss


def _without_dropout(module: nn.Module) -> nn.Module:
    """transformers names every probability of leaving something out with "drop"."""
    for part in module.modules():
        for owner in (part, getattr(part, "config", None)):
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                if isinstance(value, float) and "drop" in name:
                    setattr(owner, name, 0.0)
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        if isinstance(part, nn.RNNBase):
            part.dropout = 0.0
        if hasattr(getattr(part, "config", None), "apply_spec_augment"):
            part.config.apply_spec_augment = False
    return module


def _train(
    module: nn.Module, exported: ExportedModel, batches: Sequence[Inputs], stage_of_node: Sequence[int]
) -> Trained:
    cluster = train_on_threads(
        copy.deepcopy(module),
        (),
        exported=exported,
        stage_of_node=lambda _: stage_of_node,
        devices=range(max(stage_of_node) + 1),
        microbatches=len(batches),
    )
    losses, norms = [], []
    for _ in range(STEPS):
        leaves = [flatten_inputs(cluster.graph, (), batch) for batch in batches]
        outcome = cluster.step(leaves, SHARES, rate=RATE, clip_norm=CLIP_NORM)
        assert outcome.applied, outcome.failure
        losses.append([float(output[0]) for output in outcome.outputs.values()])
        norms.append(outcome.gradient_norm)
    states = cluster.states()
    named = {name: one for name, one in module.named_parameters(remove_duplicate=False) if one.requires_grad}
    reached = {id(named[name]) for name in states}
    unread = {name: one.detach() for name, one in named.items() if id(one) not in reached}
    return Trained(losses=losses, norms=norms, states=states | unread, clip_norm=CLIP_NORM)


def _train_eagerly(module: nn.Module, batches: Sequence[Inputs]) -> Trained:
    eager = Eager(_Called(module), torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9))
    steps = [eager.step([(batch,) for batch in batches], SHARES, rate=RATE, clip_norm=CLIP_NORM) for _ in range(STEPS)]
    named: dict[str, Any] = dict(module.named_parameters(remove_duplicate=False))
    return Trained(
        losses=[losses for losses, _ in steps],
        norms=[norm for _, norm in steps],
        states={name: one.detach() for name, one in named.items() if one.requires_grad},
        clip_norm=CLIP_NORM,
    )
