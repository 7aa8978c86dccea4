"""What a model family gives a test: a module, its example inputs, and batches of other shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`other_batches` differ from the example in their dynamic dimensions only."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    other_batches: tuple[Batch, ...] = ()

    @property
    def example(self) -> Batch:
        return Batch(args=self.args, kwargs=self.kwargs)
