"""Runs a module, and what was captured of it, on the example inputs, and leaves all as it was.

Autograd is on, as `export` promises; where no backward pass comes, it keeps nothing for one. Each run begins from one
seed of torch's random numbers, and takes none of the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from planner.client.export.dtypes import has_fractions
from planner.client.export.passes.flatten_regions import written_inputs
from planner.client.export.random_numbers import python_draws, torch_draws
from planner.client.export.states import tensor_of
from planner.client.export.unchanged import is_carried, unchanged

WITHOUT_COMPARISON = "Without this check: compare=False, --no-compare"
_MAX_BUFFER_BYTES = 1 << 30
# Of parameters that are trained and of all that operators make, which a backward pass keeps at most.
_MAX_TRAINED_BYTES = 1 << 32
_STATES = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
# None that a forward sets itself: programs do not, and would draw the same from it all the same.
_SEED = 1_839_402_167
# Each by its place; behind a module's outputs, what its call has left in its buffers.
Outputs = list[tuple[str, Any]]
# What a backward pass begins from, of a call's outputs.
Total = Callable[[Sequence[Any]], torch.Tensor | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """Of one module, its program and the example inputs; none where they cannot be compared: weights on meta, objects
    of scripts, and buffers of more than a GiB, which are put back as they were and so are copied."""

    module: nn.Module
    program: ExportedProgram
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def are_possible(self) -> bool:
        if not all(spec.kind in (*_STATES, InputKind.USER_INPUT) for spec in self.program.graph_signature.input_specs):
            return False
        if any(spec.kind is not OutputKind.USER_OUTPUT for spec in self.program.graph_signature.output_specs):
            return False
        if any(tensor.is_meta for tensor in self._tensors()):
            return False
        return sum(map(_num_bytes, self.module.buffers())) <= _MAX_BUFFER_BYTES

    @property
    def name(self) -> str:
        return type(self.module).__name__

    @contextmanager
    def of_module(self) -> Iterator[ModuleRuns]:
        """One after the other: what a program does not hold is put back behind the last."""
        with unchanged(self.module) as changed, python_draws() as are_drawn:
            yield ModuleRuns(run=self._run_module, changed=changed, are_drawn=are_drawn)

    def of_program(self) -> Outputs:
        inputs, states = self._program_inputs()
        with self._from_one_seed(), _without_saved_tensors():
            outputs = self._run_program(inputs)
        buffers = {name: states.get(id(buffer), buffer) for name, buffer in self._buffers().items()}
        return [*(("", _still(leaf)) for leaf in outputs), *_contents(buffers)]

    def failure_of_program(self) -> Exception | None:
        """Why it does not run on the example inputs, if it does not. Without autograd, which answers do not need."""
        inputs, _ = self._program_inputs()
        try:
            with self._from_one_seed(), torch.no_grad():
                self._run_program(inputs)
        except Exception as error:
            return error
        return None

    @property
    def have_gradients(self) -> bool:
        """None are taken where they would need much memory."""
        return self.module.training and bool(self._trained()) and self.are_small

    @cached_property
    def are_small(self) -> bool:
        """What is trained, and all that operators make."""
        calls = (node for node in self._nodes() if node.op == "call_function")
        made = (leaf for node in calls for leaf in pytree.tree_leaves(node.meta.get("val")))
        return sum(map(_num_bytes, (*self._trained().values(), *made))) <= _MAX_TRAINED_BYTES

    @cached_property
    def rounding(self) -> float:
        """How far apart, relative to the largest, other orders of the same operations may be: half of the digits of the
        coarsest number that the program has."""
        dtypes = {
            leaf.dtype
            for node in self._nodes()
            for leaf in pytree.tree_leaves(node.meta.get("val"))
            if isinstance(leaf, torch.Tensor) and has_fractions(leaf)
        }
        return math.sqrt(max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0))

    def _nodes(self) -> Iterator[fx.Node]:
        """Of the program and of its bodies."""
        for part in self.program.graph_module.modules():
            if isinstance(part, fx.GraphModule):
                yield from part.graph.nodes

    def gradients_of_module(self) -> Outputs:
        """By parameter, of a sum of all outputs in which no two weigh the same."""
        return self.gradients_on(self.args, self.kwargs, _weighed_sum)

    def gradients_on(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], total: Total) -> Outputs:
        """By parameter, of what is made of the leaves that the module returns on these inputs."""
        args, kwargs = _cloned((args, dict(kwargs)))
        trained = self._trained()
        with (
            unchanged(self.module),
            python_draws(),
            self._contents_put_back(),
            self._from_one_seed(),
            torch.enable_grad(),
            _own_gradients(trained.values()),
        ):
            return _gradients(total(pytree.tree_leaves(self.module(*args, **kwargs))), trained)

    def gradients_of_program(self) -> Outputs:
        inputs, states = self._program_inputs()
        trained = {name: states[id(one)] for name, one in self._trained().items()}
        with self._from_one_seed(), torch.enable_grad(), _own_gradients(trained.values()):
            return _gradients(_weighed_sum(self._run_program(inputs)), trained)

    def _trained(self) -> dict[str, torch.Tensor]:
        """All but those that are captured as others are, such as plain tensors in the place of quantised ones."""
        specs = self.program.graph_signature.input_specs
        captured = {id(tensor_of(self.program, spec)) for spec in specs if spec.kind is InputKind.PARAMETER}
        trained = self.module.named_parameters()
        return {name: one for name, one in trained if one.requires_grad and id(one) in captured}

    def _run_program(self, inputs: Sequence[Any]) -> Any:
        return fx.Interpreter(self.program.graph_module).run(*inputs, enable_io_processing=False)

    def _program_inputs(self) -> tuple[list[Any], dict[int, torch.Tensor]]:
        """All that the program takes, and what stands there for each of the module's tensors, by its id: for those that
        the program may write, copies."""
        leaves, written = iter(pytree.tree_leaves(_cloned((self.args, dict(self.kwargs))))), self._written
        states: dict[int, torch.Tensor] = {}
        inputs = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                inputs.append(next(leaves))
                continue
            state = tensor_of(self.program, spec)
            is_copied = spec.kind is not InputKind.PARAMETER or spec.arg.name in written
            inputs.append(states.setdefault(id(state), _cloned(state) if is_copied else state))
        return inputs, states

    @cached_property
    def _written(self) -> dict[str, torch.Tensor]:
        """The module's parameters that its forward writes, by what stands for each in the program."""
        written = {node.name for node in written_inputs(self.program.graph_module)}
        return {
            spec.arg.name: tensor_of(self.program, spec)
            for spec in self.program.graph_signature.input_specs
            if spec.kind is InputKind.PARAMETER and spec.arg.name in written
        }

    def _run_module(self) -> Outputs:
        args, kwargs = _cloned((self.args, dict(self.kwargs)))
        before = self._buffers()
        with self._contents_put_back(), self._from_one_seed(), _without_saved_tensors():
            outputs = self.module(*args, **kwargs)
            after = self._buffers()
            # One of another shape is for the call alone.
            left = {name: after[name] if is_carried(after.get(name), one) else None for name, one in before.items()}
            buffers = _contents(left)
        leaves = pytree.tree_flatten_with_path(outputs)[0]
        return [*((f"output{pytree.keystr(path)}", _still(leaf)) for path, leaf in leaves), *buffers]

    def _buffers(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_buffers(remove_duplicate=False))

    @contextmanager
    def _contents_put_back(self) -> Iterator[None]:
        """Leaves the module its buffers, and in them, and in parameters that its forward writes, what was in them."""
        places = [(part, name, buffer) for part in self.module.modules() for name, buffer in part._buffers.items()]
        tensors = (*(buffer for buffer in self.module.buffers() if buffer.grad_fn is None), *self._written.values())
        contents = [(tensor, tensor.detach().clone()) for tensor in tensors]
        try:
            yield
        finally:
            for part, name, buffer in places:
                if is_carried(part._buffers.get(name), buffer):
                    part._buffers[name] = buffer
            for tensor, content in contents:
                if tensor.grad_fn is not None:
                    tensor.detach_()
                if not torch.equal(tensor, content):
                    with torch.no_grad():
                        tensor.copy_(content)

    @contextmanager
    def _from_one_seed(self) -> Iterator[None]:
        with torch_draws(self._tensors()):
            torch.manual_seed(_SEED)
            yield

    def _tensors(self) -> Iterator[torch.Tensor]:
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        yield from self.module.parameters()
        yield from self.module.buffers()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleRuns:
    """`run` once more; which attributes `changed` by them, and whether numbers of Python's or numpy's `are_drawn`."""

    run: Callable[[], Outputs]
    changed: Callable[[], list[str]]
    are_drawn: Callable[[], bool]


