"""Whether a captured program gives the numbers that its module gives, on the example inputs.

A module may ask whether it is being captured, and go another way then: transformers leaves the mask out of some
attentions where they simply run, and builds it where they are exported. Daemons run what was captured, so that their
answers would be others than the module's, and no error would say so.

Both run once, with autograd on, as `export` promises, and again where they differ: what does not agree with itself
draws random numbers. What cannot be compared is left alone too: weights on meta, objects of scripts, buffers of more
than a GiB (they are put back as they were, and so are copied), and a forward that raises outside of torch.export.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from planner.client.export.states import tensor_of
from planner.client.export.unchanged import unchanged

_MAX_BUFFER_BYTES = 1 << 30
_STATES = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def difference_of_numbers(
    module: nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """What to say of the output that is farthest off, where that is more than other roundings explain; else nothing."""
    if not _can_be_compared(module, program, args, kwargs):
        return ""
    rounding = _rounding(program)
    try:
        with torch.random.fork_rng({tensor.device for tensor in _tensors(module, args, kwargs) if tensor.is_cuda}):
            given, captured = _run_module(module, args, kwargs), _run_program(program, args, kwargs)
            farthest = _farthest(given, captured, rounding)
            if farthest is None:
                return ""
            again = _run_module(module, args, kwargs), _run_program(program, args, kwargs)
    except Exception:
        # The export itself is right without: what runs only under torch.export cannot be compared.
        return ""
    if _farthest(given, again[0], rounding) or _farthest(captured, again[1], rounding):
        return ""
    name, difference, largest = farthest
    return (
        f"{type(module).__name__}: on the example inputs, what torch.export captured gives other numbers than the "
        f"module: {name} is off by {difference:.2g}, its largest value being {largest:.2g}. Daemons run what was "
        "captured. Somewhere the forward asks whether it is being captured: models of transformers do where they build "
        'attention masks, and agree with attn_implementation="eager". Without this check: compare=False, --no-compare'
    )


def _can_be_compared(
    module: nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    if not all(spec.kind in (*_STATES, InputKind.USER_INPUT) for spec in program.graph_signature.input_specs):
        return False
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        return False
    if any(tensor.is_meta for tensor in _tensors(module, args, kwargs)):
        return False
    return sum(buffer.numel() * buffer.element_size() for buffer in module.buffers()) <= _MAX_BUFFER_BYTES


def _tensors(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    yield from (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    yield from module.parameters()
    yield from module.buffers()


def _run_module(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Each output by its place."""
    args, kwargs = _cloned((args, dict(kwargs)))
    with _put_back(module), _without_saved_tensors():
        outputs = module(*args, **kwargs)
    return [(f"output{pytree.keystr(path)}", _still(leaf)) for path, leaf in pytree.tree_flatten_with_path(outputs)[0]]


def _run_program(program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    leaves = iter(pytree.tree_leaves(_cloned((args, dict(kwargs)))))
    inputs = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(next(leaves))
            continue
        state = tensor_of(program, spec)
        inputs.append(state if spec.kind is InputKind.PARAMETER else state.clone())
    with _without_saved_tensors():
        outputs = fx.Interpreter(program.graph_module).run(*inputs, enable_io_processing=False)
    return [("", _still(leaf)) for leaf in outputs]


def _cloned(inputs: Any) -> Any:
    """Copies of what a forward may write."""
    return pytree.tree_map_only(
        torch.Tensor, lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad), inputs
    )


def _still(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def _put_back(module: nn.Module) -> Iterator[None]:
    """Leaves a module as it was, with what was in its buffers."""
    contents = [(buffer, buffer.detach().clone()) for buffer in module.buffers() if buffer.grad_fn is None]
    try:
        with unchanged(module):
            yield
    finally:
        for buffer, content in contents:
            if buffer.grad_fn is not None:
                buffer.detach_()
            if not torch.equal(buffer, content):
                with torch.no_grad():
                    buffer.copy_(content)


@contextmanager
def _without_saved_tensors() -> Iterator[None]:
    """Autograd is on, as it is where the program was captured, and keeps nothing for a backward that never comes."""
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda kept: kept):
        yield


def _rounding(program: ExportedProgram) -> float:
    """How far apart, relative to the largest, other orders of the same operations may be: half of the digits of the
    coarsest number that the program has.
    """
    dtypes = {
        leaf.dtype
        for part in program.graph_module.modules()
        if isinstance(part, fx.GraphModule)
        for node in part.graph.nodes
        for leaf in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(leaf, torch.Tensor) and _has_fractions(leaf)
    }
    return math.sqrt(max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0))


def _farthest(
    given: Sequence[tuple[str, Any]], other: Sequence[tuple[str, Any]], rounding: float
) -> tuple[str, float, float] | None:
    """The name, difference and largest value of the output that is farthest off for its size, if any is too far."""
    beyond = []
    for (name, one), (_, two) in zip(given, other, strict=True):
        if not (isinstance(one, torch.Tensor) and one.numel() and _has_fractions(one)):
            continue
        difference, largest = _difference(one, two)
        if difference > rounding * largest:
            beyond.append((difference / largest if largest else math.inf, name, difference, largest))
    if not beyond:
        return None
    _, name, difference, largest = max(beyond)
    return name, difference, largest


def _has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _difference(one: torch.Tensor, two: torch.Tensor) -> tuple[float, float]:
    """The largest one, and the largest finite value of both; infinite where only one has a number, and for shapes."""
    if one.shape != two.shape:
        return math.inf, float(one.abs().max())
    exact = torch.complex128 if one.is_complex() else torch.float64
    one, two = one.to(exact), two.to(exact)
    same = (one == two) | (one.isnan() & two.isnan())
    apart = torch.where(same, 0.0, (one - two).abs().nan_to_num(math.inf))
    sizes = torch.stack((one.abs(), two.abs())).nan_to_num(0.0, 0.0, 0.0)
    return float(apart.max()), float(sizes.max())
