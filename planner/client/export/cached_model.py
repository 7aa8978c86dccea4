"""A causal language model of transformers whose keys and values are buffers of a module around it.

Batches are tokens and their positions: a prompt from 0 on, then one token after the other (docs/generation.md). With
several slots a batch says whose it is, so that stages work on several sequences at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.export import Dim
from transformers import GenerationConfig
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

from planner.client.export.checkpoint import CacheSize
from planner.errors import InvalidArgument, UnsupportedModule

# Any length that no dimension of a model is likely to have.
_EXAMPLE_LENGTH = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """`module` has the model's states by their names behind `PREFIX`, and the cache's beside: what export takes.

    cached = CachedModel.of(model, CacheSize(length=2048))
    inputs, shapes = cached.example()
    exported = export(cached.module, (), inputs, dynamic_shapes=shapes)
    """

    PREFIX: ClassVar[str] = "model."

    module: nn.Module
    size: CacheSize

    @classmethod
    def of(cls, model: Any, size: CacheSize) -> Self:
        """On the model's device; from now on the model is one with a cache. Raises UnsupportedModule where transformers
        makes no static cache for it, InvalidArgument for one of more positions than the model has."""
        if not model.can_generate() or model.main_input_name != "input_ids" or model.config.is_encoder_decoder:
            raise UnsupportedModule(f"{type(model).__name__}: a cache is of models that go on with tokens, one by one")
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None) or size.length
        if size.length > most:
            raise InvalidArgument(
                f"a cache of {size.length} positions, and {type(model).__name__} has {most} (max_position_embeddings)"
            )
        model.config.use_cache = model.config.get_text_config().use_cache = True
        model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            use_cache=True, cache_implementation="static"
        )
        try:
            module = _wrapped(model, size)
        # Whatever a model's code raises where it has no such cache: AttributeError, NotImplementedError, ValueError ...
        except Exception as error:
            raise UnsupportedModule(
                f"{type(model).__name__}: transformers makes no static cache for it ({type(error).__name__}: {error});"
                " submit it without one"
            ) from error
        return cls(module=module.eval(), size=size)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Of the cache."""
        return self.module.named_buffers(recurse=False)

    def example(self) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, Any]]]:
        """Inputs and dynamic shapes: prompts of any length that the cache holds, and single tokens."""
        length, sequence = min(_EXAMPLE_LENGTH, self.size.length), Dim("sequence", min=1, max=self.size.length)
        device = next(buffer.device for _, buffer in self.buffers())
        inputs: dict[str, Any] = {
            "input_ids": torch.zeros(self.size.batch_size, length, dtype=torch.int64, device=device),
            "cache_position": torch.arange(length, device=device),
        }
        shapes: dict[str, Any] = {"input_ids": {1: sequence}, "cache_position": {0: sequence}}
        if self.size.num_slots > 1:
            inputs["slot"], shapes["slot"] = self.size.num_slots - 1, Dim.DYNAMIC
        return inputs, shapes


class _InSlots(TorchExportableModuleWithStaticCache):
    """The rows of all slots one behind the other; a batch reads and writes those of its own."""

    def __init__(self, model: Any, size: CacheSize) -> None:
        rows = size.num_slots * size.batch_size
        super().__init__(model, batch_size=rows, max_cache_len=size.length, device=model.device)
        self._batch_size = size.batch_size

    def forward(self, input_ids: Any, cache_position: torch.Tensor, slot: int) -> Any:  # type: ignore[override]
        for index, layer in enumerate(self.static_cache.layers):
            for name in ("key", "value"):
                rows = self.get_buffer(f"{name}_cache_{index}").narrow(0, slot * self._batch_size, self._batch_size)
                setattr(layer, f"{name}s", rows)
        return super().forward(input_ids=input_ids, cache_position=cache_position)


def _wrapped(model: Any, size: CacheSize) -> nn.Module:
    if size.num_slots > 1:
        return _InSlots(model, size)
    return TorchExportableModuleWithStaticCache(
        model, batch_size=size.batch_size, max_cache_len=size.length, device=model.device
    )
