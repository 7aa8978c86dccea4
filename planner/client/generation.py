"""A deployed language model in the place of the model itself: `generate` of transformers asks the daemons.

    with client.pipeline(deployment.id, outputs=["output[:, -1:]"]) as pipeline:
        deployed = PipelinedCausalLM(pipeline, model.config, model.generation_config)
        tokens = deployed.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=64, do_sample=True)

`PipelinedSeq2SeqLM` is the same for an encoder with a decoder.

Tokens are chosen here, by transformers: its warpers and processors of logits, stopping criteria and streamers all work,
and a seed gives the tokens that it gives with the model.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from planner.client.interleaved import ask, place, run_interleaved
from planner.client.pipeline import Pipeline
from planner.client.places import Places
from planner.client.pytree import argument_names
from planner.errors import InvalidArgument, MicrobatchFailed, StateLost
from planner.graph.expression import Expression, SymbolReference
from planner.graph.ir import Graph, Value, ValueReference

_IDS, _MASK, _POSITIONS, _CACHE_POSITION = "input_ids", "attention_mask", "position_ids", "cache_position"
_SLOT, _ROWS = "slot", "beam_idx"
_WITH_CACHE = frozenset({_IDS, _CACHE_POSITION, _SLOT, _ROWS})
_WITHOUT = frozenset({_IDS, _MASK, _POSITIONS})
_OF_CACHE = frozenset({"use_cache", "cache_implementation", "past_key_values"})
# What an encoder is given, by what a model is for.
_ENCODED = frozenset({_IDS, "input_features", "input_values", "pixel_values"})
_DECODED, _MASK_OF_DECODER = "decoder_input_ids", "decoder_attention_mask"
# What a decoder with a cache is given of it, and where that goes.
_STATES, _STATES_POSITION = "encoder_hidden_states", "encoder_position"
_DECODER_WITH_CACHE = frozenset({_DECODED, _CACHE_POSITION, _STATES, _STATES_POSITION, _MASK, _SLOT, _ROWS})


class _PipelinedLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """What transformers asks of any model that generates. It has no weights; `config` is the model's, and is copied.

    A graph that takes `cache_position` has a cache, and is given what follows the tokens in it. `ids` is its input of
    token ids.
    """

    def __init__(
        self, pipeline: Pipeline, config: PreTrainedConfig, generation_config: GenerationConfig | None, ids: str
    ) -> None:
        config = deepcopy(config)
        # There are no attention and no experts here that could be of another kind.
        config._attn_implementation = config._experts_implementation = "eager"
        super().__init__(config)
        self._pipeline, self._ids = pipeline, ids
        self._takes = frozenset(argument_names(pipeline.graph))
        self._has_cache = _CACHE_POSITION in self._takes
        self.generation_config = self._with_cache_as_exported(generation_config or self.generation_config)
        self._num_rows = _dim(pipeline.graph, ids, 0)
        self._slots = Places(pipeline, _num_slots(pipeline.graph))
        # By slot, the sequence that its buffers are of, as far as this process knows, and the epoch that wrote it.
        self._in_buffers: list[tuple[_Sequence, int] | None] = [None] * self._slots.num_places

    @property
    def device(self) -> torch.device:
        """Where inputs are sent from and outputs come to."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        dtype = self.config.dtype
        return dtype if isinstance(dtype, torch.dtype) else torch.get_default_dtype()

    def generate(  # type: ignore[override]
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> Any:
        """As of any model of transformers. `past_key_values` is what an earlier call returned with
        `return_dict_in_generate`: that sequence goes on."""
        self._check_beams(ChainMap(kwargs, vars(generation_config or self.generation_config)))
        before = kwargs.get("past_key_values")
        if before is not None and not isinstance(before, _Sequence):
            raise InvalidArgument(
                f"past_key_values: a {type(before).__name__}, and keys and values are with the stages. Pass what an"
                " earlier call returned with return_dict_in_generate"
            )
        if not self._has_cache:
            return self._generated(inputs, generation_config, kwargs)
        with nullcontext() if place() is not None else self._slots.one():
            return self._generated(inputs, generation_config, kwargs, past_key_values=before or _Sequence())

    def generate_each(self, prompts: Iterable[torch.Tensor], **kwargs: Any) -> list[Any]:
        """What `generate` gives of each prompt, in order: as many at once as the graph has slots, so that each stage
        has a batch to work on. Without a cache it has as many as the pipeline has under way."""
        calls = [partial(self.generate, prompt, **kwargs) for prompt in prompts]
        if not self._has_cache:
            return run_interleaved(self._pipeline, calls, self._pipeline.default_window)
        with self._slots.all():
            return run_interleaved(self._pipeline, calls, self._slots.num_places)

    def _generated(
        self,
        inputs: torch.Tensor | None,
        generation_config: GenerationConfig | None,
        options: dict[str, Any],
        **added: Any,
    ) -> Any:
        if generation_config is not None:
            generation_config = self._with_cache_as_exported(generation_config)
        all_options = ChainMap(options, vars(generation_config or self.generation_config))
        if all_options.get("assistant_model") is not None or all_options.get("prompt_lookup_num_tokens"):
            raise InvalidArgument("assisted generation takes tokens back, and a deployment keeps what it was sent")
        left = {name: value for name, value in options.items() if name not in _OF_CACHE}
        return super().generate(inputs, generation_config, **left, **added)  # type: ignore[misc]

    def _check_beams(self, options: Mapping[str, Any]) -> None:
        if self._has_cache and _ROWS not in self._takes and (options.get("num_beams") or 1) > 1:
            raise InvalidArgument(
                f"num_beams is {options['num_beams']}: beams move what a cache holds from one row to another, and this"
                " graph has no input that says so. Export it with CacheSize(has_beams=True) (--beams), deploy the model"
                " without a cache, or sample"
            )

    def _with_cache_as_exported(self, given: GenerationConfig) -> GenerationConfig:
        """Whether there is a cache, and of which kind, is the graph's to say."""
        config = deepcopy(given)
        config.use_cache, config.cache_implementation = self._has_cache, None
        return config

    def _logits_behind(
        self, past: Any, next_ids: torch.Tensor, ask: Callable[[dict[str, Any], int], torch.Tensor]
    ) -> tuple[torch.Tensor, _Sequence]:
        """Those of `next_ids` [batch, tokens], which follow what is `past`, and the sequence with them. `ask` is given
        the inputs that say where a batch goes on, with the epoch: those of all of the sequence where the stages do not
        hold the rest."""
        if self._num_rows not in (None, len(next_ids)):
            raise InvalidArgument(
                f"{len(next_ids)} sequences side by side, and the cache was exported for {self._num_rows}: export it"
                f" with CacheSize(batch_size={len(next_ids)}) (--batch-size), or give generate_each the prompts"
            )
        sequence = past if isinstance(past, _Sequence) else _Sequence()
        slot, epoch = _slot(), self._slots.epoch
        before, self._in_buffers[slot] = self._in_buffers[slot], None
        ids, start = sequence.with_next(next_ids), sequence.get_seq_length() if before == (sequence, epoch) else 0
        while True:
            inputs: dict[str, Any] = {self._ids: ids[:, start:], _CACHE_POSITION: torch.arange(start, ids.shape[1])}
            if _SLOT in self._takes:
                inputs[_SLOT] = slot
            if _ROWS in self._takes:
                rows = sequence.moved_from if start else None
                inputs[_ROWS] = torch.arange(len(ids)) if rows is None else rows
            try:
                logits = ask(inputs, epoch)
                break
            except StateLost:
                self._slots.lose(epoch)
                epoch, start = self._slots.epoch, 0
            except MicrobatchFailed as failure:
                tokens = ids.shape[1]
                failure.add_note(f"The sequence is of {tokens} tokens; a cache holds as many as it was exported for.")
                raise
        sequence.ids, sequence.moved_from = ids, None
        self._in_buffers[slot] = sequence, epoch
        return logits, sequence

    def _put_mask(self, inputs: dict[str, Any], name: str, mask: torch.Tensor | None, shape: Sequence[int]) -> None:
        if name in self._takes:
            inputs[name] = torch.ones(*shape, dtype=torch.int64) if mask is None else mask
        elif mask is not None and not mask.all():
            raise InvalidArgument(
                f"{name}: it hides some of the prompt, and the graph has no such input (it takes"
                f" {', '.join(sorted(self._takes))}). Export the model with {name}, or send prompts of one"
                " length at a time"
            )

    def _logits(self, inputs: dict[str, Any], epoch: int = 0) -> torch.Tensor:
        outputs = ask(self._pipeline, inputs, epoch)
        given = outputs if isinstance(outputs, Mapping) else {"logits": outputs}
        logits = next(iter(given.values())) if len(given) == 1 else given.get("logits")
        if isinstance(logits, torch.Tensor) and logits.is_floating_point() and logits.dim() in (2, 3):
            return logits if logits.dim() == 3 else logits.unsqueeze(1)
        raise InvalidArgument(
            f"generate needs logits of the vocabulary, and the pipeline gives {_described(given)}: open it with the"
            ' output that has them, as outputs=["logits[:, -1:]"]'
        )


class PipelinedCausalLM(_PipelinedLM):  # type: ignore[no-untyped-call]
    """A decoder, deployed.

    The graph takes `input_ids` [batch, tokens], and `cache_position` [tokens] or else `attention_mask` and
    `position_ids` [batch, tokens] where it was exported with them. The pipeline gives logits [batch, tokens,
    vocabulary], or [batch, vocabulary] of the last token, as its only output or by the name "logits": ask it for the
    last token's, and no others cross the network.

    A graph that takes `cache_position`, and writes a cache into its buffers, is sent each token once; when the cache is
    lost with a daemon, or was written for another sequence meanwhile, the whole sequence is sent again. With a `slot`
    besides, the number of one of several caches, several sequences are under way at once: of `generate_each`, or of
    several threads that each call `generate`, and wait for a slot where all are taken. With a `beam_idx` [batch],
    the row that each row goes on from, it can search by beams. A graph without a cache is sent all of a sequence for
    each token, and can search by beams too.

    Raises InvalidArgument for a graph that takes or gives something else, and for prompts of which some are padded
    where the graph has no input that says so.
    """

    main_input_name = _IDS

    def __init__(
        self, pipeline: Pipeline, config: PreTrainedConfig, generation_config: GenerationConfig | None = None
    ) -> None:
        _check_inputs(argument_names(pipeline.graph), config)
        super().__init__(pipeline, config, generation_config, ids=_IDS)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """`input_ids` [batch, tokens]: what follows `past_key_values`. `attention_mask` [batch, all tokens so far]."""
        _refuse_more_than_logits(others)

        def ask(inputs: dict[str, Any], epoch: int = 0) -> torch.Tensor:
            self._put_places(inputs, attention_mask, position_ids)
            return self._logits(inputs, epoch)

        if not self._has_cache:
            return CausalLMOutputWithPast(logits=ask({_IDS: input_ids}))
        logits, sequence = self._logits_behind(past_key_values, input_ids, ask)
        return CausalLMOutputWithPast(logits=logits, past_key_values=cast(Any, sequence))

    def _put_places(self, inputs: dict[str, Any], mask: torch.Tensor | None, positions: torch.Tensor | None) -> None:
        """What says which tokens are padding, and where those are that are sent."""
        ids = inputs[_IDS]
        counted = inputs.get(_CACHE_POSITION, torch.arange(ids.shape[1]))
        self._put_mask(inputs, _MASK, mask, ids.shape)
        if _POSITIONS in self._takes:
            inputs[_POSITIONS] = counted.expand_as(ids) if positions is None else positions
        elif positions is not None and not (positions == counted[-positions.shape[-1] :]).all():
            raise InvalidArgument(
                "position_ids: they do not count from 0, as those of padded prompts, and the graph has no such input:"
                " export the model with position_ids"
            )


class PipelinedSeq2SeqLM(_PipelinedLM):  # type: ignore[no-untyped-call]
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
        super().__init__(pipeline, config, generation_config, ids=_DECODED)
        self.encoder = _Passing(self.main_input_name) if encoder is None else _Encoder(self.main_input_name, encoder)
        self._num_encoded = _largest(pipeline.graph, _STATES_POSITION)

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
        _refuse_more_than_logits(others)
        encoded = encoder_outputs[0]
        if self._has_cache:
            logits, sequence = self._logits_behind(
                past_key_values,
                decoder_input_ids,
                lambda inputs, epoch: self._ask_decoder(inputs, encoded, attention_mask, decoder_attention_mask, epoch),
            )
            return Seq2SeqLMOutput(logits=logits, past_key_values=cast(Any, sequence))
        inputs = {self.main_input_name: encoded, _DECODED: decoder_input_ids}
        self._put_mask(inputs, _MASK, attention_mask, encoded.shape[:2])
        self._put_mask(inputs, _MASK_OF_DECODER, decoder_attention_mask, decoder_input_ids.shape)
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
        if length > room or (_MASK not in self._takes and length != room):
            raise InvalidArgument(
                f"{length} encoded positions, and the graph keeps {room}"
                + (": export the decoder" if length > room else ", all of which this model reads: export the decoder")
                + f" with CacheSize(encoded_length={length})"
            )
        is_first = not int(inputs[_CACHE_POSITION][0])
        inputs[_STATES] = encoded if is_first else encoded.new_zeros(rows, 1, width)
        inputs[_STATES_POSITION] = torch.arange(length) if is_first else torch.tensor([room])
        if mask is None:
            mask = torch.ones(rows, length, dtype=torch.int64)
        self._put_mask(inputs, _MASK, torch.nn.functional.pad(mask, (0, room - length)), (rows, room))
        self._put_mask(inputs, _MASK_OF_DECODER, mask_of_decoder, inputs[_DECODED].shape)
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
            _IDS: input_ids,
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
        mask = others.get(_MASK)
        if _MASK in self._takes:
            inputs[_MASK] = torch.ones(given.shape[:2], dtype=torch.int64) if mask is None else mask
        elif isinstance(mask, torch.Tensor) and not mask.all():
            raise InvalidArgument(f"{_MASK}: it hides some of the prompt, and the encoder was exported without it")
        outputs = self._pipeline(**inputs)
        named = outputs if isinstance(outputs, Mapping) else {"last_hidden_state": outputs}
        states = next(iter(named.values())) if len(named) == 1 else named.get("last_hidden_state")
        if not isinstance(states, torch.Tensor) or states.dim() != 3:
            raise InvalidArgument(
                f"an encoder gives states [batch, positions, width], and the pipeline gives {_described(named)}: open"
                ' it with outputs=["last_hidden_state"]'
            )
        return states


class _Sequence:
    """In a cache's place: the tokens that the stages' buffers have keys and values of, or had."""

    is_compileable = False
    is_croppable = False

    def __init__(self) -> None:
        self.ids: torch.Tensor | None = None
        # In the buffers each row still is where that one was; None: all are in their places.
        self.moved_from: torch.Tensor | None = None

    def get_seq_length(self, layer_index: int = 0) -> int:
        return 0 if self.ids is None else self.ids.shape[1]

    def with_next(self, ids: torch.Tensor) -> torch.Tensor:
        return ids if self.ids is None else torch.cat([self.ids, ids], dim=1)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i goes on from row beam_idx[i]."""
        beam_idx = beam_idx.to(torch.int64)
        if self.ids is not None:
            self.ids = self.ids[beam_idx]
        self.moved_from = beam_idx if self.moved_from is None else self.moved_from[beam_idx]


def _slot() -> int:
    """That the caller's sequence goes on in: a call by itself has the first one."""
    return place() or 0


def _num_slots(graph: Graph) -> int:
    """As many as the numbers that its input may have."""
    slot = _input_of(graph, _SLOT)
    upper = _upper(graph, slot.expression if slot is not None else None)
    return 1 if upper is None else 1 + upper


def _largest(graph: Graph, name: str) -> int:
    """The most that there may be of an input [positions]; 0 without it."""
    value = _input_of(graph, name)
    dim = value.dims[0] if value is not None and value.dims else 0
    return dim if isinstance(dim, int) else _upper(graph, dim) or 0


def _upper(graph: Graph, number: Expression | None) -> int | None:
    return next((one.upper for one in graph.symbols if number == SymbolReference(one.id)), None)


def _dim(graph: Graph, name: str, axis: int) -> int | None:
    """None where it may change."""
    value = _input_of(graph, name)
    size = value.dims[axis] if value is not None and value.dims else None
    return size if isinstance(size, int) else None


def _input_of(graph: Graph, name: str) -> Value | None:
    """None where it has no such input."""
    content = next((entry.content for entry in graph.inputs if entry.name == name), None)
    return graph.values_by_id()[content.value_id] if isinstance(content, ValueReference) else None


def _refuse_more_than_logits(asked: Mapping[str, Any]) -> None:
    if names := [name for name, value in asked.items() if isinstance(value, torch.Tensor) or value]:
        raise InvalidArgument(f"{', '.join(names)}: a deployment is given token ids, and gives logits alone")


def _encoded_input(takes: tuple[str, ...], config: PreTrainedConfig) -> str:
    """The name of what the encoder is given."""
    encoded = [name for name in takes if name in _ENCODED]
    others = set(takes).difference(encoded)
    _check_has_encoder(config)
    if _STATES in others:
        raise InvalidArgument("the graph is a decoder alone: give the pipeline of its encoder too, as encoder=")
    if len(encoded) != 1 or _DECODED not in others or not others <= {_DECODED, _MASK, _MASK_OF_DECODER}:
        raise InvalidArgument(
            f"the graph takes {', '.join(takes)}; generate gives one of {', '.join(sorted(_ENCODED))}, {_DECODED}, and"
            f" {_MASK} and {_MASK_OF_DECODER} where it has them: export the model with inputs of these names"
        )
    return encoded[0]


def _input_of_encoder(takes: tuple[str, ...]) -> str:
    encoded = [name for name in takes if name in _ENCODED]
    if len(encoded) != 1 or not set(takes) <= {*encoded, _MASK}:
        raise InvalidArgument(
            f"the encoder takes {', '.join(takes)}; generate gives it one of {', '.join(sorted(_ENCODED))}, and {_MASK}"
            " where it has that: export model.get_encoder() with inputs of these names"
        )
    return encoded[0]


def _check_decoder(takes: tuple[str, ...], config: PreTrainedConfig) -> None:
    _check_has_encoder(config)
    if not {_DECODED, _CACHE_POSITION, _STATES, _STATES_POSITION} <= set(takes) <= _DECODER_WITH_CACHE:
        raise InvalidArgument(
            f"the graph takes {', '.join(takes)}; beside an encoder it is a decoder with a cache: export"
            " CachedModel.of(model, CacheSize(length=..., encoded_length=...)).module"
        )


def _check_has_encoder(config: PreTrainedConfig) -> None:
    if not config.is_encoder_decoder:
        raise InvalidArgument("a decoder alone, as its config says: take PipelinedCausalLM")


def _check_inputs(takes: tuple[str, ...], config: PreTrainedConfig) -> None:
    if config.is_encoder_decoder:
        raise InvalidArgument("an encoder and a decoder, as its config says: take PipelinedSeq2SeqLM")
    if _IDS not in takes or not (_WITH_CACHE.issuperset(takes) or _WITHOUT.issuperset(takes)):
        raise InvalidArgument(
            f"the graph takes {', '.join(takes)}; generate gives input_ids, cache_position and slot where it has a"
            " cache, else input_ids, attention_mask and position_ids: export the model with inputs of these names"
        )


def _described(given: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else f"{name}: {type(value)}"
        for name, value in given.items()
    )
