"""What a deployed model is to transformers, whatever it generates from: which tokens stages have, and which follow."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel

from planner.client.generation.input_names import CACHE_POSITION, ROWS, SLOT, fixed_rows, num_slots
from planner.client.generation.interleaved import ask, place, run_interleaved
from planner.client.generation.places import Places
from planner.client.pipeline import Pipeline
from planner.client.pytree import argument_names
from planner.errors import InvalidArgument, MicrobatchFailed, StateLost

_OF_CACHE = frozenset({"use_cache", "cache_implementation", "past_key_values"})


class PipelinedLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
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
        self._has_cache = CACHE_POSITION in self._takes
        self.generation_config = self._with_cache_as_exported(generation_config or self.generation_config)
        self._num_rows = fixed_rows(pipeline.graph, ids)
        self._slots = Places(pipeline, num_slots(pipeline.graph))
        # By slot, the sequence that its buffers are of, as far as this process knows, and the epoch that wrote it.
        self._in_buffers: list[tuple[KeptSequence, int] | None] = [None] * self._slots.num_places

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
        if before is not None and not isinstance(before, KeptSequence):
            raise InvalidArgument(
                f"past_key_values: a {type(before).__name__}, and keys and values are with the stages. Pass what an"
                " earlier call returned with return_dict_in_generate"
            )
        if not self._has_cache:
            return self._generated(inputs, generation_config, kwargs)
        with nullcontext() if place() is not None else self._slots.one():
            return self._generated(inputs, generation_config, kwargs, past_key_values=before or KeptSequence())

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
        if self._has_cache and ROWS not in self._takes and (options.get("num_beams") or 1) > 1:
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
    ) -> tuple[torch.Tensor, KeptSequence]:
        """Those of `next_ids` [batch, tokens], which follow what is `past`, and the sequence with them. `ask` is given
        the inputs that say where a batch goes on, with the epoch: those of all of the sequence where the stages do not
        hold the rest."""
        if self._num_rows not in (None, len(next_ids)):
            raise InvalidArgument(
                f"{len(next_ids)} sequences side by side, and the cache was exported for {self._num_rows}: export it"
                f" with CacheSize(batch_size={len(next_ids)}) (--batch-size), or give generate_each the prompts"
            )
        sequence = past if isinstance(past, KeptSequence) else KeptSequence()
        slot, epoch = own_slot(), self._slots.epoch
        before, self._in_buffers[slot] = self._in_buffers[slot], None
        ids, start = sequence.with_next(next_ids), sequence.get_seq_length() if before == (sequence, epoch) else 0
        while True:
            inputs: dict[str, Any] = {self._ids: ids[:, start:], CACHE_POSITION: torch.arange(start, ids.shape[1])}
            if SLOT in self._takes:
                inputs[SLOT] = slot
            if ROWS in self._takes:
                rows = sequence.moved_from if start else None
                inputs[ROWS] = torch.arange(len(ids)) if rows is None else rows
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
        how = "CacheSize(has_padding=True) (--padding)" if self._has_cache else name
        put_mask(inputs, self._takes, name, mask, shape, how=how)

    def _logits(self, inputs: dict[str, Any], epoch: int = 0) -> torch.Tensor:
        given = by_name(ask(self._pipeline, inputs, epoch), "logits")
        logits = only_or(given, "logits")
        if isinstance(logits, torch.Tensor) and logits.is_floating_point() and logits.dim() in (2, 3):
            return logits if logits.dim() == 3 else logits.unsqueeze(1)
        raise InvalidArgument(
            f"generate needs logits of the vocabulary, and the pipeline gives {described(given)}: open it with the"
            ' output that has them, as outputs=["logits[:, -1:]"]'
        )


class KeptSequence:
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


def own_slot() -> int:
    """That the caller's sequence goes on in: a call by itself has the first one."""
    return place() or 0


def refuse_more_than_logits(asked: Mapping[str, Any]) -> None:
    if names := [name for name, value in asked.items() if isinstance(value, torch.Tensor) or value]:
        raise InvalidArgument(f"{', '.join(names)}: a deployment is given token ids, and gives logits alone")


def put_mask(
    inputs: dict[str, Any],
    takes: Collection[str],
    name: str,
    mask: torch.Tensor | None,
    shape: Sequence[int],
    *,
    how: str,
) -> None:
    """Where the graph takes one. `how` to export the model with it."""
    if name in takes:
        inputs[name] = torch.ones(*shape, dtype=torch.int64) if mask is None else mask
    elif mask is not None and not mask.all():
        raise InvalidArgument(
            f"{name}: it hides some of the prompt, and the graph has no such input (it takes"
            f" {', '.join(sorted(takes))}). Export the model with {how}, or send prompts of one length at a time"
        )


def by_name(outputs: Any, name: str) -> Mapping[str, Any]:
    """What a pipeline gives; an output without a name is called that."""
    return outputs if isinstance(outputs, Mapping) else {name: outputs}


def only_or(given: Mapping[str, Any], name: str) -> Any:
    """The only one, or that of the name; None where there is no such."""
    return next(iter(given.values())) if len(given) == 1 else given.get(name)


def described(given: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else f"{name}: {type(value)}"
        for name, value in given.items()
    )
