"""The one call: a module and example inputs in, a graph and its weights out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.client.export.exported_model import ExportedModel

if TYPE_CHECKING:
    from torch import nn


def export(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    name: str | None = None,
    strict: bool = False,
    compare: bool = True,
) -> ExportedModel:
    """The module's forward as it stands (train or eval), for inputs shaped like the examples.

    `dynamic_shapes` is torch.export's, and those of inputs that go into **kwargs may stand beside the others, by name.
    A module on the meta device gives a graph without weights, which can be planned.
    The program is what runs with autograd on: torch's fused inference kernels for nn.MultiheadAttention and
    nn.TransformerEncoderLayer, which round differently, are not in it (torch.backends.mha.set_fastpath_enabled).
    Module and program run once on the examples, and a warning tells where outputs, what is left in buffers, or in
    training gradients, differ by more than rounding, and in training where microbatches would be another step than the
    batch, unless `compare` is False.
    Raises UnsupportedModule, saying what to change, for a module that cannot be carried.
    """
    from planner.client.export.translate import translate

    return translate(
        module,
        args,
        {} if kwargs is None else kwargs,
        dynamic_shapes=dynamic_shapes,
        name=name,
        strict=strict,
        compare=compare,
    )
