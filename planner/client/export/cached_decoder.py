"""The decoder of an encoder with a decoder, with the keys and values of both its attentions in buffers.

What the encoder gave comes with the first batch of a sequence. Each layer writes what it makes of it to its buffers,
where later batches read it; they bring a single position of zeros, which is written behind the last one, where nothing
reads. So one graph serves both, and no batch decides which code runs.
"""

from __future__ import annotations

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

# Any number of positions that no dimension of a model is likely to have.
_EXAMPLE_LENGTH = 5
_SELF, _CROSS = "self", "cross"
# Of the largest logit, what a cache may change by the order of sums.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
_TOLERANCE_OF_HALVES = 3e-2


class CachedDecoder(nn.Module):
    """`model` around its buffers. Raises InvalidArgument where the size says nothing of what is encoded, and
    UnsupportedModule where the model without a cache gives something else.

    `reads_mask`: whether positions can be left out of what is encoded; else all of them are needed.
    """

    def __init__(self, model: Any, size: CacheSize) -> None:
        super().__init__()
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
        self.model, self._size = model, size
        self._num_layers = self._add_buffers()
        self.reads_mask = True
        # One that looks behind them is found out.
        if not self._is_as_the_model(max(1, min(_EXAMPLE_LENGTH, size.encoded_length - 1))):
            self.reads_mask = False
            if not self._is_as_the_model(size.encoded_length):
                raise UnsupportedModule(
                    f"{type(model).__name__}: its attention to what is encoded is of another kind: with keys and values"
                    " in buffers it gives other logits; submit it without a cache"
                )
        for _, buffer in self.named_buffers(recurse=False):
            buffer.zero_()

    def forward(
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
            self._layers(_SELF, cache_position, slot, beam_idx), self._layers(_CROSS, encoder_position, slot, None)
        )
        return self._logits(
            decoder_input_ids, encoder_hidden_states, self._additive(attention_mask, decoder_input_ids), cache
        )

    def example(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `forward` takes of the encoder, and how its sizes change."""
        length, rows = min(_EXAMPLE_LENGTH, self._size.encoded_length), self._size.batch_size
        encoded = Dim("encoded", min=1, max=self._size.encoded_length)
        inputs: dict[str, Any] = {
            "encoder_hidden_states": self._states(rows, length).zero_(),
            "encoder_position": torch.arange(length, device=self.model.device),
        }
        shapes: dict[str, Any] = {"encoder_hidden_states": {1: encoded}, "encoder_position": {0: encoded}}
        if self.reads_mask:
            inputs["attention_mask"] = self._mask(rows, length)
            shapes["attention_mask"] = None
        return inputs, shapes

    def _logits(
        self, ids: torch.Tensor, states: torch.Tensor, mask: torch.Tensor | None, cache: EncoderDecoderCache | None
    ) -> torch.Tensor:
        outputs = self.model(
            encoder_outputs=Encoded(last_hidden_state=states),
            attention_mask=mask,
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        logits: torch.Tensor = outputs.logits
        return logits

    def _additive(self, mask: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor | None:
        """[batch, 1, tokens, encoded_length], which every kind of attention adds to its scores."""
        if mask is None:
            return None
        hidden = torch.finfo(self.model.dtype).min
        added = torch.where(mask != 0, 0.0, hidden).to(self.model.dtype)
        return added[:, None, None, :].expand(-1, 1, ids.shape[1], -1)

    def _layers(self, kind: str, positions: torch.Tensor, slot: int, beam_idx: torch.Tensor | None) -> Cache:
        layers: list[Any] = []
        for index in range(self._num_layers):
            keys, values = (
                own_rows(self.get_buffer(f"{kind}_{name}_{index}"), slot, self._size) for name in ("key", "value")
            )
            move_rows(keys, beam_idx)
            move_rows(values, beam_idx)
            length = self._size.length if kind == _SELF else self._size.encoded_length
            layers.append(_Layer(keys, values, positions, length, begun=kind == _SELF))
        return Cache(layers=layers)

    def _add_buffers(self) -> int:
        """As large as the model's own keys and values say. The number of layers."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        with torch.no_grad():
            self._logits(ids, self._states(1, 1), None, cache)
        rows = self._size.batch_size * self._size.num_slots
        of_kinds: tuple[tuple[str, list[Any], int], ...] = (
            (_SELF, cache.self_attention_cache.layers, self._size.length),
            (_CROSS, cache.cross_attention_cache.layers, self._size.encoded_length + 1),
        )
        for kind, layers, length in of_kinds:
            for index, layer in enumerate(layers):
                for name, one in (("key", layer.keys), ("value", layer.values)):
                    buffer = one.new_zeros(rows, one.shape[1], length, one.shape[3])
                    self.register_buffer(f"{kind}_{name}_{index}", buffer, persistent=False)
        if len(cache.cross_attention_cache.layers) != len(cache.self_attention_cache.layers):
            raise UnsupportedModule(f"{type(self.model).__name__}: some of its layers keep nothing of what is encoded")
        return len(cache.self_attention_cache.layers)

    def _states(self, rows: int, length: int) -> torch.Tensor:
        """Such as an encoder gives; the same each time."""
        width = self.model.get_encoder().config.get_text_config().hidden_size
        states = torch.randn(rows, length, width, generator=torch.Generator().manual_seed(0))
        return states.to(self.model.device, self.model.dtype)

    def _mask(self, rows: int, length: int) -> torch.Tensor:
        positions = torch.arange(self._size.encoded_length, device=self.model.device)
        return (positions < length).to(torch.int64).expand(rows, -1).contiguous()

    def _is_as_the_model(self, num_encoded: int) -> bool:
        """A batch of a token behind another, where all positions hold what another sequence wrote there."""
        rows, length, device = self._size.batch_size, self._size.encoded_length, self.model.device
        states, places = self._states(rows, num_encoded), torch.arange(length + 1, device=device)
        mask = self._mask(rows, num_encoded) if self.reads_mask else None
        ids = torch.ones(rows, 2, dtype=torch.int64, device=device)
        first, second = torch.arange(1, device=device), torch.arange(1, 2, device=device)
        slot = self._size.num_slots - 1
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                expected = self._logits(ids, states, None, None)
                self(1 - ids[:, :1], first, -self._states(rows, length), places[:-1], mask, slot)
                parts = [
                    self(ids[:, :1], first, states, places[:num_encoded], mask, slot),
                    self(ids[:, 1:], second, torch.zeros_like(states[:, :1]), places[-1:], mask, slot),
                ]
        finally:
            self.model.train(training)
        largest = (torch.cat(parts, dim=1) - expected).abs().max() / expected.abs().max()
        return bool(largest <= _TOLERANCES.get(self.model.dtype, _TOLERANCE_OF_HALVES))


@dataclass
class Encoded(BaseModelOutput):
    """Models with experts look for what their encoders say of them."""

    router_logits: Any = None
    router_probs: Any = None


class _Layer(CacheLayerMixin):
    """Keys and values [rows, heads, positions, width] where they lie; what is new goes to `positions`, and `length` of
    them are read. One that is not `begun` is always given what is new."""

    is_compileable = True
    is_sliding = False

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, length: int, *, begun: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = keys, values, True
        self._positions, self._length, self._begun = positions, length, begun

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
        return self._positions[0] if self._begun else 0

    def get_max_length(self) -> int:
        return self._length

    def get_max_cache_shape(self) -> int:
        """Its name before."""
        return self._length


def own_rows(buffer: torch.Tensor, slot: int, size: CacheSize) -> torch.Tensor:
    """Of the rows of all slots, one behind the other."""
    return buffer if size.num_slots == 1 else buffer.narrow(0, slot * size.batch_size, size.batch_size)


def move_rows(rows: torch.Tensor, beam_idx: torch.Tensor | None) -> None:
    """Each to where it goes on: row i becomes what row beam_idx[i] was."""
    if beam_idx is not None:
        rows.copy_(rows.index_select(0, beam_idx))
