"""A causal language model of transformers whose keys and values are buffers of a module around it, on the meta device.

Batches are tokens and their positions: a prompt from 0 on, then one token after the other (docs/generation.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.export import Dim

from planner.errors import InvalidArgument, UnsupportedModule

# Any length that no dimension of a model is likely to have.
_EXAMPLE_LENGTH = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Keys and values of `length` positions, of `batch_size` sequences side by side."""

    length: int
    batch_size: int

    def __post_init__(self) -> None:
        if self.length < 2 or self.batch_size < 1:
            raise InvalidArgument(
                f"a cache of {self.length} positions for {self.batch_size} sequences: needs at least 2, for at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """`module` has the model's states by their names behind `prefix`, and the cache's beside."""

    module: nn.Module
    size: CacheSize
    prefix: str = "model."

    @classmethod
    def of(cls, model: Any, size: CacheSize) -> Self:
        """Raises UnsupportedModule where transformers makes no static cache for it, InvalidArgument for one of more
        positions than the model has."""
        from transformers import GenerationConfig
        from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

        if not model.can_generate() or model.main_input_name != "input_ids" or model.config.is_encoder_decoder:
            raise UnsupportedModule(f"{type(model).__name__}: a cache is of models that go on with tokens, one by one")
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None) or size.length
        if size.length > most:
            raise InvalidArgument(
                f"a cache of {size.length} positions, and {type(model).__name__} has {most} (max_position_embeddings)"
            )
        model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            use_cache=True, cache_implementation="static"
        )
        try:
            module = TorchExportableModuleWithStaticCache(
                model, batch_size=size.batch_size, max_cache_len=size.length, device=torch.device("meta")
            )
        # Whatever a model's code raises where it has no such cache: AttributeError, NotImplementedError, ValueError ...
        except Exception as error:
            raise UnsupportedModule(
                f"{type(model).__name__}: transformers makes no static cache for it ({type(error).__name__}: {error});"
                " submit it without one"
            ) from error
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to("meta")
        return cls(module=module.eval(), size=size)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Of the cache."""
        return self.module.named_buffers(recurse=False)

    def example(self) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, Any]]]:
        """Inputs and dynamic shapes: prompts of any length that the cache holds, and single tokens."""
        length, sequence = min(_EXAMPLE_LENGTH, self.size.length), Dim("sequence", min=1, max=self.size.length)
        inputs = {
            "input_ids": torch.zeros(self.size.batch_size, length, dtype=torch.int64, device="meta"),
            "cache_position": torch.arange(length, device="meta"),
        }
        return inputs, {"input_ids": {1: sequence}, "cache_position": {0: sequence}}
