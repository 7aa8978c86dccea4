"""Grad-mode and autocast regions of a captured program, kept on fx nodes until they become contexts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from planner.client.export.dtypes import dtype_of
from planner.graph.ir import Autocast, Context

_KEY = "partition_planner_regions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Exactly one of the two is set."""

    grad_enabled: bool | None = None
    autocast: Autocast | None = None


def grad_region(enabled: bool) -> Region:
    return Region(grad_enabled=enabled)


def autocast_region(device_class: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None) -> Region:
    region_dtype = torch.get_autocast_dtype(device_class) if dtype is None else dtype
    return Region(
        autocast=Autocast(
            device_class=device_class,
            enabled=enabled,
            dtype=dtype_of(region_dtype, "autocast region"),
            cache_enabled=bool(cache_enabled),
        )
    )


def regions_of(node: fx.Node) -> tuple[Region, ...]:
    """Outermost first."""
    regions: tuple[Region, ...] = node.meta.get(_KEY, ())
    return regions


def set_regions(node: fx.Node, regions: tuple[Region, ...]) -> None:
    node.meta[_KEY] = regions


def context_of(node: fx.Node) -> Context:
    """What the regions around a node amount to: the innermost of each kind and device class holds."""
    grad_enabled = True
    autocasts: dict[str, Autocast] = {}
    for region in regions_of(node):
        if region.grad_enabled is not None:
            grad_enabled = region.grad_enabled
        if region.autocast is not None:
            autocasts[region.autocast.device_class] = region.autocast
    return Context(grad_enabled=grad_enabled, autocasts=tuple(autocasts[key] for key in sorted(autocasts)))
