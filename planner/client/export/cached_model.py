"""A language model of transformers whose keys and values are buffers of a module around it.

Batches are tokens and their positions: a prompt from 0 on, then one token after the other (docs/generation.md). With
several slots a batch says whose it is, so that stages work on several sequences at once. Of an encoder with a decoder
it is the decoder: see cached_decoder.
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

from planner.client.export.cached_decoder import CachedDecoder, move_rows, own_rows
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
        makes no static cache for it, InvalidArgument for one of more positions than the model has.

        Of a model with an encoder it is the decoder, which is given what the encoder gives: `model.get_encoder()` is
        exported as it is.
        """
        if not model.can_generate() or not (model.config.is_encoder_decoder or model.main_input_name == "input_ids"):
            raise UnsupportedModule(f"{type(model).__name__}: a cache is of models that go on with tokens, one by one")
        most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or size.length
        if size.length > most:
            raise InvalidArgument(
                f"a cache of {size.length} positions, and {type(model).__name__} has {most} (max_position_embeddings)"
            )
        model.config.use_cache = model.config.get_text_config(decoder=True).use_cache = True
        try:
            module = CachedDecoder(model, size) if model.config.is_encoder_decoder else _decoder_alone(model, size)
        except (InvalidArgument, UnsupportedModule):
            raise
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
        device, rows = next(buffer.device for _, buffer in self.buffers()), self.size.batch_size
        ids = "decoder_input_ids" if isinstance(self.module, CachedDecoder) else "input_ids"
        inputs: dict[str, Any] = {
            ids: torch.zeros(rows, length, dtype=torch.int64, device=device),
            "cache_position": torch.arange(length, device=device),
        }
        shapes: dict[str, Any] = {ids: {1: sequence}, "cache_position": {0: sequence}}
        if isinstance(self.module, CachedDecoder):
            encoded, of_encoded = self.module.example()
            inputs |= encoded
            shapes |= of_encoded
        if self.size.num_slots > 1:
            inputs["slot"], shapes["slot"] = self.size.num_slots - 1, Dim.DYNAMIC
        if self.size.has_beams:
            inputs["beam_idx"], shapes["beam_idx"] = torch.arange(rows, device=device), None
        return inputs, shapes


class _InRows(TorchExportableModuleWithStaticCache):
    """The rows of all slots one behind the other; a batch reads and writes those of its own."""

    def __init__(self, model: Any, size: CacheSize) -> None:
        rows = size.num_slots * size.batch_size
        super().__init__(model, batch_size=rows, max_cache_len=size.length, device=model.device)
        self._size = size

    def forward(  # type: ignore[override]
        self, input_ids: Any, cache_position: torch.Tensor, slot: int = 0, beam_idx: torch.Tensor | None = None
    ) -> Any:
        for index, layer in enumerate(self.static_cache.layers):
            for name in ("key", "value"):
                rows = own_rows(self.get_buffer(f"{name}_cache_{index}"), slot, self._size)
                move_rows(rows, beam_idx)
                setattr(layer, f"{name}s", rows)
        return super().forward(input_ids=input_ids, cache_position=cache_position)


def _decoder_alone(model: Any, size: CacheSize) -> nn.Module:
    if size.encoded_length:
        raise InvalidArgument(f"{size.encoded_length} encoded positions, and {type(model).__name__} has no encoder")
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        use_cache=True, cache_implementation="static"
    )
    if size.num_slots > 1 or size.has_beams:
        return _InRows(model, size)
    return TorchExportableModuleWithStaticCache(
        model, batch_size=size.batch_size, max_cache_len=size.length, device=model.device
    )
