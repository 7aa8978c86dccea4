"""What torch's kernels trust: integers to lie inside of what they index, and a few floats to be finite. Looked at
before the call.

Whoever sends them could else read a worker's memory, write it, or end the worker. What does not hold is told as torch
tells of an index: on a CPU the call raises, on a GPU a kernel looks and the stream waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from stage_daemon.loader.packed import check_float8_product, check_int4_product

Function = Callable[..., Any]
# By the names in the schema; those that were not given are not in it.
_Arguments = Mapping[str, Any]
# What has to hold, and what is wrong else: the same words for all sizes, so that they are compiled once. What is wrong
# with shapes alone raises InvalidRequest.
_Check = Callable[[_Arguments], tuple[torch.Tensor, str] | None]


def with_checks(name: str, function: Function, argument_names: Sequence[str]) -> Function:
    """The operator `name`, which first looks at what its kernels trust; itself where they trust nothing."""
    check = _CHECKS.get(name)
    if check is None:
        return function

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        requirement = check({**dict(zip(argument_names, args, strict=False)), **kwargs})
        if requirement is not None:
            holds, otherwise = requirement
            torch._assert_async(holds, f"{name}: {otherwise}")
        return function(*args, **kwargs)

    return checked


def _labels(arguments: _Arguments) -> tuple[torch.Tensor, str]:
    """ctc_loss reads, and on the way back writes, at each label; behind a target's length may be anything."""
    labels, num_labels = arguments["targets"], arguments["log_probs"].shape[-1]
    if labels.dim() == 2:
        places = torch.arange(labels.shape[1], device=labels.device)
        labels = labels.masked_fill(places >= arguments["target_lengths"].to(labels.device).unsqueeze(-1), 0)
    return ((labels >= 0) & (labels < num_labels)).all(), "a label is none of those that log_probs has"


def _bags(arguments: _Arguments) -> tuple[torch.Tensor, str]:
    """What lies between two offsets is taken for a length. At the first and the last torch looks itself on a CPU."""
    offsets = arguments["offsets"]
    holds = _ascend(offsets)
    if not offsets.is_cpu:
        holds = holds & ((offsets >= 0) & (offsets <= arguments["indices"].shape[0])).all()
    return holds, "offsets descend, or lie outside of the indices"


def _groups(arguments: _Arguments) -> tuple[torch.Tensor, str] | None:
    """Offsets end groups: of one operand's rows or columns, or of what two matrices are multiplied along."""
    left, right, ends = arguments["self"], arguments["mat2"], arguments.get("offs")
    if ends is None:
        return None
    length = right.shape[-1] if left.dim() == 3 else left.shape[0 if right.dim() == 3 else 1]
    inside = (ends >= 0).all() & (ends <= length).all()
    return _ascend(ends) & inside, "offsets descend, or lie outside of the rows or columns that they part"


def _batch_sizes(arguments: _Arguments) -> tuple[torch.Tensor, str]:
    sizes = arguments["batch_sizes"]
    return _ascend(sizes.flip(0)) & (sizes >= 0).all(), "a batch size is below 0, or above the one before"


def _grid(arguments: _Arguments) -> tuple[torch.Tensor, str] | None:
    """Where places outside are moved inside, a CPU's kernels read at what becomes of one that is no number."""
    grid = arguments["grid"]
    is_linear, is_moved = arguments["interpolation_mode"] == 0, arguments["padding_mode"] != 0
    if not (grid.is_cpu and is_linear and is_moved):
        return None
    return grid.isfinite().all(), "a place on the grid is not finite"


def _matrix(arguments: _Arguments) -> tuple[torch.Tensor, str]:
    """Which linalg_eig looks at itself."""
    return arguments["self"].isfinite().all(), "an element of the matrix is not finite"


def _ascend(numbers: torch.Tensor) -> torch.Tensor:
    return (numbers[1:] >= numbers[:-1]).all()


_CHECKS: Mapping[str, _Check] = {
    "aten::_embedding_bag": _bags,
    "aten::_grouped_mm": _groups,
    "aten::_pad_packed_sequence": _batch_sizes,
    "aten::_scaled_mm": check_float8_product,
    "aten::_weight_int4pack_mm_for_cpu": check_int4_product,
    "aten::ctc_loss": _labels,
    "aten::embedding_bag": _bags,
    "aten::grid_sampler": _grid,
    "aten::grid_sampler_2d": _grid,
    "aten::linalg_eigvals": _matrix,
}
