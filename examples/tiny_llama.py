"""A Llama of toy size with random weights: `planner-cli submit examples.tiny_llama:build`.

A factory returns the module, its example arguments and, if sizes may change from batch to batch, its dynamic shapes.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build() -> tuple[torch.nn.Module, tuple[()], dict[str, torch.Tensor], dict[str, object]]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
    )
    module = LlamaForCausalLM(config).eval()
    example = {"input_ids": torch.randint(0, config.vocab_size, (2, 16))}
    dynamic = {
        "input_ids": {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("sequence", min=2, max=512)}
    }
    return module, (), example, dynamic
