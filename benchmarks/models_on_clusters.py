"""Mode optimal on models as people export them, at full size and without weights, onto clusters that people have.

Run from the repository's root: `.venv/bin/python -m benchmarks.models_on_clusters [MODEL ...] [--objective memory]`.
Prints each plan's stages, value, the gap to the bound that it proves, and CPU seconds. Costs are those of device kinds,
for the batch of two that models are exported with. An export takes some ten seconds. A training step (`--objective
step_time`) is of eight microbatches under 1F1B, with Adam.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.export import Dim

from planner.client.export import export
from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.errors import Infeasible
from planner.graph.ir import Graph
from planner.partition.objective import Objective, Training
from planner.plan.options import OptimalMode, PlanOptions
from planner.planning import make_plan

GIBIBYTES = {"h100": 80, "a100": 80, "v100": 32, "l4": 24}
# Between devices of a host that have NVLink, between others of a host, and between hosts.
NVLINK, BUS, NETWORK = (LinkSpeed(bytes_per_second=rate, latency_seconds=s) for rate, s in
                        ((300e9, 5e-6), (16e9, 5e-6), (12.5e9, 2e-5)))  # fmt: skip
CLUSTERS = {
    "8 h100": [["h100"] * 8],
    "4 unlike": [["h100", "a100", "a100", "l4"]],
    "2 hosts": [["h100"] * 8, ["a100"] * 8],
    "4 hosts": [["h100"] * 4 + ["a100"] * 4, ["a100"] * 8, ["l4"] * 8, ["v100"] * 8],
}
BATCH, TOKENS, OUTPUT_TOKENS = 2, 512, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=[*MODELS], help=", ".join(MODELS))
    choices = [objective.value for objective in Objective]
    parser.add_argument("--objective", choices=choices, default=Objective.THROUGHPUT.value)
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.models} - {*MODELS}):
        parser.error(f"no model is called {unknown[0]!r}; there are {', '.join(MODELS)}")
    objective = Objective(arguments.objective)
    training = Training() if objective is Objective.STEP_TIME else None
    options = PlanOptions(mode=OptimalMode(), objective=objective, training=training)
    print(f"{'model':<12}{'nodes':>7}  {'cluster':<10}{'stages':>7}{'value':>12}{'gap':>9}{'cpu s':>8}")
    gaps = list[float]()
    for name in arguments.models:
        graph = exported(name, is_trained=training is not None)
        for cluster, hosts in CLUSTERS.items():
            started = time.process_time()
            try:
                plan = make_plan(graph, "0" * 64, inventory(hosts), options)
            except Infeasible:
                print(f"{name:<12}{len(graph.nodes):>7}  {cluster:<10} does not fit", flush=True)
                continue
            seconds = time.process_time() - started
            gaps.append(plan.gap or 0.0)
            print(
                f"{name:<12}{len(graph.nodes):>7}  {cluster:<10}{len(plan.stages):>7}{plan.objective_value:>12.4g}"
                f"{gaps[-1]:>9.2%}{seconds:>8.1f}",
                flush=True,
            )
    print(f"median {np.median(gaps):.2%}, 95th percentile {np.percentile(gaps, 95):.2%}")


def inventory(hosts: list[list[str]]) -> Inventory:
    devices = [
        Device(id=f"{kind}-{host}-{index}", kind=kind, host=f"host{host}", memory_bytes=GIBIBYTES[kind] << 30)
        for host, kinds in enumerate(hosts)
        for index, kind in enumerate(kinds)
    ]
    links = {(one.id, other.id): _link(one, other) for one in devices for other in devices if one is not other}
    return Inventory(devices=tuple(devices), links=links)


def _link(one: Device, other: Device) -> LinkSpeed:
    if one.host != other.host:
        return NETWORK
    return NVLINK if {one.kind, other.kind} <= {"h100", "a100"} else BUS


def exported(name: str, *, is_trained: bool = False) -> Graph:
    make, inputs = MODELS[name]
    with torch.device("meta"):
        module, example = make().to(torch.bfloat16).train(is_trained), inputs()
    batch = {0: Dim("batch", min=1, max=1024)}
    shapes = {key: batch if isinstance(value, torch.Tensor) else None for key, value in example.items()}
    return export(module, (), example, dynamic_shapes=shapes, name=name).graph


def _ids(length: int = TOKENS) -> torch.Tensor:
    return torch.zeros(BATCH, length, dtype=torch.int64)


def _words() -> dict[str, Any]:
    return {"input_ids": _ids(), "use_cache": False}


def _sentences() -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(OUTPUT_TOKENS)}


def _speech() -> dict[str, Any]:
    features = torch.zeros(BATCH, 128, 3000, dtype=torch.bfloat16)
    return {"input_features": features, "decoder_input_ids": _ids(OUTPUT_TOKENS)}


def _pictures() -> dict[str, Any]:
    return {"pixel_values": torch.zeros(BATCH, 3, 224, 224, dtype=torch.bfloat16)}


def _captions() -> dict[str, Any]:
    return {**_pictures(), "input_ids": _ids(77), "attention_mask": _ids(77) + 1}


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=32,
            hidden_size=4096,
            intermediate_size=14336,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
        )
    )


def _mixtral() -> nn.Module:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig())


def _deepseek() -> nn.Module:
    return transformers.DeepseekV2ForCausalLM(
        transformers.DeepseekV2Config(
            num_hidden_layers=27,
            hidden_size=2048,
            intermediate_size=10944,
            moe_intermediate_size=1408,
            n_routed_experts=64,
            num_experts_per_tok=6,
            n_shared_experts=2,
            num_attention_heads=16,
            num_key_value_heads=16,
            q_lora_rank=None,
        )
    )


def _t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=2048,
            d_ff=5120,
            num_layers=24,
            num_decoder_layers=24,
            num_heads=32,
            feed_forward_proj="gated-gelu",
            use_cache=False,
        )
    )


def _whisper() -> nn.Module:
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            d_model=1280,
            encoder_layers=32,
            decoder_layers=32,
            encoder_attention_heads=20,
            decoder_attention_heads=20,
            encoder_ffn_dim=5120,
            decoder_ffn_dim=5120,
            num_mel_bins=128,
            use_cache=False,
        )
    )


def _vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=16, patch_size=14
        )
    )


def _clip() -> nn.Module:
    text = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    vision = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config={**vision, "patch_size": 14}, projection_dim=1024)
    )


def _resnet() -> nn.Module:
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(depths=[3, 8, 36, 3]))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]]]] = {
    "llama-8b": (_llama, _words),
    "mixtral": (_mixtral, _words),
    "deepseek": (_deepseek, _words),
    "t5-xl": (_t5, _sentences),
    "whisper": (_whisper, _speech),
    "vit-huge": (_vit, _pictures),
    "clip": (_clip, _captions),
    "resnet-152": (_resnet, _pictures),
}


if __name__ == "__main__":
    main()
