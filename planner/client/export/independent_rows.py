"""Whether a module can be trained by microbatches: whether a batch's gradients are those of its rows together.

A training cuts each batch along the first dimension. Where that is time and not the batch, as torch's recurrent and
attention layers have it by default, parts of a sequence no longer see each other; a loss that compares rows, or is the
root of a mean, is another one too. The step goes through all the same, and nothing says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from planner.client.export.compare import farthest_gradient
from planner.client.export.example_runs import WITHOUT_COMPARISON, Outputs, Runs
from planner.client.pytree import flatten_inputs
from planner.client.training.counted import GraphLoss
from planner.client.training.cutting import cut, loss_output, num_rows
from planner.graph.ir import Graph


def dependence_of_rows(runs: Runs, graph: Graph) -> str:
    """What to say where the gradients of the example's loss are not those of its halves; nothing where they are, or
    where that cannot be told.

    Run in eval mode, so that neither dropout nor a batch norm makes a difference.
    """
    if not runs.have_gradients:
        return ""
    try:
        _, loss_id = loss_output(graph, None)
        leaves = flatten_inputs(graph, runs.args, runs.kwargs)
        halves = cut(graph, leaves, 2)
        shares = _shares(graph, loss_id, halves)
        if len(halves) < 2 or shares is None:
            return ""
        with _in_eval_mode(runs.module):
            whole = _gradients(runs, leaves, leaves)
            joined = _joined(shares, [_gradients(runs, leaves, half) for half in halves])
    except Exception:
        # What runs only as it was captured cannot be told anything of.
        return ""
    farthest = farthest_gradient(whole, joined, runs.rounding)
    if farthest is None:
        return ""
    name, difference, largest = farthest
    return (
        f"{runs.name}: a training cuts batches along their first dimension, and the example's loss has other gradients"
        f" than its halves have together: that of {name} is off by {difference:.2g}, its largest value being"
        f" {largest:.2g}. Where that dimension is not the batch, make it so (batch_first=True); where the loss is a"
        " mean over something else than rows, give client.train a reduction; where it compares rows, as contrastive"
        f" ones do, train with one microbatch. {WITHOUT_COMPARISON}"
    )


def _shares(graph: Graph, loss_id: int, halves: Sequence[Sequence[object]]) -> list[float] | None:
    """What the loss of each half counts in a training that is told nothing else; None where that would not know."""
    loss = GraphLoss(graph, loss_id)
    if loss.is_sum():
        return [1.0] * len(halves)
    counted = loss.counted()
    if counted is None and loss.is_over_some_elements():
        return None
    if counted is not None and counted.weights:
        return None
    counts = [float(num_rows(graph, half)) if counted is None else counted.count(half) for half in halves]
    return [count / math.fsum(counts) for count in counts] if all(counts) else None


def _gradients(runs: Runs, leaves: Sequence[Any], instead: Sequence[Any]) -> Outputs:
    """Of the module's loss on other tensors in the places of the example's."""
    by_id = {id(leaf): other for leaf, other in zip(leaves, instead, strict=True)}
    args, kwargs = pytree.tree_map(lambda leaf: by_id.get(id(leaf), leaf), (runs.args, dict(runs.kwargs)))
    return runs.gradients_on(args, kwargs, _loss)


def _loss(outputs: Sequence[Any]) -> torch.Tensor:
    """The only floating scalar, as of the graph. Raises ValueError where there are more in eval mode, or fewer."""
    [loss] = [one for one in outputs if isinstance(one, torch.Tensor) and one.is_floating_point() and not one.dim()]
    return loss


def _joined(shares: Sequence[float], parts: Sequence[Outputs]) -> Outputs:
    """None stands for no gradient."""
    joined = []
    for (name, _), *of_halves in zip(parts[0], *parts, strict=True):
        present = [share * one for share, (_, one) in zip(shares, of_halves, strict=True) if one is not None]
        joined.append((name, torch.stack(present).sum(0) if present else None))
    return joined


@contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    modes = {part: part.training for part in module.modules()}
    try:
        for part in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
