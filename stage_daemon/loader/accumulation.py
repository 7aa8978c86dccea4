"""A program whose linear layers add their weights' gradients up within the product that computes them.

Autograd writes each microbatch's gradient to memory of its own and then adds it to the sum so far. For a large weight
and few rows both passes over memory take as long as a good part of the product. The product can add to the sum by
itself; its bits are the same where it sums over all rows before it adds, which is tried out for each shape, on made-up
numbers, and where it is otherwise autograd goes on as before.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch
from torch import fx, nn

# Of a weight. Smaller ones stay in a cache between the product and the sum, and calling Python costs as much as is won
# (64 rows: 90 of 446 µs are won at 1 MiB, 20 of 224 at half of that).
LEAST_BYTES = 1 << 20
# A trial takes the memory of two more gradients, and of rows of inputs and outputs, together of at most this size.
MOST_BYTES = 1 << 26
# Of shapes; microbatches of ever new lengths would be trials without end.
_MOST_TRIALS = 64
_LINEAR = torch.ops.aten.linear.default


def accumulating_program(program: fx.GraphModule) -> fx.GraphModule:
    """A copy that reads the same states; they have to be in their places already.

    Each of its backward passes has to be for all weights at once: a gradient is added when its layer's is asked for.
    """
    copied = fx.Graph()
    copied.output(copied.graph_copy(program.graph, {}))
    readers = _readers(program, copied)
    for node in copied.nodes:
        if node.target is _LINEAR and not node.kwargs and _is_worth_it(program, node, readers):
            node.target = linear
    return fx.GraphModule(program, copied, "AccumulatingProgram")


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As aten.linear, forward and backward. No other node of the program may read the weight."""
    if not _may_add_in_place(inputs, weight, bias):
        plain: torch.Tensor = _LINEAR(inputs, weight, bias)
        return plain
    outputs: torch.Tensor = _Linear.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return outputs


def _readers(program: fx.GraphModule, graph: fx.Graph) -> Counter[int]:
    """How many nodes read each state, tied ones together, by the identity of its tensor."""
    readers: Counter[int] = Counter()
    for node in graph.nodes:
        if node.op == "get_attr":
            readers[id(getattr(program, str(node.target)))] += len(node.users)
    return readers


def _is_worth_it(program: fx.GraphModule, layer: fx.Node, readers: Counter[int]) -> bool:
    node = layer.args[1]
    if not isinstance(node, fx.Node) or node.op != "get_attr" or layer.args.count(node) > 1:
        return False
    weight = getattr(program, str(node.target))
    return (
        isinstance(weight, nn.Parameter)
        and weight.requires_grad
        # A gradient of complex numbers is a product with their conjugates.
        and weight.is_floating_point()
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and LEAST_BYTES <= weight.nbytes <= MOST_BYTES
        # Gradients of several readers are summed before they are added to what was there.
        and readers[id(weight)] == 1
    )


def _may_add_in_place(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return (
        torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and inputs.dtype == weight.dtype
        # Any that can be expanded to the outputs is allowed.
        and (bias is None or bias.shape == weight.shape[:1])
        and inputs.dim() >= 2
        and inputs.numel() > 0
        and inputs.is_contiguous()
        and _adds_in_place(weight.dtype, inputs.numel() // inputs.shape[-1], *weight.shape)
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.set_materialize_grads(False)
        outputs: torch.Tensor = _LINEAR(inputs, weight, bias)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        [gradient] = gradients
        if gradient is None:
            return None, None, None
        inputs, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, weight.shape[0])
        of_inputs = rows.mm(weight).view(inputs.shape) if ctx.needs_input_grad[0] else None
        of_weight = _add(weight, rows, inputs.view(-1, weight.shape[1]))
        return of_inputs, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


def _add(weight: torch.Tensor, rows: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor | None:
    """The gradient where it is the first, or is not laid out as in the trial, for autograd to keep or add."""
    if weight.grad is None or not rows.is_contiguous():
        return rows.t().mm(inputs)
    weight.grad.addmm_(rows.t(), inputs)
    return None


def _adds_in_place(dtype: torch.dtype, num_rows: int, num_outputs: int, num_inputs: int) -> bool:
    """Whether a product that adds to a sum gives the bits of the product and a sum after it."""
    if num_rows * (num_outputs + num_inputs) * dtype.itemsize > MOST_BYTES:
        return False
    shape = (dtype, num_rows, num_outputs, num_inputs, torch.get_num_threads())
    if shape not in _trials and len(_trials) < _MOST_TRIALS:
        _trials[shape] = _try(dtype, num_rows, num_outputs, num_inputs)
    return _trials.get(shape, False)


# By dtype, rows, outputs, inputs and threads.
_trials: dict[tuple[torch.dtype, int, int, int, int], bool] = {}


def _try(dtype: torch.dtype, num_rows: int, num_outputs: int, num_inputs: int) -> bool:
    new = functools.partial(torch.randn, dtype=dtype, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        gradient, inputs = new(num_rows, num_outputs).t(), new(num_rows, num_inputs)
        total = new(num_outputs, num_inputs)
        separate = gradient.mm(inputs).add_(total)
        return torch.equal(total.addmm_(gradient, inputs), separate)
