"""Runs a module, and what was captured of it, on the example inputs, and leaves all as it was.

Autograd is on, as `export` promises, and keeps nothing for a backward pass that never comes. Each run begins from one
seed of torch's random numbers, and takes none of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from planner.client.export.random_numbers import python_draws, torch_draws
from planner.client.export.states import tensor_of
from planner.client.export.unchanged import is_carried, unchanged

_MAX_BUFFER_BYTES = 1 << 30
_STATES = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
# None that a forward sets itself: programs do not, and would draw the same from it all the same.
_SEED = 1_839_402_167
# Each by its place.
Outputs = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
        return sum(buffer.numel() * buffer.element_size() for buffer in self.module.buffers()) <= _MAX_BUFFER_BYTES

    @property
    def name(self) -> str:
        return type(self.module).__name__

    @contextmanager
    def of_module(self) -> Iterator[ModuleRuns]:
        """One after the other: what a program does not hold is put back behind the last."""
        with unchanged(self.module) as changed, python_draws() as are_drawn:
            yield ModuleRuns(run=self._run_module, changed=changed, are_drawn=are_drawn)

    def of_program(self) -> Outputs:
        leaves = iter(pytree.tree_leaves(_cloned((self.args, dict(self.kwargs)))))
        inputs = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                inputs.append(next(leaves))
                continue
            state = tensor_of(self.program, spec)
            inputs.append(state if spec.kind is InputKind.PARAMETER else state.clone())
        with self._from_one_seed(), _without_saved_tensors():
            outputs = fx.Interpreter(self.program.graph_module).run(*inputs, enable_io_processing=False)
        return [("", _still(leaf)) for leaf in outputs]

    def _run_module(self) -> Outputs:
        args, kwargs = _cloned((self.args, dict(self.kwargs)))
        with _contents_put_back(self.module), self._from_one_seed(), _without_saved_tensors():
            outputs = self.module(*args, **kwargs)
        leaves = pytree.tree_flatten_with_path(outputs)[0]
        return [(f"output{pytree.keystr(path)}", _still(leaf)) for path, leaf in leaves]

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


def _still(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def _contents_put_back(module: nn.Module) -> Iterator[None]:
    """Leaves a module its buffers, and in them what was in them."""
    places = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items()]
    contents = [(buffer, buffer.detach().clone()) for buffer in module.buffers() if buffer.grad_fn is None]
    try:
        yield
    finally:
        for part, name, buffer in places:
            if is_carried(part._buffers.get(name), buffer):
                part._buffers[name] = buffer
        for buffer, content in contents:
            if buffer.grad_fn is not None:
                buffer.detach_()
            if not torch.equal(buffer, content):
                with torch.no_grad():
                    buffer.copy_(content)


@contextmanager
def _without_saved_tensors() -> Iterator[None]:
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda kept: kept):
        yield
