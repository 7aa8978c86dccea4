"""Architectures of transformers and diffusers, one line each, small, with the inputs that their kind takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.models.small_config import small_config

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`auto_class` of transformers builds the architectures; `batch` has `scale` times the example's sizes.

    Without an `auto_class` they are classes of diffusers, which is not among what the tests install.
    """

    title: str
    auto_class: str
    batch: Callable[[int], Inputs]

    @property
    def library(self) -> str:
        return "transformers" if self.auto_class else "diffusers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """`sizes` are set besides the usual small ones."""

    model_type: str
    kind: Kind
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind.title}/{self.model_type}"

    def module(self) -> nn.Module:
        # Imported here, since it takes seconds that only a test which builds one should wait for.
        library = import_module(self.kind.library)
        torch.manual_seed(0)
        if not self.kind.auto_class:
            module: nn.Module = getattr(library, self.model_type)(**self.sizes)
            return module.eval()
        auto_class = getattr(library, self.kind.auto_class)
        module = auto_class.from_config(small_config(self.model_type, **self.sizes))
        return module.eval()


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, 64, shape, generator=torch.Generator().manual_seed(sum(shape)))


def _reals(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _text(scale: int) -> Inputs:
    return {"input_ids": _tokens(2 * scale, 7 * scale)}


def _masked_text(scale: int) -> Inputs:
    return _text(scale) | {"attention_mask": torch.ones(2 * scale, 7 * scale, dtype=torch.int64)}


def _translation(scale: int) -> Inputs:
    return _text(scale) | {"decoder_input_ids": _tokens(2 * scale, 5 * scale)}


def _masked_translation(scale: int) -> Inputs:
    return _translation(scale) | {"attention_mask": torch.ones(2 * scale, 7 * scale, dtype=torch.int64)}


def _images(scale: int) -> Inputs:
    return {"pixel_values": _reals(2 * scale, 3, 32, 32)}


def _larger_images(scale: int) -> Inputs:
    return {"pixel_values": _reals(2 * scale, 3, 64, 64)}


def _waves(scale: int) -> Inputs:
    return {"input_values": _reals(2 * scale, 800 * scale)}


def _spectra(scale: int) -> Inputs:
    """As long as transformers demands: twice as many frames as an encoder has positions."""
    return {"input_features": _reals(2 * scale, 80, 40), "decoder_input_ids": _tokens(2 * scale, 5 * scale)}


def _captioned_images(scale: int) -> Inputs:
    return _masked_text(scale) | _images(2)


def _pixels_of_usual_size(scale: int) -> Inputs:
    return {"pixel_values": _reals(2 * scale, 3, 224, 224)}


def _film(scale: int) -> Inputs:
    return {"pixel_values": _reals(2 * scale, 8, 3, 32, 32)}


def _film_by_its_own_name(scale: int) -> Inputs:
    return {"pixel_values_videos": _reals(2 * scale, 8, 3, 32, 32)}


def _frames(scale: int) -> Inputs:
    return {"input_features": _reals(2 * scale, 100 * scale, 80)}


def _stacked_frames(scale: int) -> Inputs:
    return {"input_features": _reals(2 * scale, 100 * scale, 160)}


def _spectrogram(scale: int) -> Inputs:
    return {"input_values": _reals(2 * scale, 1024, 128)}


def _waves_of_one_channel(scale: int) -> Inputs:
    return {"input_values": _reals(2 * scale, 1, 1024 * scale)}


def _past(scale: int) -> Inputs:
    return {"past_values": _reals(2 * scale, 32, 1)}


def _noise(scale: int) -> Inputs:
    return {"sample": _reals(2 * scale, 4, 16 * scale, 16 * scale), "timestep": torch.full((2 * scale,), 7)}


def _captioned_noise(scale: int) -> Inputs:
    return _noise(scale) | {"encoder_hidden_states": _reals(2 * scale, 5 * scale, 16)}


def _pictures(scale: int) -> Inputs:
    return {"sample": _reals(2 * scale, 3, 16 * scale, 16 * scale)}


def _patches(scale: int) -> Inputs:
    return {"hidden_states": _reals(2 * scale, 4, 8, 8), "timestep": torch.full((2 * scale,), 7)}


def _labelled_patches(scale: int) -> Inputs:
    return _patches(scale) | {"class_labels": _tokens(2 * scale) % 8}


def _captioned_patches(scale: int) -> Inputs:
    return _patches(scale) | {"encoder_hidden_states": _reals(2 * scale, 5 * scale, 16)}


def _pooled_patches(scale: int) -> Inputs:
    return _captioned_patches(scale) | {"pooled_projections": _reals(2 * scale, 16)}


def _flat_patches(scale: int) -> Inputs:
    return {
        "hidden_states": _reals(2 * scale, 9 * scale, 4),
        "encoder_hidden_states": _reals(2 * scale, 5 * scale, 16),
        "pooled_projections": _reals(2 * scale, 16),
        "timestep": torch.full((2 * scale,), 0.5),
        "img_ids": torch.zeros(9 * scale, 3),
        "txt_ids": torch.zeros(5 * scale, 3),
    }


CAUSAL = Kind(title="causal", auto_class="AutoModelForCausalLM", batch=_text)
ENCODER = Kind(title="encoder", auto_class="AutoModelForMaskedLM", batch=_masked_text)
UNMASKED = Kind(title="encoder", auto_class="AutoModelForMaskedLM", batch=_text)
# Language models that hear as well: the text alone.
HEARING = Kind(title="speech", auto_class="AutoModelForSeq2SeqLM", batch=_text)
SEQ2SEQ = Kind(title="seq2seq", auto_class="AutoModelForSeq2SeqLM", batch=_translation)
MASKED_SEQ2SEQ = Kind(title="seq2seq", auto_class=SEQ2SEQ.auto_class, batch=_masked_translation)
VISION = Kind(title="vision", auto_class="AutoModelForImageClassification", batch=_images)
LARGER_VISION = Kind(title="vision", auto_class=VISION.auto_class, batch=_larger_images)
SPEECH = Kind(title="speech", auto_class="AutoModel", batch=_waves)
TRANSCRIPTION = Kind(title="speech", auto_class="AutoModelForSpeechSeq2Seq", batch=_spectra)
PAIRS = Kind(title="image and text", auto_class="AutoModel", batch=_captioned_images)
EMBEDDER = Kind(title="embedding", auto_class="AutoModel", batch=_masked_text)
TAGGER = Kind(title="tokens", auto_class="AutoModelForTokenClassification", batch=_masked_text)
CLASSIFIER = Kind(title="sequences", auto_class="AutoModelForSequenceClassification", batch=_masked_text)
ANSWERER = Kind(title="answers", auto_class="AutoModelForQuestionAnswering", batch=_masked_text)
DETECTION = Kind(title="detection", auto_class="AutoModelForObjectDetection", batch=_larger_images)
SEGMENTATION = Kind(title="segmentation", auto_class="AutoModelForSemanticSegmentation", batch=_larger_images)
DEPTH = Kind(title="depth", auto_class="AutoModelForDepthEstimation", batch=_larger_images)
# Language models that see as well: the text alone.
SEEING = Kind(title="image and text", auto_class="AutoModelForImageTextToText", batch=_text)
BACKBONE = Kind(title="vision", auto_class="AutoModel", batch=_images)
LARGER_BACKBONE = Kind(title="vision", auto_class="AutoModel", batch=_larger_images)
USUAL_BACKBONE = Kind(title="vision", auto_class="AutoModel", batch=_pixels_of_usual_size)
PIXELS_AS_TOKENS = Kind(title="vision", auto_class="AutoModel", batch=_text)
VIDEO = Kind(title="video", auto_class="AutoModel", batch=_film)
NAMED_VIDEO = Kind(title="video", auto_class="AutoModel", batch=_film_by_its_own_name)
FRAMES = Kind(title="speech", auto_class="AutoModel", batch=_frames)
STACKED_FRAMES = Kind(title="speech", auto_class="AutoModel", batch=_stacked_frames)
SPECTROGRAM = Kind(title="speech", auto_class="AutoModel", batch=_spectrogram)
CODEC = Kind(title="speech", auto_class="AutoModel", batch=_waves_of_one_channel)
FORECAST = Kind(title="forecast", auto_class="AutoModel", batch=_past)
KEYPOINTS = Kind(title="keypoints", auto_class="AutoModelForKeypointDetection", batch=_larger_images)
DENOISER = Kind(title="diffusion", auto_class="", batch=_noise)
PROMPTED_DENOISER = Kind(title="diffusion", auto_class="", batch=_captioned_noise)
AUTOENCODER = Kind(title="diffusion", auto_class="", batch=_pictures)
LABELLED_PATCHES = Kind(title="diffusion", auto_class="", batch=_labelled_patches)
PROMPTED_PATCHES = Kind(title="diffusion", auto_class="", batch=_captioned_patches)
POOLED_PATCHES = Kind(title="diffusion", auto_class="", batch=_pooled_patches)
FLAT_PATCHES = Kind(title="diffusion", auto_class="", batch=_flat_patches)

# Widths of the parts of a head where keys and values are projected from one latent vector.
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
}

# Two levels of resolution.
_PYRAMID = {"hidden_sizes": [16, 32], "depths": [1, 1]}
_WINDOWS = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
_WAVE_CONVOLUTIONS = {
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "num_codevectors_per_group": 8,
}

_RESNET = {
    "model_type": "resnet",
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "embedding_size": 8,
    "layer_type": "basic",
}
_DETECTOR = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": _RESNET | {"out_features": ["stage4"]},
    "d_model": 32,
    "num_queries": 5,
}
_DENSE_PREDICTOR = {
    "num_hidden_layers": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 16, 24, 32],
    "fusion_hidden_size": 16,
}
# Positions in time, height and width each turn a part of a head.
_THREE_POSITIONS = {
    "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
}

# Two levels of resolution, and heads of 8.
_UNET = {
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 1,
    "block_out_channels": (32, 64),
    "norm_num_groups": 8,
}
_DOWN_UP = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 8,
}
_ENCODER = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (16, 32),
    "norm_num_groups": 8,
}
_HEADS = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4}
_PATCHES = {"sample_size": 8, "patch_size": 2}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(model_type="afmoe", kind=CAUSAL),
    Architecture(model_type="apertus", kind=CAUSAL),
    Architecture(model_type="arcee", kind=CAUSAL),
    Architecture(model_type="aria_text", kind=CAUSAL),
    Architecture(model_type="bailing_hybrid", kind=CAUSAL),
    Architecture(model_type="bart", kind=CAUSAL),
    Architecture(model_type="beam", kind=CAUSAL),
    Architecture(model_type="bert", kind=CAUSAL),
    Architecture(model_type="bert-generation", kind=CAUSAL),
    Architecture(model_type="big_bird", kind=CAUSAL),
    Architecture(model_type="bigbird_pegasus", kind=CAUSAL),
    Architecture(model_type="biogpt", kind=CAUSAL),
    Architecture(model_type="bitnet", kind=CAUSAL),
    Architecture(model_type="blenderbot", kind=CAUSAL),
    Architecture(model_type="blenderbot-small", kind=CAUSAL),
    Architecture(model_type="bloom", kind=CAUSAL),
    Architecture(model_type="camembert", kind=CAUSAL),
    Architecture(model_type="cohere", kind=CAUSAL),
    Architecture(model_type="cohere2", kind=CAUSAL),
    Architecture(model_type="cohere2_moe", kind=CAUSAL),
    Architecture(model_type="cpmant", kind=CAUSAL),
    Architecture(model_type="ctrl", kind=CAUSAL),
    Architecture(model_type="cwm", kind=CAUSAL),
    Architecture(model_type="data2vec-text", kind=CAUSAL),
    Architecture(model_type="diffllama", kind=CAUSAL),
    Architecture(model_type="doge", kind=CAUSAL),
    Architecture(model_type="electra", kind=CAUSAL),
    Architecture(model_type="emu3", kind=CAUSAL),
    Architecture(model_type="ernie", kind=CAUSAL),
    Architecture(model_type="ernie4_5", kind=CAUSAL),
    Architecture(model_type="ernie4_5_moe", kind=CAUSAL),
    Architecture(model_type="exaone4", kind=CAUSAL),
    Architecture(model_type="exaone_moe", kind=CAUSAL),
    Architecture(model_type="falcon", kind=CAUSAL),
    Architecture(model_type="falcon_h1", kind=CAUSAL),
    Architecture(model_type="falcon_mamba", kind=CAUSAL),
    Architecture(model_type="flex_olmo", kind=CAUSAL),
    Architecture(model_type="flint", kind=CAUSAL),
    Architecture(model_type="fuyu", kind=CAUSAL),
    Architecture(model_type="gemma", kind=CAUSAL),
    Architecture(model_type="gemma2", kind=CAUSAL),
    Architecture(model_type="gemma3", kind=CAUSAL),
    Architecture(model_type="gemma3_text", kind=CAUSAL),
    Architecture(model_type="gemma4_unified", kind=CAUSAL),
    Architecture(model_type="gemma4_unified_text", kind=CAUSAL),
    Architecture(model_type="git", kind=CAUSAL),
    Architecture(model_type="glm", kind=CAUSAL),
    Architecture(model_type="glm4", kind=CAUSAL),
    Architecture(model_type="glm4_moe", kind=CAUSAL),
    Architecture(model_type="glm4_moe_lite", kind=CAUSAL, sizes=_LATENT),
    Architecture(model_type="got_ocr2", kind=CAUSAL),
    Architecture(model_type="gpt-sw3", kind=CAUSAL),
    Architecture(model_type="gpt2", kind=CAUSAL),
    Architecture(model_type="gpt_bigcode", kind=CAUSAL),
    Architecture(model_type="gpt_neox", kind=CAUSAL),
    Architecture(model_type="gpt_neox_japanese", kind=CAUSAL),
    Architecture(model_type="gpt_oss", kind=CAUSAL),
    Architecture(model_type="granite", kind=CAUSAL),
    Architecture(model_type="granite_swa", kind=CAUSAL),
    Architecture(model_type="granitemoe", kind=CAUSAL),
    Architecture(model_type="granitemoe_swa", kind=CAUSAL),
    Architecture(model_type="granitemoeshared", kind=CAUSAL),
    Architecture(model_type="hrm_text", kind=CAUSAL),
    Architecture(model_type="hy_v3", kind=CAUSAL),
    Architecture(model_type="hyperclovax", kind=CAUSAL),
    Architecture(model_type="inkling2_text", kind=CAUSAL),
    Architecture(model_type="inkling_text", kind=CAUSAL),
    Architecture(model_type="internlm3", kind=CAUSAL),
    Architecture(model_type="iquestcoder", kind=CAUSAL),
    Architecture(model_type="jais2", kind=CAUSAL),
    Architecture(model_type="jamba", kind=CAUSAL),
    Architecture(model_type="jetmoe", kind=CAUSAL),
    Architecture(model_type="kimi_linear", kind=CAUSAL),
    Architecture(model_type="kolibri1", kind=CAUSAL),
    Architecture(model_type="laguna", kind=CAUSAL),
    Architecture(model_type="lfm2", kind=CAUSAL),
    Architecture(model_type="lfm3", kind=CAUSAL),
    Architecture(model_type="llama", kind=CAUSAL),
    Architecture(model_type="llama4", kind=CAUSAL),
    Architecture(model_type="llama4_text", kind=CAUSAL),
    Architecture(model_type="mamba", kind=CAUSAL),
    Architecture(model_type="marian", kind=CAUSAL),
    Architecture(model_type="mbart", kind=CAUSAL),
    Architecture(model_type="megatron-bert", kind=CAUSAL),
    Architecture(model_type="mellum", kind=CAUSAL),
    Architecture(model_type="mimo_v2_flash", kind=CAUSAL),
    Architecture(model_type="minimax", kind=CAUSAL),
    Architecture(model_type="minimax_m2", kind=CAUSAL),
    Architecture(model_type="minimax_m3_vl_text", kind=CAUSAL),
    Architecture(model_type="ministral3", kind=CAUSAL),
    Architecture(model_type="mistral", kind=CAUSAL),
    Architecture(model_type="mixtral", kind=CAUSAL),
    Architecture(model_type="mllama", kind=CAUSAL),
    Architecture(model_type="modernbert-decoder", kind=CAUSAL),
    Architecture(model_type="moshi", kind=CAUSAL),
    Architecture(model_type="moss_transcribe_diarize", kind=CAUSAL),
    Architecture(model_type="mpt", kind=CAUSAL),
    Architecture(model_type="mvp", kind=CAUSAL),
    Architecture(model_type="nanochat", kind=CAUSAL),
    Architecture(model_type="nemotron_h", kind=CAUSAL),
    Architecture(model_type="olmo", kind=CAUSAL),
    Architecture(model_type="olmo2", kind=CAUSAL),
    Architecture(model_type="olmo3", kind=CAUSAL),
    Architecture(model_type="olmo_hybrid", kind=CAUSAL),
    Architecture(model_type="olmoe", kind=CAUSAL),
    Architecture(model_type="openai-gpt", kind=CAUSAL),
    Architecture(model_type="opt", kind=CAUSAL),
    Architecture(model_type="pegasus", kind=CAUSAL),
    Architecture(model_type="persimmon", kind=CAUSAL),
    Architecture(model_type="phi", kind=CAUSAL),
    Architecture(model_type="phi3", kind=CAUSAL),
    Architecture(model_type="phimoe", kind=CAUSAL),
    Architecture(model_type="plbart", kind=CAUSAL),
    Architecture(model_type="qwen2", kind=CAUSAL),
    Architecture(model_type="qwen2_moe", kind=CAUSAL),
    Architecture(model_type="qwen3", kind=CAUSAL),
    Architecture(model_type="qwen3_5", kind=CAUSAL),
    Architecture(model_type="qwen3_5_moe", kind=CAUSAL),
    Architecture(model_type="qwen3_5_moe_text", kind=CAUSAL),
    Architecture(model_type="qwen3_5_text", kind=CAUSAL),
    Architecture(model_type="qwen3_moe", kind=CAUSAL),
    Architecture(model_type="qwen3_next", kind=CAUSAL),
    Architecture(model_type="qwen4_exp", kind=CAUSAL),
    Architecture(model_type="qwen4_exp_text", kind=CAUSAL),
    Architecture(model_type="recurrent_gemma", kind=CAUSAL),
    Architecture(model_type="rembert", kind=CAUSAL),
    Architecture(model_type="roberta", kind=CAUSAL),
    Architecture(model_type="roberta-prelayernorm", kind=CAUSAL),
    Architecture(model_type="roformer", kind=CAUSAL),
    Architecture(model_type="rwkv", kind=CAUSAL),
    Architecture(model_type="seed_oss", kind=CAUSAL),
    Architecture(model_type="smollm3", kind=CAUSAL),
    Architecture(model_type="solar_open", kind=CAUSAL),
    Architecture(model_type="stablelm", kind=CAUSAL),
    Architecture(model_type="starcoder2", kind=CAUSAL),
    Architecture(model_type="trocr", kind=CAUSAL),
    Architecture(model_type="vaultgemma", kind=CAUSAL),
    Architecture(model_type="whisper", kind=CAUSAL),
    Architecture(model_type="xglm", kind=CAUSAL),
    Architecture(model_type="xlm", kind=CAUSAL),
    Architecture(model_type="xlm-roberta", kind=CAUSAL),
    Architecture(model_type="xlm-roberta-xl", kind=CAUSAL),
    Architecture(model_type="xlstm", kind=CAUSAL),
    # Keys and values come out of one narrow projection: one key head for each query head, of two parts.
    Architecture(
        model_type="deepseek_v2", kind=CAUSAL, sizes=_LATENT | {"topk_method": "greedy", "num_experts_per_tok": 2}
    ),
    Architecture(model_type="deepseek_v3", kind=CAUSAL, sizes=_LATENT | {"n_group": 2, "topk_group": 1}),
    Architecture(model_type="youtu", kind=CAUSAL, sizes=_LATENT),
    Architecture(model_type="minicpm3", kind=CAUSAL, sizes=_LATENT),
    Architecture(model_type="longcat_flash", kind=CAUSAL, sizes=_LATENT),
    # Recurrent layers: heads times their width has to be the inner width.
    Architecture(model_type="mamba2", kind=CAUSAL, sizes={"num_heads": 8, "head_dim": 8, "n_groups": 1}),
    Architecture(model_type="bamba", kind=CAUSAL, sizes={"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}),
    Architecture(
        model_type="granitemoehybrid",
        kind=CAUSAL,
        sizes={"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "layer_types": ["mamba", "attention"]},
    ),
    Architecture(model_type="gptj", kind=CAUSAL, sizes={"rotary_dim": 4}),
    Architecture(model_type="codegen", kind=CAUSAL, sizes={"rotary_dim": 4}),
    Architecture(model_type="helium", kind=CAUSAL, sizes={"head_dim": 8}),
    Architecture(model_type="hunyuan_v1_dense", kind=CAUSAL, sizes={"head_dim": 8}),
    Architecture(model_type="hunyuan_v1_moe", kind=CAUSAL, sizes={"head_dim": 8}),
    Architecture(model_type="ministral", kind=CAUSAL, sizes={"head_dim": 8}),
    Architecture(model_type="nemotron", kind=CAUSAL, sizes={"head_dim": 8, "num_key_value_heads": 2}),
    Architecture(model_type="gpt_neo", kind=CAUSAL, sizes={"attention_types": [[["global", "local"], 1]]}),
    Architecture(model_type="zaya", kind=CAUSAL, sizes={"num_experts_per_tok": 1}),
    Architecture(model_type="albert", kind=ENCODER),
    Architecture(model_type="bart", kind=ENCODER),
    Architecture(model_type="bert", kind=ENCODER),
    Architecture(model_type="big_bird", kind=ENCODER),
    Architecture(model_type="camembert", kind=ENCODER),
    Architecture(model_type="convbert", kind=ENCODER),
    Architecture(model_type="data2vec-text", kind=ENCODER),
    Architecture(model_type="deberta", kind=ENCODER),
    Architecture(model_type="deberta-v2", kind=ENCODER),
    Architecture(model_type="distilbert", kind=ENCODER),
    Architecture(model_type="electra", kind=ENCODER),
    Architecture(model_type="ernie", kind=ENCODER),
    Architecture(model_type="eurobert", kind=ENCODER),
    Architecture(model_type="flaubert", kind=ENCODER),
    Architecture(model_type="fnet", kind=UNMASKED),
    Architecture(model_type="gte", kind=ENCODER),
    Architecture(model_type="ibert", kind=ENCODER),
    Architecture(model_type="jina_embeddings_v3", kind=ENCODER),
    Architecture(model_type="layoutlm", kind=ENCODER),
    Architecture(model_type="longformer", kind=ENCODER),
    Architecture(model_type="mbart", kind=ENCODER),
    Architecture(model_type="megatron-bert", kind=ENCODER),
    Architecture(model_type="modernbert", kind=ENCODER),
    Architecture(model_type="modernvbert", kind=ENCODER),
    Architecture(model_type="mpnet", kind=ENCODER),
    Architecture(model_type="mra", kind=ENCODER),
    Architecture(model_type="mvp", kind=ENCODER),
    Architecture(model_type="neomme", kind=ENCODER),
    Architecture(model_type="nomic_bert", kind=ENCODER),
    Architecture(model_type="nystromformer", kind=ENCODER),
    Architecture(model_type="rembert", kind=ENCODER),
    Architecture(model_type="roberta", kind=ENCODER),
    Architecture(model_type="roberta-prelayernorm", kind=ENCODER),
    Architecture(model_type="roformer", kind=ENCODER),
    Architecture(model_type="tapas", kind=ENCODER),
    Architecture(model_type="ultrabert", kind=ENCODER),
    Architecture(model_type="ultravbert", kind=ENCODER),
    Architecture(model_type="xlm", kind=ENCODER),
    Architecture(model_type="xlm-roberta", kind=ENCODER),
    Architecture(model_type="xlm-roberta-xl", kind=ENCODER),
    Architecture(model_type="yoso", kind=ENCODER),
    Architecture(model_type="audioflamingo3", kind=HEARING),
    Architecture(model_type="bart", kind=SEQ2SEQ),
    Architecture(model_type="bigbird_pegasus", kind=SEQ2SEQ),
    Architecture(model_type="blenderbot", kind=SEQ2SEQ),
    Architecture(model_type="blenderbot-small", kind=SEQ2SEQ),
    Architecture(model_type="encoder-decoder", kind=SEQ2SEQ),
    Architecture(model_type="fsmt", kind=SEQ2SEQ),
    Architecture(model_type="glmasr", kind=HEARING),
    Architecture(model_type="granite_speech", kind=HEARING),
    Architecture(model_type="granite_speech_plus", kind=HEARING),
    Architecture(model_type="led", kind=SEQ2SEQ),
    Architecture(model_type="longt5", kind=MASKED_SEQ2SEQ),
    Architecture(model_type="m2m_100", kind=SEQ2SEQ),
    Architecture(model_type="marian", kind=SEQ2SEQ),
    Architecture(model_type="mbart", kind=SEQ2SEQ),
    Architecture(model_type="moss_transcribe_diarize", kind=HEARING),
    Architecture(model_type="mt5", kind=SEQ2SEQ),
    Architecture(model_type="musicflamingo", kind=HEARING),
    Architecture(model_type="mvp", kind=SEQ2SEQ),
    Architecture(model_type="nllb-moe", kind=SEQ2SEQ),
    Architecture(model_type="pegasus", kind=SEQ2SEQ),
    Architecture(model_type="pegasus_x", kind=SEQ2SEQ),
    Architecture(model_type="plbart", kind=SEQ2SEQ),
    Architecture(model_type="qwen2_audio", kind=HEARING),
    Architecture(model_type="qwen3_asr", kind=HEARING),
    Architecture(model_type="seamless_m4t", kind=SEQ2SEQ),
    Architecture(model_type="seamless_m4t_v2", kind=SEQ2SEQ),
    Architecture(model_type="switch_transformers", kind=MASKED_SEQ2SEQ),
    Architecture(model_type="t5", kind=SEQ2SEQ),
    Architecture(model_type="t5gemma", kind=SEQ2SEQ),
    Architecture(model_type="t5gemma2", kind=SEQ2SEQ),
    Architecture(model_type="umt5", kind=SEQ2SEQ),
    Architecture(model_type="voxtral", kind=HEARING),
    Architecture(model_type="beit", kind=VISION),
    Architecture(model_type="clip", kind=VISION),
    Architecture(model_type="data2vec-vision", kind=VISION),
    Architecture(model_type="dinov2", kind=VISION),
    Architecture(model_type="dinov2_with_registers", kind=VISION),
    Architecture(model_type="ijepa", kind=VISION),
    Architecture(model_type="metaclip_2", kind=VISION),
    Architecture(model_type="mobilenet_v1", kind=VISION),
    Architecture(model_type="mobilenet_v2", kind=VISION),
    Architecture(model_type="mobilevit", kind=VISION),
    Architecture(model_type="pp_lcnet", kind=VISION),
    Architecture(model_type="pvt_v2", kind=VISION),
    Architecture(model_type="segformer", kind=VISION),
    Architecture(model_type="siglip", kind=VISION),
    Architecture(model_type="swiftformer", kind=VISION),
    Architecture(model_type="vit", kind=VISION),
    Architecture(model_type="vit_msn", kind=VISION),
    Architecture(model_type="convnext", kind=LARGER_VISION, sizes=_PYRAMID | {"num_stages": 2}),
    Architecture(model_type="convnextv2", kind=LARGER_VISION, sizes=_PYRAMID | {"num_stages": 2}),
    Architecture(model_type="resnet", kind=LARGER_VISION, sizes=_PYRAMID | {"embedding_size": 16}),
    Architecture(model_type="regnet", kind=LARGER_VISION, sizes=_PYRAMID | {"embedding_size": 16, "groups_width": 8}),
    Architecture(model_type="poolformer", kind=LARGER_VISION),
    Architecture(model_type="bit", kind=LARGER_VISION, sizes=_PYRAMID | {"num_groups": 4}),
    Architecture(model_type="swin", kind=LARGER_VISION, sizes=_WINDOWS),
    Architecture(model_type="wav2vec2", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="hubert", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="wavlm", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="unispeech", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="unispeech-sat", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="data2vec-audio", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="sew", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="whisper", kind=TRANSCRIPTION, sizes={"max_source_positions": 20}),
    Architecture(model_type="clip", kind=PAIRS),
    Architecture(model_type="siglip", kind=PAIRS),
    Architecture(model_type="chinese_clip", kind=PAIRS),
    Architecture(model_type="altclip", kind=PAIRS),
    Architecture(model_type="efficientnet", kind=LARGER_VISION),
    Architecture(model_type="hgnet_v2", kind=LARGER_VISION),
    Architecture(model_type="textnet", kind=LARGER_VISION),
    Architecture(model_type="cvt", kind=LARGER_VISION),
    Architecture(model_type="focalnet", kind=LARGER_VISION),
    Architecture(model_type="luke", kind=EMBEDDER),
    Architecture(model_type="markuplm", kind=EMBEDDER),
    Architecture(model_type="mobilebert", kind=EMBEDDER),
    Architecture(model_type="splinter", kind=EMBEDDER),
    Architecture(model_type="canine", kind=EMBEDDER),
    Architecture(model_type="mpnet", kind=EMBEDDER),
    Architecture(model_type="dpr", kind=EMBEDDER),
    Architecture(model_type="roc_bert", kind=EMBEDDER),
    Architecture(model_type="visual_bert", kind=EMBEDDER),
    Architecture(model_type="biogpt", kind=EMBEDDER),
    Architecture(model_type="bert", kind=TAGGER),
    Architecture(model_type="deberta-v2", kind=TAGGER),
    Architecture(model_type="llama", kind=TAGGER),
    Architecture(model_type="mobilebert", kind=TAGGER),
    Architecture(model_type="mobilebert", kind=CLASSIFIER),
    Architecture(model_type="perceiver", kind=CLASSIFIER),
    Architecture(model_type="bert", kind=ANSWERER),
    Architecture(model_type="luke", kind=ANSWERER),
    Architecture(model_type="splinter", kind=ANSWERER),
    Architecture(model_type="mobilebert", kind=ANSWERER),
    Architecture(model_type="yolos", kind=DETECTION),
    Architecture(model_type="segformer", kind=SEGMENTATION),
    Architecture(model_type="mobilenet_v2", kind=SEGMENTATION),
    Architecture(model_type="mobilevit", kind=SEGMENTATION),
    Architecture(model_type="glpn", kind=DEPTH),
    Architecture(model_type="deepseek_v4", kind=CAUSAL),
    Architecture(model_type="hy_v4", kind=CAUSAL),
    Architecture(model_type="lfm2_moe", kind=CAUSAL, sizes={"layer_types": ["conv", "full_attention"]}),
    Architecture(model_type="phi4_multimodal", kind=CAUSAL),
    Architecture(model_type="squeezebert", kind=ENCODER, sizes={"embedding_size": 32}),
    Architecture(model_type="layoutlmv3", kind=EMBEDDER, sizes={"coordinate_size": 6, "shape_size": 4}),
    Architecture(model_type="lilt", kind=EMBEDDER, sizes={"hidden_size": 48, "channel_shrink_ratio": 4}),
    Architecture(model_type="hiera", kind=USUAL_BACKBONE),
    Architecture(model_type="swinv2", kind=LARGER_BACKBONE, sizes=_WINDOWS),
    Architecture(model_type="dinov3_vit", kind=BACKBONE),
    Architecture(model_type="dinov3_convnext", kind=LARGER_BACKBONE),
    Architecture(model_type="imagegpt", kind=PIXELS_AS_TOKENS),
    Architecture(model_type="vitdet", kind=BACKBONE),
    Architecture(model_type="aimv2", kind=PAIRS),
    Architecture(model_type="clipseg", kind=PAIRS),
    Architecture(model_type="blip", kind=PAIRS),
    Architecture(model_type="groupvit", kind=PAIRS),
    Architecture(model_type="owlvit", kind=PAIRS),
    Architecture(model_type="owlv2", kind=PAIRS),
    Architecture(model_type="vision-text-dual-encoder", kind=PAIRS),
    Architecture(model_type="llava", kind=SEEING),
    Architecture(model_type="llava_next", kind=SEEING),
    Architecture(model_type="llava_onevision", kind=SEEING),
    Architecture(model_type="qwen2_vl", kind=SEEING, sizes=_THREE_POSITIONS),
    Architecture(model_type="qwen2_5_vl", kind=SEEING, sizes=_THREE_POSITIONS),
    Architecture(model_type="qwen3_vl", kind=SEEING),
    Architecture(model_type="qwen3_vl_moe", kind=SEEING),
    Architecture(model_type="paligemma", kind=SEEING),
    Architecture(model_type="idefics2", kind=SEEING),
    Architecture(model_type="idefics3", kind=SEEING),
    Architecture(model_type="smolvlm", kind=SEEING),
    Architecture(model_type="internvl", kind=SEEING),
    Architecture(model_type="mistral3", kind=SEEING),
    Architecture(model_type="aya_vision", kind=SEEING),
    Architecture(model_type="janus", kind=SEEING),
    Architecture(model_type="ovis2", kind=SEEING),
    Architecture(model_type="lfm2_vl", kind=SEEING),
    Architecture(model_type="kosmos-2.5", kind=SEEING),
    Architecture(model_type="timesformer", kind=VIDEO),
    Architecture(model_type="vjepa2", kind=NAMED_VIDEO),
    Architecture(model_type="wav2vec2-conformer", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="sew-d", kind=SPEECH, sizes=_WAVE_CONVOLUTIONS),
    Architecture(model_type="wav2vec2-bert", kind=STACKED_FRAMES),
    Architecture(model_type="parakeet_encoder", kind=FRAMES),
    Architecture(model_type="audio-spectrogram-transformer", kind=SPECTROGRAM),
    Architecture(model_type="dac", kind=CODEC),
    Architecture(model_type="patchtsmixer", kind=FORECAST),
    Architecture(model_type="detr", kind=DETECTION, sizes=_DETECTOR | {"encoder_layers": 1, "decoder_layers": 1}),
    Architecture(model_type="conditional_detr", kind=DETECTION, sizes=_DETECTOR),
    Architecture(model_type="dab-detr", kind=DETECTION, sizes=_DETECTOR),
    Architecture(model_type="table-transformer", kind=DETECTION, sizes=_DETECTOR),
    Architecture(
        model_type="rt_detr",
        kind=DETECTION,
        sizes={
            "backbone_config": _RESNET
            | {"model_type": "rt_detr_resnet", "out_features": ["stage2", "stage3", "stage4"]},
            "encoder_in_channels": [16, 24, 32],
            "encoder_hidden_dim": 32,
            "d_model": 32,
            "decoder_in_channels": [32, 32, 32],
            "num_queries": 5,
            "num_denoising": 0,
        },
    ),
    Architecture(
        model_type="upernet",
        kind=SEGMENTATION,
        sizes={
            "backbone_config": _RESNET | {"out_features": ["stage1", "stage2", "stage3", "stage4"]},
            "pool_scales": [1, 2],
            "hidden_size": 32,
            "use_auxiliary_head": False,
        },
    ),
    Architecture(model_type="dpt", kind=SEGMENTATION, sizes=_DENSE_PREDICTOR),
    Architecture(model_type="dpt", kind=DEPTH, sizes=_DENSE_PREDICTOR),
    Architecture(model_type="superpoint", kind=KEYPOINTS),
    Architecture(
        model_type="UNet2DModel",
        kind=DENOISER,
        sizes=_UNET
        | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
    ),
    Architecture(model_type="UNet2DConditionModel", kind=PROMPTED_DENOISER, sizes=_UNET | _DOWN_UP),
    Architecture(model_type="AutoencoderKL", kind=AUTOENCODER, sizes=_ENCODER),
    Architecture(model_type="VQModel", kind=AUTOENCODER, sizes=_ENCODER | {"num_vq_embeddings": 16}),
    Architecture(
        model_type="AutoencoderTiny",
        kind=AUTOENCODER,
        sizes={
            "encoder_block_out_channels": (16, 16),
            "decoder_block_out_channels": (16, 16),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
    ),
    Architecture(
        model_type="DiTTransformer2DModel",
        kind=LABELLED_PATCHES,
        sizes=_HEADS | _PATCHES | {"num_embeds_ada_norm": 8, "norm_num_groups": 8},
    ),
    Architecture(
        model_type="PixArtTransformer2DModel",
        kind=PROMPTED_PATCHES,
        sizes=_HEADS
        | _PATCHES
        | {"cross_attention_dim": 16, "caption_channels": 16, "use_additional_conditions": False},
    ),
    Architecture(
        model_type="SD3Transformer2DModel",
        kind=POOLED_PATCHES,
        sizes=_HEADS
        | _PATCHES
        | {"joint_attention_dim": 16, "caption_projection_dim": 16, "pooled_projection_dim": 16, "out_channels": 4},
    ),
    Architecture(
        model_type="SanaTransformer2DModel",
        kind=PROMPTED_PATCHES,
        sizes=_HEADS
        | {
            "sample_size": 8,
            "patch_size": 1,
            "out_channels": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": 16,
        },
    ),
    Architecture(
        model_type="AuraFlowTransformer2DModel",
        kind=PROMPTED_PATCHES,
        sizes=_PATCHES
        | {
            "in_channels": 4,
            "out_channels": 4,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pos_embed_max_size": 16,
        },
    ),
    Architecture(
        model_type="FluxTransformer2DModel",
        kind=FLAT_PATCHES,
        sizes=_HEADS
        | {
            "num_layers": 1,
            "num_single_layers": 1,
            "joint_attention_dim": 16,
            "pooled_projection_dim": 16,
            "axes_dims_rope": (2, 2, 4),
        },
    ),
)


def find_architecture(name: str) -> Architecture:
    """By kind and model type: "causal/llama"."""
    return next(one for one in ARCHITECTURES if one.name == name)
