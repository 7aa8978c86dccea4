"""Submits Llamas of growing size out of sparse safetensors, and prints the most memory that the client took.

Run from the repository's root: `.venv/bin/python -m benchmarks.submit_checkpoint [--gib 1 4]`. Aim: at most 1.5 GB,
whatever the size. The planner is a process of its own; it writes what it is sent, so that its disk has to hold it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from planner.client import PlannerClient, export_checkpoint
from planner.client.local_cluster import LocalCluster

WIDTH, INNER, VOCABULARY = 4096, 11008, 32000
LAYER_BYTES = 2 * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER + 2 * WIDTH)
LAYERS_OF_A_SHARD = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 4])
    parser.add_argument("--one", type=float, help="one size, in this process")
    options = parser.parse_args()
    if options.one is not None:
        submit(options.one)
        return
    for size in options.gib:
        subprocess.run([sys.executable, "-m", "benchmarks.submit_checkpoint", "--one", str(size)], check=True)


def submit(gib: float) -> None:
    layers = max(1, round(gib * 2**30 / LAYER_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        stored_bytes = write_sparse(Path(folder), layers)
        with LocalCluster(data_dir=Path(folder) / "planner", memory_bytes=()) as cluster:
            started = time.perf_counter()
            checkpoint = export_checkpoint(folder)
            exported_bytes, exported_seconds = peak_bytes(), time.perf_counter() - started
            with PlannerClient(cluster.planner_address) as client:
                record = client.submit(checkpoint)
            seconds = time.perf_counter() - started
    assert record.deployable, record.not_deployable_reason
    print(
        f"{layers:3} layers, {stored_bytes / 2**30:5.1f} GiB: exported in {exported_seconds:.1f} s, peak "
        f"{exported_bytes / 2**20:.0f} MiB; submitted in {seconds:.1f} s, peak {peak_bytes() / 2**20:.0f} MiB"
    )


def write_sparse(folder: Path, layers: int) -> int:
    """config.json, and files of zeros that take no disk."""
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_attention_heads=32,
        vocab_size=VOCABULARY,
        dtype="bfloat16",
        architectures=[LlamaForCausalLM.__name__],
    )
    config.save_pretrained(folder)
    ends = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "lm_head.weight": (VOCABULARY, WIDTH)}
    shards = [ends | {"model.norm.weight": (WIDTH,)}]
    for first in range(0, layers, LAYERS_OF_A_SHARD):
        shards.append({})
        for layer in range(first, min(layers, first + LAYERS_OF_A_SHARD)):
            shards[-1] |= {f"model.layers.{layer}.{name}": dims for name, dims in layer_shapes().items()}
    return sum(write_shard(folder / f"model-{index}.safetensors", shard) for index, shard in enumerate(shards))


def layer_shapes() -> dict[str, tuple[int, ...]]:
    attention = {f"self_attn.{letter}_proj.weight": (WIDTH, WIDTH) for letter in "qkvo"}
    inner = {f"mlp.{name}_proj.weight": (INNER, WIDTH) for name in ("gate", "up")}
    norms = {f"{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    return attention | inner | norms | {"mlp.down_proj.weight": (WIDTH, INNER)}


def write_shard(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    header, end = {}, 0
    for name, dims in shapes.items():
        begin, end = end, end + 2 * dims[0] * (dims[1] if len(dims) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + end)
    return end


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
