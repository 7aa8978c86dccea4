"""Arguments made up for one node: tensors of the declared shape, strides and dtype, with values that it can work on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stage_daemon.errors import InsufficientMemory
from stage_daemon.loader.declared import Declared
from stage_daemon.worker.memory import available_bytes
from stage_daemon.worker.profile.indices import Integers

# Of what is free; the rest is for the operator's own scratch space.
MEMORY_SHARE = 0.7


def check_fits(num_bytes: int, device: torch.device) -> None:
    """Raises InsufficientMemory before anything is taken."""
    available = available_bytes(device)
    if available is not None and num_bytes > available * MEMORY_SHARE:
        raise InsufficientMemory(f"its tensors take {num_bytes} bytes, {available} are free on {device}")


def storage_bytes(declared: Declared) -> int:
    """Expanded dimensions count once."""
    if not declared.strides:
        return declared.size_bytes
    return declared.storage_elements * declared.dtype.itemsize


def make_tensor(
    declared: Declared, integers: Integers | None, device: torch.device, random: torch.Generator
) -> torch.Tensor:
    """In the declared strides. `random` lives on the device."""
    elements = storage_bytes(declared) // declared.dtype.itemsize
    flat = _fill(elements, declared.dtype, integers, device, random)
    return flat.as_strided(declared.dims, declared.strides) if declared.strides else flat.reshape(declared.dims)


def _fill(
    elements: int, dtype: torch.dtype, integers: Integers | None, device: torch.device, random: torch.Generator
) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(elements, device=device, generator=random) < 0.5
    if dtype.is_complex:
        return torch.rand(elements, dtype=dtype, device=device, generator=random)
    if dtype.is_floating_point:
        return _fractions(elements, dtype, device, random)
    if integers is None:
        return torch.ones(elements, dtype=dtype, device=device)
    end = max(1, integers.end)
    if integers.sorted:
        steps = torch.arange(elements, device=device, dtype=torch.float64) * (end / max(1, elements))
        return steps.to(dtype)
    return torch.randint(end, (elements,), dtype=dtype, device=device, generator=random)


def _fractions(elements: int, dtype: torch.dtype, device: torch.device, random: torch.Generator) -> torch.Tensor:
    """0.1 to 0.9: inside of every function's domain, and never so small that arithmetic on it is slow."""
    drawn = torch.float32 if dtype.itemsize == 1 else dtype
    return torch.rand(elements, dtype=drawn, device=device, generator=random).mul_(0.8).add_(0.1).to(dtype)


def make_values(
    described: Mapping[int, Any], ranges: Mapping[int, Integers], device: torch.device, seed: int
) -> dict[int, Any]:
    """Value id to a tensor or a number."""
    random = torch.Generator(device=device).manual_seed(seed)
    return {
        value_id: make_tensor(one, ranges.get(value_id), device, random) if isinstance(one, Declared) else one
        for value_id, one in described.items()
    }
