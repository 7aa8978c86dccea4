"""Formats that count the layers of one list: vLLM, Megatron-Core, llama.cpp and exo.

What runs before the first layer belongs to the first rank, what runs after the last to the rank of the head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.module_tree import list_layers
from planner.plan.imports.split import Split, split_into_stages

MOST_LAYERS = 100_000


def split_of_vllm(graph: Graph, text: str) -> Split:
    """VLLM_PP_LAYER_PARTITION, as vLLM 0.10 reads it (get_pp_indices): layers of each rank; the head is on the last."""
    counts = _integers(text, "24,40")
    return _by_counts(graph, counts)


def split_of_megatron(graph: Graph, text: str) -> Split:
    """--pipeline-model-parallel-layout, as Megatron-Core 0.14 reads it (PipelineParallelLayerLayout.parse_str_to_list).

    Commas mean nothing; (x)*n, then x*n, repeat; | ends a stage. One stage for each rank: no virtual stages.
    """
    stages = _unrolled(text.replace(",", "").replace(" ", "")).split("|")
    letters = "".join(stages)
    if "m" in letters:
        raise OptionsError("the layout has m, a layer that predicts further tokens: no plan of one graph has it")
    if letters != f"E{'t' * letters.count('t')}L":
        raise OptionsError(f"layout {text[:80]!r}: needs E, then t for each layer, then L, with | between stages")
    return _by_counts(graph, [stage.count("t") for stage in stages])


def split_of_llama_cpp(graph: Graph, text: str) -> Split:
    """--tensor-split with all layers offloaded, as llama.cpp reads it since b4000 (load_tensors).

    The head counts as one more layer; unit i of n goes to the first device whose share, summed up, exceeds i/n, in
    32-bit floating point. llama.cpp keeps the embedding's table on the CPU; here it is on the first device.
    """
    try:
        shares = np.asarray([float(part) for part in text.split(",")], dtype=np.float32)
    except ValueError:
        raise OptionsError(f"{text[:80]!r}: needs shares with commas between, such as 24,41") from None
    if not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum():
        raise OptionsError(f"{text[:80]!r}: needs shares of 0 or more, not all 0")
    _, layers = list_layers(graph)
    ends = np.cumsum(shares, dtype=np.float32)
    units = np.arange(len(layers) + 1, dtype=np.float32) / np.float32(len(layers) + 1)
    ranks = np.searchsorted(ends / ends[-1], units, side="right").tolist()
    used = sorted(set(ranks))
    # A device whose share is too small for a layer runs nothing, and is still a device.
    split = _by_layers(graph, [used.index(rank) for rank in ranks[:-1]], used.index(ranks[-1]))
    return Split(partition_of_node=split.partition_of_node, rank_of_partition=tuple(used))


def split_of_exo(graph: Graph, content: Any) -> Split:
    """Each rank's layers from start_layer to before end_layer, as exo 1.0 has them (PipelineShardMetadata)."""
    try:
        ranges = [(int(shard["start_layer"]), int(shard["end_layer"])) for shard in content]
    except (TypeError, KeyError, ValueError):
        raise OptionsError(
            'needs a list such as [{"start_layer": 0, "end_layer": 24}, …], a range for each rank'
        ) from None
    end = 0
    for start, stop in ranges:
        if start != end or stop < start:
            raise OptionsError(f"layers {start} to {stop} do not follow layer {end}; a range ends before end_layer")
        end = stop
    return _by_counts(graph, [stop - start for start, stop in ranges])


def _by_counts(graph: Graph, counts: Sequence[int]) -> Split:
    path, layers = list_layers(graph)
    if sum(counts) != len(layers):
        raise OptionsError(
            f"the split has {sum(counts)} layers, and the graph {len(layers)}: {path}.0 to {len(layers) - 1}"
        )
    stages = [stage for stage, count in enumerate(counts) for _ in range(count)]
    return _by_layers(graph, stages, len(counts) - 1)


def _by_layers(graph: Graph, stage_of_layer: Sequence[int], stage_of_head: int) -> Split:
    """A node outside of the layers, and between them, runs where the latest layer before it does."""
    _, layers = list_layers(graph)
    stage_of_node: dict[int, int] = {}
    for stage, nodes in zip(stage_of_layer, layers, strict=True):
        stage_of_node.update(dict.fromkeys(nodes, stage))
    last = max(stage_of_node)
    stages, latest = [], 0
    for node in range(len(graph.nodes)):
        latest = stage_of_head if node > last else max(latest, stage_of_node.get(node, 0))
        stages.append(stage_of_node.get(node, latest))
    return split_into_stages(stages, max(stage_of_head, *stage_of_layer) + 1)


def _integers(text: str, example: str) -> list[int]:
    parts = text.replace(" ", "").split(",")
    if not all(re.fullmatch(r"\d{1,6}", part) for part in parts):
        raise OptionsError(f"{text[:80]!r}: needs whole numbers with commas between, such as {example}")
    return [int(part) for part in parts]


def _unrolled(text: str) -> str:
    """Raises OptionsError for what is none of Megatron's letters, or longer than any model."""
    for pattern in (r"\(([^()]+)\)\*(\d{1,6})", r"([Etm|L])\*(\d{1,6})"):
        parts, begin, length = [], 0, 0
        for match in re.finditer(pattern, text):
            length += len(match[1]) * int(match[2])
            if length > MOST_LAYERS:
                raise OptionsError(f"layout {text[:80]!r} has more than {MOST_LAYERS} layers")
            parts += [text[begin : match.start()], match[1] * int(match[2])]
            begin = match.end()
        text = "".join((*parts, text[begin:]))
    wrong = re.search(r"[^Etm|L]", text)
    if wrong:
        raise OptionsError(
            f"layout {text[:80]!r}: {wrong[0]!r} is none of E, t, m, L, |, and *n after one or after (…)"
        )
    return text