def _cloned(inputs: Any) -> Any:
    """Copies of what a forward may write."""
    return pytree.tree_map_only(
        torch.Tensor, lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad), inputs
    )


def _num_bytes(tensor: Any) -> int:
    """At the example's sizes; nothing where only data tells."""
    if not isinstance(tensor, torch.Tensor):
        return 0
    elements: Any = tensor.numel()
    return (elements if isinstance(elements, int) else elements.node.hint or 0) * tensor.itemsize


def _gradients(total: torch.Tensor | None, trained: Mapping[str, torch.Tensor]) -> Outputs:
    """Dense, as they are trained with; None where there is none. Leaves the parameters with them."""
    if total is not None:
        total.backward()  # type: ignore[no-untyped-call]
    gradients = ((name, parameter.grad) for name, parameter in trained.items())
    return [(name, None if one is None else one.to_dense()) for name, one in gradients]


def _weighed_sum(outputs: Iterable[Any]) -> torch.Tensor | None:
    sums = [_weighed(leaf) for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.stack(sums).sum() if sums else None


def _weighed(output: torch.Tensor) -> torch.Tensor:
    """Dimension by dimension, so that nothing as large as the output is made."""
    numbers = torch.view_as_real(output) if output.is_complex() else output
    while numbers.dim():
        numbers = numbers @ torch.arange(numbers.shape[-1], device=numbers.device).cos().to(numbers.dtype)
    return numbers.double()


@contextmanager
def _own_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Meanwhile parameters have none but those that come; afterwards those that they had."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _contents(buffers: Mapping[str, torch.Tensor | None]) -> Outputs:
    return [(f"buffer {name!r}", None if one is None else _content(one)) for name, one in buffers.items()]


def _content(buffer: torch.Tensor) -> torch.Tensor | None:
    """Of integers single ones alone, which count: others may be indices that depend on roundings."""
    if has_fractions(buffer):
        return buffer.detach().clone()
    return buffer.double() if buffer.numel() == 1 else None


def _still(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def _without_saved_tensors() -> Iterator[None]:
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda kept: kept):
        yield
