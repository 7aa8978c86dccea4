"""A decoder with keys and values in buffers, its own and those of what it reads of an encoder: the model's logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from planner.client import CachedModel, CacheSize, export
from planner.client.export.cached_decoder import Encoded
from planner.errors import UnsupportedModule
from tests.builders.decoder_batches import decoder_batch
from tests.models.architectures import find_architecture
from tests.models.generates import generates_as
from tests.nightly import nightly

# Each makes a model, and some export it.
pytestmark = pytest.mark.slow

LENGTH, ENCODED, WIDTH = 8, 6, 32
IDS = torch.tensor([[5, 9, 33, 12], [60, 7, 41, 3]])


@pytest.fixture
def model() -> Any:
    return find_architecture("seq2seq/bart").module()


def cached_of(model: Any, **size: Any) -> Any:
    encoded_length = ENCODED if model.config.is_encoder_decoder else 0
    return CachedModel.of(model, CacheSize(length=LENGTH, encoded_length=encoded_length, batch_size=2, **size)).module


def states(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def decoded(module: Any, ids: torch.Tensor, encoded: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """Token by token, with what is encoded beside the first one."""
    logits = [
        module(**decoder_batch(ids[:, [at]], torch.tensor([at]), encoded, ENCODED), **inputs)
        for at in range(ids.shape[1])
    ]
    return torch.cat(logits, dim=1)


def of_model(model: Any, ids: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
    outputs = model(encoder_outputs=Encoded(last_hidden_state=encoded), decoder_input_ids=ids, use_cache=False)
    logits: torch.Tensor = outputs.logits
    return logits


@torch.no_grad()
def test_each_slot_keeps_what_it_was_given_last(model: Any) -> None:
    module, last = cached_of(model, num_slots=2), states(4)
    decoded(module, IDS + 1, states(ENCODED, seed=2), slot=1)
    first = decoded(module, IDS, states(3), slot=0)
    second = decoded(module, IDS, last, slot=1)
    torch.testing.assert_close(first, of_model(model, IDS, states(3)))
    torch.testing.assert_close(second, of_model(model, IDS, last))
    rows = module.get_buffer("encoded_key_cache_0")
    assert rows.shape[:3] == (4, model.config.decoder_attention_heads, ENCODED + 1)
    assert module.get_buffer("key_cache_0").shape[2] == LENGTH


@torch.no_grad()
def test_rows_go_on_from_those_that_a_batch_names(model: Any) -> None:
    module, encoded = cached_of(model, has_beams=True), states(4)[:1].expand(2, -1, -1).contiguous()
    decoded(module, IDS[:, :3], encoded, beam_idx=torch.arange(2))
    batch = decoder_batch(IDS[:, 3:], torch.tensor([3]), encoded, ENCODED)
    moved = module(**batch, beam_idx=torch.tensor([1, 1]))
    ids = torch.cat([IDS[[1, 1], :3], IDS[:, 3:]], dim=1)
    torch.testing.assert_close(moved, of_model(model, ids, encoded)[:, -1:])


def test_nothing_is_left_of_what_it_was_tried_with(model: Any) -> None:
    module = cached_of(model)
    assert all(not buffer.any() for _, buffer in module.named_buffers(recurse=False))
    assert module.reads_mask


# Latent attention, whose keys and values differ in width; and an encoder's decoder.
@pytest.mark.parametrize("name", ["causal/deepseek_v3", "seq2seq/bart", *nightly(["causal/opt", "seq2seq/t5"])])
def test_it_generates_in_stages(name: str) -> None:
    model: Any = find_architecture(name).module()
    assert generates_as(model) == "eager"


def test_both_caches_are_states_that_it_writes(model: Any) -> None:
    cached = CachedModel.of(model, CacheSize(length=LENGTH, encoded_length=ENCODED))
    inputs, shapes = cached.example()
    exported = export(cached.module, (), inputs, dynamic_shapes=shapes)
    written = {state.name for state in exported.graph.states if state.mutated}
    assert written == {name for name, _ in cached.buffers()}


@pytest.mark.parametrize("encoded_length", [4, 20])
def test_a_model_that_hears_needs_all_that_is_encoded(encoded_length: int) -> None:
    model: Any = find_architecture("speech/whisper").module()
    inputs, _ = CachedModel.of(model, CacheSize(length=LENGTH, encoded_length=encoded_length)).example()
    assert "attention_mask" not in inputs


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # Its config does not say that it decodes, so that it looks ahead.
        ("causal/bert", "with keys and values in buffers it gives other logits than without"),
        ("seq2seq/led", "its attention to what is encoded is of another kind: .* it gives other logits"),
        *nightly(
            [
                ("seq2seq/encoder-decoder", "some of its layers keep nothing of what is encoded"),
                ("seq2seq/t5gemma2", "it does not go on from keys and values in buffers"),
            ]
        ),
    ],
)
def test_what_attends_otherwise_is_refused(name: str, words: str) -> None:
    with pytest.raises(UnsupportedModule, match=words):
        cached_of(find_architecture(name).module())
