"""A decoder of transformers with keys and values in buffers of its own, which batches write where they say.

transformers' attention asks a cache for what came before. Here that is a layer around two buffers: it puts what is new
at the batch's positions, and gives all of them; the mask hides those behind the tokens at hand, which hold what was
written earlier. Buffers are as wide as the model's own keys and values, whatever its config says of heads.

Beside an encoder there are two pairs for each layer. What the encoder gave comes with the first batch of a sequence,
and is kept as the layers make it; later batches bring a single position of zeros, which is written behind the last one,
where nothing reads. So one graph serves both, and no batch decides which code runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_outputs import BaseModelOutput

from planner.client.export.checkpoint import CacheSize
from planner.errors import InvalidArgument, UnsupportedModule

# Any lengths that no dimension of a model is likely to have.
_EXAMPLE_TOKENS, _EXAMPLE_ENCODED = 7, 5
# Of buffers, by what they are kept for.
_OWN, _ENCODED = "", "encoded_"
# What layers without a kind of attention of their own keep.
_OF_ATTENTION = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")
# Of the largest logit, what a cache may change by the order of sums.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
_TOLERANCE_OF_HALVES = 3e-2


class CachedDecoder(nn.Module):
    """`model` around its buffers. Raises UnsupportedModule where it keeps something else than keys and values, or gives
    other logits than without a cache, which on the meta device is not looked at."""

    IDS = "input_ids"

    def __init__(self, model: Any, size: CacheSize) -> None:
        super().__init__()
        self.model, self.size = model, size
        with _experts_by_shapes(model):
            self._num_layers = self._add_buffers()
        if model.device.type != "meta":
            self._try()
            for _, buffer in self.named_buffers(recurse=False):
                buffer.zero_()

    def forward(
        self,
        input_ids: torch.Tensor,
        cache_position: torch.Tensor,
        slot: int = 0,
        beam_idx: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits [batch, tokens, vocabulary] of `input_ids` [batch, tokens] at `cache_position` [tokens].
        `attention_mask` [batch, length] is of all positions, `position_ids` [batch, tokens] of those at hand."""
        given = {"attention_mask": attention_mask, "position_ids": position_ids}
        logits: torch.Tensor = self.model(
            input_ids=input_ids,
            past_key_values=self._cache(_OWN, cache_position, slot, beam_idx),
            use_cache=True,
            **{name: tensor for name, tensor in given.items() if tensor is not None},
        ).logits
        return logits

    def example(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and dynamic shapes: prompts of any length that the cache holds, and single tokens."""
        length, rows = min(_EXAMPLE_TOKENS, self.size.length), self.size.batch_size
        sequence = Dim("sequence", min=1, max=self.size.length)
        inputs: dict[str, Any] = {
            self.IDS: self._tokens(rows, length),
            "cache_position": torch.arange(length, device=self.model.device),
        }
        shapes: dict[str, Any] = {self.IDS: {1: sequence}, "cache_position": {0: sequence}}
        if self.size.num_slots > 1:
            inputs["slot"], shapes["slot"] = self.size.num_slots - 1, Dim.DYNAMIC
        if self.size.has_beams:
            inputs["beam_idx"], shapes["beam_idx"] = torch.arange(rows, device=self.model.device), None
        if self.size.has_padding:
            inputs |= self._padding(rows, 0, range(length))
            shapes["attention_mask"] = None
            if "position_ids" in inputs:
                shapes["position_ids"] = {1: sequence}
        return inputs, shapes

    def _padding(self, rows: int, num_hidden: int, tokens: range) -> dict[str, torch.Tensor]:
        """What is said of tokens at those positions, with so many hidden before them."""
        if not self.size.has_padding:
            return {}
        places = torch.arange(self.size.length, device=self.model.device).expand(rows, -1)
        given = {"attention_mask": (places >= num_hidden).to(torch.int64)}
        if "position_ids" in inspect.signature(self.model.forward).parameters:
            given["position_ids"] = (places[:, tokens.start : tokens.stop] - num_hidden).clamp(min=0).contiguous()
        return given

    def _try(self) -> None:
        if not self._is_as_the_model():
            raise UnsupportedModule(
                f"{type(self.model).__name__}: with keys and values in buffers it gives other logits than without;"
                " submit it without a cache"
            )

    def _is_as_the_model(self) -> bool:
        """Tokens and one behind them, over what others have left there; with padding the first is hidden."""
        rows, count, num_hidden = self.size.batch_size, min(3, self.size.length), int(self.size.has_padding)
        ids, slot = self._tokens(rows, count) + 1, self.size.num_slots - 1

        def logits(ids: torch.Tensor, tokens: range, num_hidden: int) -> torch.Tensor:
            positions = torch.arange(tokens.start, tokens.stop, device=ids.device)
            given = self._padding(rows, num_hidden, tokens)
            result: torch.Tensor = self(ids[:, tokens.start : tokens.stop], positions, slot, **given)
            return result

        logits(ids * 2, range(count), 0)
        parts = [logits(ids, tokens, num_hidden) for tokens in (range(count - 1), range(count - 1, count))]
        whole = {name: given[:, :count] for name, given in self._padding(rows, num_hidden, range(count)).items()}
        expected = self.model(input_ids=ids, use_cache=False, **whole).logits
        return self._is_near(torch.cat(parts, dim=1)[:, num_hidden:], expected[:, num_hidden:])

    def _is_near(self, logits: torch.Tensor, expected: torch.Tensor) -> bool:
        off = (logits - expected).abs().max() / expected.abs().max()
        return bool(off <= _TOLERANCES.get(self.model.dtype, _TOLERANCE_OF_HALVES))

    def _add_buffers(self) -> int:
        """The number of layers."""
        cache = self._dynamic_cache()
        self.model(input_ids=self._tokens(1, 1), past_key_values=cache, use_cache=True)
        return self._add_buffers_of(cache, _OWN, self.size.length)

    def _add_buffers_of(self, cache: DynamicCache, kind: str, length: int) -> int:
        """As wide as what the model has put there."""
        rows, layers = self.size.batch_size * self.size.num_slots, list[Any](cache.layers)
        for index, layer in enumerate(layers):
            name = type(layer).__name__
            if name not in _OF_ATTENTION:
                raise UnsupportedModule(
                    f"{type(self.model).__name__}: layer {index} keeps a {name}, and not only keys and values; submit"
                    " it without a cache"
                )
            for of_what, tensor in (("key", getattr(layer, "keys", None)), ("value", getattr(layer, "values", None))):
                # A layer that reads another one's keeps nothing.
                if tensor is not None:
                    buffer = tensor.new_zeros(rows, tensor.shape[1], length, tensor.shape[3])
                    self.register_buffer(f"{kind}{of_what}_cache_{index}", buffer, persistent=False)
        return len(layers)

    def _cache(self, kind: str, positions: torch.Tensor, slot: int, beam_idx: torch.Tensor | None) -> Cache:
        layers: list[Any] = []
        for index in range(self._num_layers):
            if f"{kind}key_cache_{index}" not in self._buffers:
                layers.append(_Nothing(self.size.length))
                continue
            keys, values = (
                self._own_rows(self.get_buffer(f"{kind}{of_what}_cache_{index}"), slot) for of_what in ("key", "value")
            )
            if beam_idx is not None:
                for rows in (keys, values):
                    rows.copy_(rows.index_select(0, beam_idx))
            if kind == _OWN:
                layers.append(_Layer(keys, values, positions, self.size.length))
            else:
                layers.append(_EncodedLayer(keys, values, positions, self.size.encoded_length))
        return Cache(layers=layers)

    def _own_rows(self, buffer: torch.Tensor, slot: int) -> torch.Tensor:
        """Of the rows of all slots, one behind the other."""
        rows = self.size.batch_size
        return buffer if self.size.num_slots == 1 else buffer.narrow(0, slot * rows, rows)

    def _dynamic_cache(self) -> DynamicCache:
        """With the kinds of layers that the model has."""
        return DynamicCache(config=self.model.config.get_text_config(decoder=True))

    def _tokens(self, rows: int, length: int) -> torch.Tensor:
        return torch.zeros(rows, length, dtype=torch.int64, device=self.model.device)


class DecoderBesideEncoder(CachedDecoder):
    """Of a model with an encoder. Raises InvalidArgument too, where the size says nothing of what is encoded.

    `reads_mask`: whether positions can be left out of what is encoded; else all of them are needed.
    """

    IDS = "decoder_input_ids"
    reads_mask = True

    def __init__(self, model: Any, size: CacheSize) -> None:
        if not size.encoded_length:
            raise InvalidArgument(
                f"{type(model).__name__} has an encoder: say how many positions of what it gives are kept, as"
                f" CacheSize(length={size.length}, encoded_length=512)"
            )
        if model.device.type == "meta":
            raise UnsupportedModule(
                f"{type(model).__name__}: a cache beside an encoder is compared with the model, which needs weights;"
                " load it with from_pretrained, and export CachedModel.of(model, size).module"
            )
        super().__init__(model, size)

    def forward(  # type: ignore[override]
        self,
        decoder_input_ids: torch.Tensor,
        cache_position: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_position: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        slot: int = 0,
        beam_idx: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits [batch, tokens, vocabulary]. `encoder_hidden_states` [batch, positions, width] go to
        `encoder_position` [positions]. `attention_mask` [batch, encoded_length] is of all that is encoded."""
        cache = EncoderDecoderCache(
            self._cache(_OWN, cache_position, slot, beam_idx), self._cache(_ENCODED, encoder_position, slot, None)
        )
        return self._logits(
            decoder_input_ids, encoder_hidden_states, self._additive(attention_mask, decoder_input_ids), cache
        )

    def example(self) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, shapes = super().example()
        length, rows = min(_EXAMPLE_ENCODED, self.size.encoded_length), self.size.batch_size
        encoded = Dim("encoded", min=1, max=self.size.encoded_length)
        inputs["encoder_hidden_states"], shapes["encoder_hidden_states"] = self._states(rows, length), {1: encoded}
        inputs["encoder_position"] = torch.arange(length, device=self.model.device)
        shapes["encoder_position"] = {0: encoded}
        if self.reads_mask:
            inputs["attention_mask"], shapes["attention_mask"] = self._mask(rows, length), None
        return inputs, shapes

    def _logits(
        self, ids: torch.Tensor, states: torch.Tensor, mask: torch.Tensor | None, cache: EncoderDecoderCache | None
    ) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            encoder_outputs=Encoded(last_hidden_state=states),
            attention_mask=mask,
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=cache is not None,
        ).logits
        return logits

    def _additive(self, mask: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor | None:
        """[batch, 1, tokens, encoded_length], which every kind of attention adds to its scores."""
        if mask is None:
            return None
        hidden = torch.finfo(self.model.dtype).min
        added = torch.where(mask != 0, 0.0, hidden).to(self.model.dtype)
        return added[:, None, None, :].expand(-1, 1, ids.shape[1], -1)

    def _try(self) -> None:
        length = self.size.encoded_length
        # One that looks behind them is found out.
        if self._is_as_the_model_with(max(1, min(_EXAMPLE_ENCODED, length - 1))):
            return
        self.reads_mask = False
        if not self._is_as_the_model_with(length):
            raise UnsupportedModule(
                f"{type(self.model).__name__}: its attention to what is encoded is of another kind: with keys and"
                " values in buffers it gives other logits; submit it without a cache"
            )

    def _is_as_the_model_with(self, num_encoded: int) -> bool:
        """A batch of a token behind another, where all positions hold what another sequence wrote there."""
        rows, length, device = self.size.batch_size, self.size.encoded_length, self.model.device
        states, places = self._states(rows, num_encoded), torch.arange(length + 1, device=device)
        mask = self._mask(rows, num_encoded) if self.reads_mask else None
        ids, position, slot = self._tokens(rows, 2) + 1, torch.arange(2, device=device), self.size.num_slots - 1
        expected = self._logits(ids, states, None, None)
        self(ids * 2, position, -self._states(rows, length), places[:-1], mask, slot)
        parts = [
            self(ids[:, :1], position[:1], states, places[:num_encoded], mask, slot),
            self(ids[:, 1:], position[1:], torch.zeros_like(states[:, :1]), places[-1:], mask, slot),
        ]
        return self._is_near(torch.cat(parts, dim=1), expected)

    def _add_buffers(self) -> int:
        cache = EncoderDecoderCache(self._dynamic_cache(), DynamicCache())
        self._logits(self._tokens(1, 1), self._states(1, 1), None, cache)
        num_layers = self._add_buffers_of(cache.self_attention_cache, _OWN, self.size.length)
        if self._add_buffers_of(cache.cross_attention_cache, _ENCODED, self.size.encoded_length + 1) != num_layers:
            raise UnsupportedModule(f"{type(self.model).__name__}: some of its layers keep nothing of what is encoded")
        return num_layers

    def _states(self, rows: int, length: int) -> torch.Tensor:
        """Such as an encoder gives; the same each time."""
        width = self.model.get_encoder().config.get_text_config().hidden_size
        states = torch.randn(rows, length, width, generator=torch.Generator().manual_seed(0))
        return states.to(self.model.device, self.model.dtype)

    def _mask(self, rows: int, length: int) -> torch.Tensor:
        positions = torch.arange(self.size.encoded_length, device=self.model.device)
        return (positions < length).to(torch.int64).expand(rows, -1).contiguous()


@dataclass
class Encoded(BaseModelOutput):
    """Models with experts look for what their encoders say of them."""

    router_logits: Any = None
    router_probs: Any = None


@contextmanager
def _experts_by_shapes(model: Any) -> Iterator[None]:
    """On the meta device, where the usual products of experts ask for a dtype, or for what tensors hold."""
    before = getattr(model.config.get_text_config(decoder=True), "_experts_implementation", None)
    if model.device.type != "meta" or before is None:
        yield
        return
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


class _Layer(CacheLayerMixin):
    """Keys and values [rows, heads, positions, width] where they lie; what is new goes to `positions`, and `length` of
    them are read."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = keys, values, True
        self._positions, self._length = positions, length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys.index_copy_(2, self._positions, key_states)
        self.values.index_copy_(2, self._positions, value_states)
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length, 0

    def get_seq_length(self) -> Any:
        return self._positions[0]

    def get_max_length(self) -> int:
        return self._length

    def get_max_cache_shape(self) -> int:
        """Its name before."""
        return self._length


class _EncodedLayer(_Layer):  # type: ignore[no-untyped-call]
    """It says that it holds nothing, and so is always given what is new."""

    def get_seq_length(self) -> Any:
        return 0


class _Nothing(_Layer):  # type: ignore[no-untyped-call]
    """Of a layer that attends to another one's."""

    def __init__(self, length: int) -> None:
        nothing = torch.empty(0)
        super().__init__(nothing, nothing, torch.zeros(1, dtype=torch.int64), length)
