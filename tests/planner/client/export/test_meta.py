"""Modules without memory: exported on the meta device, planned without weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export import Dim

from planner.client.export import export
from planner.graph.check import why_not_deployable
from planner.wire.graph import graph_to_bytes


@pytest.mark.slow
def test_a_large_llama_is_exported_without_its_weights(tmp_path: Path) -> None:
    # Here: it takes seconds, which a process that only collects this test need not spend.
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=32000,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        module = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    module.tie_weights()
    ids = torch.zeros(2, 16, dtype=torch.int64, device="meta")
    shape = {0: Dim("batch", min=1, max=1024), 1: Dim("sequence", min=2, max=2048)}

    exported = export(
        module,
        kwargs={"input_ids": ids, "use_cache": False},
        dynamic_shapes={"input_ids": shape, "use_cache": None},
    )

    graph = exported.graph
    assert not exported.tensors
    assert exported.save_weights(tmp_path) == ()
    assert all(state.sha256 == b"" for state in graph.states)
    assert {state.name for state in graph.states if state.tie_group} == {"model.embed_tokens.weight", "lm_head.weight"}
    assert len(graph_to_bytes(graph)) < 2**15
    assert "weights" in (why_not_deployable(graph, has_weights=False) or "")
