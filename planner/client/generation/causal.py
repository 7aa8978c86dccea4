"""A decoder alone, deployed."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from planner.client.generation.input_names import CACHE_POSITION, IDS, MASK, POSITIONS, ROWS, SLOT, largest
from planner.client.generation.language_model import PipelinedLM, refuse_more_than_logits
from planner.client.pipeline import Pipeline
from planner.client.pytree import argument_names
from planner.errors import InvalidArgument

_WITH_CACHE = frozenset({IDS, CACHE_POSITION, SLOT, ROWS, MASK, POSITIONS})
_WITHOUT = frozenset({IDS, MASK, POSITIONS})


class PipelinedCausalLM(PipelinedLM):  # type: ignore[no-untyped-call]
    """A decoder, deployed.

    The graph takes `input_ids` [batch, tokens], and `cache_position` [tokens] or else `attention_mask` and
    `position_ids` [batch, tokens] where it was exported with them. The pipeline gives logits [batch, tokens,
    vocabulary], or [batch, vocabulary] of the last token, as its only output or by the name "logits": ask it for the
    last token's, and no others cross the network.

    A graph that takes `cache_position`, and writes a cache into its buffers, is sent each token once; when the cache is
    lost with a daemon, or was written for another sequence meanwhile, the whole sequence is sent again. With a `slot`
    besides, the number of one of several caches, several sequences are under way at once: of `generate_each`, or of
    several threads that each call `generate`, and wait for a slot where all are taken. With a `beam_idx` [batch],
    the row that each row goes on from, it can search by beams; prompts may be padded where it takes `attention_mask`
    [batch, positions of the cache], and `position_ids` where the model has them. A graph without a cache is sent all of
    a sequence for each token, and can search by beams too.

    Raises InvalidArgument for a graph that takes or gives something else, and for prompts of which some are padded
    where the graph has no input that says so.
    """

    main_input_name = IDS

    def __init__(
        self, pipeline: Pipeline, config: PreTrainedConfig, generation_config: GenerationConfig | None = None
    ) -> None:
        _check_inputs(argument_names(pipeline.graph), config)
        super().__init__(pipeline, config, generation_config, ids=IDS)
        self._num_positions = largest(pipeline.graph, MASK, 1)

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
        refuse_more_than_logits(others)

        def ask(inputs: dict[str, Any], epoch: int = 0) -> torch.Tensor:
            if self._has_cache and MASK in self._takes:
                self._put_padding(inputs, attention_mask)
            else:
                self._put_places(inputs, attention_mask, position_ids)
            return self._logits(inputs, epoch)

        if not self._has_cache:
            return CausalLMOutputWithPast(logits=ask({IDS: input_ids}))
        logits, sequence = self._logits_behind(past_key_values, input_ids, ask)
        return CausalLMOutputWithPast(logits=logits, past_key_values=cast(Any, sequence))

    def _put_padding(self, inputs: dict[str, Any], mask: torch.Tensor | None) -> None:
        """Of all positions of the cache. Those of tokens count from the first that is not hidden."""
        positions = inputs[CACHE_POSITION]
        rows, length = len(inputs[IDS]), int(positions[-1]) + 1
        seen = torch.ones(rows, length, dtype=torch.int64) if mask is None else mask.to(torch.int64)
        # Cut where there is no room for so many, which the stages say.
        inputs[MASK] = torch.nn.functional.pad(seen, (0, self._num_positions - length))
        if POSITIONS in self._takes:
            inputs[POSITIONS] = (seen.cumsum(1) - 1).clamp(min=0)[:, positions]

    def _put_places(self, inputs: dict[str, Any], mask: torch.Tensor | None, positions: torch.Tensor | None) -> None:
        """What says which tokens are padding, and where those are that are sent."""
        ids = inputs[IDS]
        counted = inputs.get(CACHE_POSITION, torch.arange(ids.shape[1]))
        self._put_mask(inputs, MASK, mask, ids.shape)
        if POSITIONS in self._takes:
            inputs[POSITIONS] = counted.expand_as(ids) if positions is None else positions
        elif positions is not None and not (positions == counted[-positions.shape[-1] :]).all():
            raise InvalidArgument(
                "position_ids: they do not count from 0, as those of padded prompts, and the graph has no such input:"
                " export the model with position_ids"
            )


def _check_inputs(takes: tuple[str, ...], config: PreTrainedConfig) -> None:
    if config.is_encoder_decoder:
        raise InvalidArgument("an encoder and a decoder, as its config says: take PipelinedSeq2SeqLM")
    if IDS not in takes or not (_WITH_CACHE.issuperset(takes) or _WITHOUT.issuperset(takes)):
        raise InvalidArgument(
            f"the graph takes {', '.join(takes)}; generate gives input_ids, attention_mask and position_ids, and"
            " cache_position, slot and beam_idx where it has a cache: export the model with inputs of these names"
        )
