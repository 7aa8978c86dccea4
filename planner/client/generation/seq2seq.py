"""An encoder with a decoder, deployed as one graph or as two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from planner.client.generation.input_names import (
    CACHE_POSITION,
    DECODED,
    IDS,
    MASK,
    MASK_OF_DECODER,
    ROWS,
    SLOT,
    STATES,
    STATES_POSITION,
    largest,
)
from planner.client.generation.language_model import (
    PipelinedLM,
    by_name,
    described,
    only_or,
    put_mask,
    refuse_more_than_logits,
)
from planner.client.pipeline import Pipeline
from planner.client.pytree import argument_names
from planner.errors import InvalidArgument

# What an encoder is given, by what a model is for.
_ENCODED = frozenset({IDS, "input_features", "input_values", "pixel_values"})
_DECODER_WITH_CACHE = frozenset({DECODED, CACHE_POSITION, STATES, STATES_POSITION, MASK, SLOT, ROWS})


class PipelinedSeq2SeqLM(PipelinedLM):  # type: ignore[no-untyped-call]
    """An encoder with a decoder, deployed: of text (T5, BART), speech (Whisper) or pictures.

    As one graph it takes what the encoder is given (`input_ids`, `input_features`, `input_values` or `pixel_values`),
    `decoder_input_ids` [batch, tokens], and `attention_mask` and `decoder_attention_mask` where it was exported with
    them. It has no cache: for each token all is sent, and encoded, again.

    With an `encoder`, the pipeline of that alone, the graph is a decoder with a cache, as CachedModel makes it: what is
    encoded once, as its `last_hidden_state`, is sent to it with the first tokens, and each further token once. Slots,
    beams and what is lost are as of PipelinedCausalLM; so are the logits that the pipeline gives.

    Raises InvalidArgument for a graph that takes or gives something else, and for more than a cache has room for.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        config: PreTrainedConfig,
        generation_config: GenerationConfig | None = None,
        *,
        encoder: Pipeline | None = None,
    ) -> None:
        if encoder is None:
            self.main_input_name = _encoded_input(argument_names(pipeline.graph), config)
        else:
            self.main_input_name = _input_of_encoder(argument_names(encoder.graph))
            _check_decoder(argument_names(pipeline.graph), config)
        super().__init__(pipeline, config, generation_config, ids=DECODED)
        self.encoder = _Passing(self.main_input_name) if encoder is None else _Encoder(self.main_input_name, encoder)
        self._num_encoded = largest(pipeline.graph, STATES_POSITION)

    def forward(
        self,
        decoder_input_ids: torch.Tensor,
        encoder_outputs: BaseModelOutput,
        attention_mask: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """`decoder_input_ids` [batch, tokens]: what follows `past_key_values`. `encoder_outputs`, whose first is what
        the encoder gives, or without an encoder of its own what it is given."""
        refuse_more_than_logits(others)
        encoded = encoder_outputs[0]
        if self._has_cache:
            logits, sequence = self._logits_behind(
                past_key_values,
                decoder_input_ids,
                lambda inputs, epoch: self._ask_decoder(inputs, encoded, attention_mask, decoder_attention_mask, epoch),
            )
            return Seq2SeqLMOutput(logits=logits, past_key_values=cast(Any, sequence))
        inputs = {self.main_input_name: encoded, DECODED: decoder_input_ids}
        self._put_mask(inputs, MASK, attention_mask, encoded.shape[:2])
        self._put_mask(inputs, MASK_OF_DECODER, decoder_attention_mask, decoder_input_ids.shape)
        return Seq2SeqLMOutput(logits=self._logits(inputs))

    def _ask_decoder(
        self,
        inputs: dict[str, Any],
        encoded: torch.Tensor,
        mask: torch.Tensor | None,
        mask_of_decoder: torch.Tensor | None,
        epoch: int,
    ) -> torch.Tensor:
        """`encoded` [batch, positions, width] goes with the first tokens; with others a position that nobody reads."""
        rows, length, width = encoded.shape
        room = self._num_encoded
        if length > room or (MASK not in self._takes and length != room):
            raise InvalidArgument(
                f"{length} encoded positions, and the graph keeps {room}"
                + (": export the decoder" if length > room else ", all of which this model reads: export the decoder")
                + f" with CacheSize(encoded_length={length})"
            )
        is_first = not int(inputs[CACHE_POSITION][0])
        inputs[STATES] = encoded if is_first else encoded.new_zeros(rows, 1, width)
        inputs[STATES_POSITION] = torch.arange(length) if is_first else torch.tensor([room])
        if mask is None:
            mask = torch.ones(rows, length, dtype=torch.int64)
        self._put_mask(inputs, MASK, torch.nn.functional.pad(mask, (0, room - length)), (rows, room))
        self._put_mask(inputs, MASK_OF_DECODER, mask_of_decoder, inputs[DECODED].shape)
        return self._logits(inputs, epoch)


class _Passing(torch.nn.Module):
    """In an encoder's place: the pipeline has the encoder, and is to have what that is given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.main_input_name = name

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        input_values: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """`generate` takes inputs of these names, and refuses others."""
        given = {
            IDS: input_ids,
            "input_features": input_features,
            "input_values": input_values,
            "pixel_values": pixel_values,
        }
        return BaseModelOutput(last_hidden_state=cast(Any, self._encoded(given[self.main_input_name], kwargs)))

    def _encoded(self, given: torch.Tensor | None, others: Mapping[str, Any]) -> torch.Tensor | None:
        return given


class _Encoder(_Passing):
    """One that is deployed by itself."""

    def __init__(self, name: str, pipeline: Pipeline) -> None:
        super().__init__(name)
        self._pipeline = pipeline
        self._takes = argument_names(pipeline.graph)

    def _encoded(self, given: torch.Tensor | None, others: Mapping[str, Any]) -> torch.Tensor | None:
        assert given is not None
        inputs = {self.main_input_name: given}
        put_mask(inputs, self._takes, MASK, others.get(MASK), given.shape[:2], how=MASK)
        outputs = by_name(self._pipeline(**inputs), "last_hidden_state")
        states = only_or(outputs, "last_hidden_state")
        if not isinstance(states, torch.Tensor) or states.dim() != 3:
            raise InvalidArgument(
                f"an encoder gives states [batch, positions, width], and the pipeline gives {described(outputs)}: open"
                ' it with outputs=["last_hidden_state"]'
            )
        return states


def _encoded_input(takes: tuple[str, ...], config: PreTrainedConfig) -> str:
    """The name of what the encoder is given."""
    encoded = [name for name in takes if name in _ENCODED]
    others = set(takes).difference(encoded)
    _check_has_encoder(config)
    if STATES in others:
        raise InvalidArgument("the graph is a decoder alone: give the pipeline of its encoder too, as encoder=")
    if len(encoded) != 1 or DECODED not in others or not others <= {DECODED, MASK, MASK_OF_DECODER}:
        raise InvalidArgument(
            f"the graph takes {', '.join(takes)}; generate gives one of {', '.join(sorted(_ENCODED))}, {DECODED}, and"
            f" {MASK} and {MASK_OF_DECODER} where it has them: export the model with inputs of these names"
        )
    return encoded[0]


def _input_of_encoder(takes: tuple[str, ...]) -> str:
    encoded = [name for name in takes if name in _ENCODED]
    if len(encoded) != 1 or not set(takes) <= {*encoded, MASK}:
        raise InvalidArgument(
            f"the encoder takes {', '.join(takes)}; generate gives it one of {', '.join(sorted(_ENCODED))}, and {MASK}"
            " where it has that: export model.get_encoder() with inputs of these names"
        )
    return encoded[0]


def _check_decoder(takes: tuple[str, ...], config: PreTrainedConfig) -> None:
    _check_has_encoder(config)
    if not {DECODED, CACHE_POSITION, STATES, STATES_POSITION} <= set(takes) <= _DECODER_WITH_CACHE:
        raise InvalidArgument(
            f"the graph takes {', '.join(takes)}; beside an encoder it is a decoder with a cache: export"
            " CachedModel.of(model, CacheSize(length=..., encoded_length=...)).module"
        )


def _check_has_encoder(config: PreTrainedConfig) -> None:
    if not config.is_encoder_decoder:
        raise InvalidArgument("a decoder alone, as its config says: take PipelinedCausalLM")
