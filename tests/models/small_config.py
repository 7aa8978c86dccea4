"""A configuration of transformers at a size that a test builds in a moment, whatever names it has for its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Set where a configuration has a field of the name, by transformers' own names for the same thing.
_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "moe_intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 32,
    "use_cache": False,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 2}


def small_config(model_type: str, **sizes: Any) -> PreTrainedConfig:
    """`sizes` stand above the usual small ones; one that is a dict is about the part of that name ("text_config")."""
    # Imported here, since it takes seconds that only a test which builds one should wait for.
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    return kind(**_settings(kind, sizes))


def _settings(kind: type[PreTrainedConfig], sizes: dict[str, Any]) -> dict[str, Any]:
    from transformers import PreTrainedConfig

    usual = kind()
    settings = {name: size for name, size in _SIZES.items() if isinstance(getattr(usual, name, None), int)}
    settings |= {name: token for name, token in _TOKENS.items() if getattr(usual, name, None) is not None}
    for part in kind.sub_configs:
        value = getattr(usual, part, None)
        if isinstance(value, PreTrainedConfig):
            settings[part] = {"model_type": value.model_type} | _settings(type(value), sizes.get(part, {}))
    settings |= {name: size for name, size in sizes.items() if not isinstance(size, dict) or name not in settings}
    return {kind.attribute_map.get(name, name): setting for name, setting in settings.items()}
