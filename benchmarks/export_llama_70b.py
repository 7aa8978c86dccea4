"""Exports an 80-layer, 70 B-parameter Llama on the meta device, and prints the seconds and bytes that it takes.

Run from the repository's root: `.venv/bin/python -m benchmarks.export_llama_70b [--profile]`. Aim: under 60 s and 1 GB.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import time

import torch
from torch.export import Dim
from transformers import LlamaConfig, LlamaForCausalLM

from planner.client.export import export
from planner.wire.graph import graph_from_bytes, graph_to_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    module = llama(options.layers)
    ids = torch.zeros(2, 128, dtype=torch.int64, device="meta")
    shape = {0: Dim("batch", min=1, max=1024), 1: Dim("sequence", min=2, max=4096)}
    before_bytes = _peak_bytes()
    profile = cProfile.Profile()
    started = time.perf_counter()
    if options.profile:
        profile.enable()
    exported = export(
        module,
        kwargs={"input_ids": ids, "use_cache": False},
        dynamic_shapes={"input_ids": shape, "use_cache": None},
        name="llama-70b",
    )
    profile.disable()
    exported_seconds = time.perf_counter() - started
    grown_bytes = _peak_bytes() - before_bytes
    started = time.perf_counter()
    data = graph_to_bytes(exported.graph)
    written_seconds = time.perf_counter() - started
    started = time.perf_counter()
    graph_from_bytes(data)
    read_seconds = time.perf_counter() - started
    print(f"parameters      {sum(parameter.numel() for parameter in module.parameters()):,}")
    print(f"nodes           {len(exported.graph.nodes):,}")
    print(f"export          {exported_seconds:.1f} s, peak memory + {grown_bytes / 2**20:.0f} MiB")
    print(f"graph           {len(data):,} bytes, written in {written_seconds:.2f} s, read in {read_seconds:.2f} s")
    if options.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


def llama(layers: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
