"""Operators that run subgraphs: `cond` one of two on the same operands, `custom_function` one for each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Body = Callable[..., tuple[Any, ...]]


def run_cond(condition: torch.Tensor | bool, if_true: Body, if_false: Body, operands: Sequence[Any]) -> tuple[Any, ...]:
    """A tensor condition has one element."""
    return if_true(*operands) if bool(condition) else if_false(*operands)


def run_custom_function(
    forward: Body,
    backward: Body,
    operands: Sequence[Any],
    kept: Sequence[int],
    with_gradient: Sequence[int],
    differentiable: Sequence[bool],
) -> tuple[Any, ...]:
    """A torch.autograd.Function whose passes are programs.

    `forward` takes the operands and gives the function's results, as many as `differentiable` has, then what else
    `backward` reads of it; `backward` takes the operands at `kept`, these, and a gradient for each result, and gives
    one for each operand at `with_gradient`.
    """
    bodies = _Bodies(forward, backward, kept, with_gradient, differentiable)
    return tuple(_CustomFunction.apply(bodies, *operands))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Bodies:
    forward: Body
    backward: Body
    kept: Sequence[int]
    with_gradient: Sequence[int]
    differentiable: Sequence[bool]


class _CustomFunction(torch.autograd.Function):
    """Both bodies say in which element types they compute: where autocast was on, casts are calls of theirs."""

    @staticmethod
    def forward(ctx: Any, bodies: _Bodies, *operands: Any) -> tuple[Any, ...]:
        with torch._C._DisableAutocast():
            returned = bodies.forward(*operands)
        num_results = len(bodies.differentiable)
        for_backward = (*(operands[position] for position in bodies.kept), *returned[num_results:])
        ctx.save_for_backward(*(one for one in for_backward if isinstance(one, torch.Tensor)))
        ctx.numbers = [None if isinstance(one, torch.Tensor) else one for one in for_backward]
        ctx.bodies, ctx.num_operands = bodies, len(operands)
        results = returned[:num_results]
        pairs = zip(results, bodies.differentiable, strict=True)
        ctx.mark_non_differentiable(*(one for one, has_gradient in pairs if not has_gradient))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        tensors = iter(ctx.saved_tensors)
        for_backward = [next(tensors) if number is None else number for number in ctx.numbers]
        with torch._C._DisableAutocast():
            given = ctx.bodies.backward(*for_backward, *gradients)
        of_operands = dict(zip(ctx.bodies.with_gradient, given, strict=True))
        return None, *(of_operands.get(position) for position in range(ctx.num_operands))
