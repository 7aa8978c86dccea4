"""Autocast where a call is made, which does not reach the stages."""

from __future__ import annotations

import warnings

from planner.client.tensors import loaded_torch
from planner.errors import PlannerWarning

_DEVICES = ("cpu", "cuda")


class AutocastWarning:
    """Warns, once, where a call is made under it."""

    def __init__(self, around: str) -> None:
        self._around = around
        self._has_told = False

    def look(self, stacklevel: int) -> None:
        """`stacklevel`: as of warnings.warn, from who calls this."""
        torch = loaded_torch()
        if not self._has_told and torch is not None and any(map(torch.is_autocast_enabled, _DEVICES)):
            self._has_told = True
            warnings.warn(
                f"autocast around {self._around} does not reach its stages, which compute as the module was exported:"
                " put it around the body of the module's forward, and export that",
                PlannerWarning,
                stacklevel=stacklevel + 1,
            )
