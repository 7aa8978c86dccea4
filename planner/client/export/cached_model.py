"""A language model of transformers whose keys and values are buffers of a module around it.

Batches are tokens and their positions: a prompt from 0 on, then one token after the other (docs/generation.md). With
several slots a batch says whose it is, so that stages work on several sequences at once. The modules: cached_decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from planner.client.export.cached_decoder import CachedDecoder, DecoderBesideEncoder
from planner.client.export.checkpoint import CacheSize
from planner.errors import InvalidArgument, UnsupportedModule


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """`module` has the model's states by their names behind `PREFIX`, and the cache's beside: what export takes.

    cached = CachedModel.of(model, CacheSize(length=2048))
    inputs, shapes = cached.example()
    exported = export(cached.module, (), inputs, dynamic_shapes=shapes)
    """

    PREFIX: ClassVar[str] = "model."

    module: CachedDecoder

    @classmethod
    def of(cls, model: Any, size: CacheSize) -> Self:
        """On the model's device, in evaluation. Of a model with an encoder it is the decoder, which is given what the
        encoder gives: `model.get_encoder()` is exported as it is.

        Raises UnsupportedModule where the model cannot go on from keys and values in buffers, InvalidArgument for more
        positions than it has.
        """
        has_encoder = model.config.is_encoder_decoder
        if not model.can_generate() or not (has_encoder or model.main_input_name == "input_ids"):
            raise UnsupportedModule(f"{type(model).__name__}: a cache is of models that go on with tokens, one by one")
        if size.encoded_length and not has_encoder:
            raise InvalidArgument(f"{size.encoded_length} encoded positions, and {type(model).__name__} has no encoder")
        if size.has_padding and has_encoder:
            raise InvalidArgument("has_padding is of decoders alone: prompts of an encoder may be padded anyway")
        most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or size.length
        if size.length > most:
            raise InvalidArgument(
                f"a cache of {size.length} positions, and {type(model).__name__} has {most} (max_position_embeddings)"
            )
        try:
            with torch.no_grad():
                module = (DecoderBesideEncoder if has_encoder else CachedDecoder)(model.eval(), size)
        except (InvalidArgument, UnsupportedModule):
            raise
        # Whatever a model's code raises that has another cache: AttributeError, NotImplementedError, ValueError ...
        except Exception as error:
            raise UnsupportedModule(
                f"{type(model).__name__}: it does not go on from keys and values in buffers ({type(error).__name__}:"
                f" {error}); submit it without a cache"
            ) from error
        return cls(module=module.eval())

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Of the cache."""
        return self.module.named_buffers(recurse=False)

    def example(self) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, Any]]]:
        """Inputs and dynamic shapes: prompts of any length that the cache holds, and single tokens."""
        return self.module.example()
