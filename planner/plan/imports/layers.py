"""Formats that count the layers of one list: vLLM, Megatron-Core, llama.cpp, exo, DeepSpeed, nanotron and mlx-lm.

What runs before the first layer belongs to the first rank, what runs after the last to the rank of the head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.llama_cpp import MOST_SHARES
from planner.plan.exports.module_tree import list_layers, runs_around_layers
from planner.plan.imports.split import Split, split_into_stages

MOST_LAYERS = 100_000


def split_of_vllm(graph: Graph, text: str) -> Split:
    """VLLM_PP_LAYER_PARTITION, as vLLM 0.33 reads it (get_pp_indices): layers of each rank; the head is on the last."""
    counts = _integers(text, "24,40")
    return _by_counts(graph, counts)


def split_of_megatron(graph: Graph, text: str) -> Split:
    """--pipeline-model-parallel-layout, as Megatron-Core 0.19 reads it (PipelineParallelLayerLayout).

    Commas mean nothing; (x)*n, then x*n, repeat; | ends a stage. One stage for each rank: no virtual stages.
    """
    stages = _unrolled(text.replace(",", "")).split("|")
    letters = "".join(stages)
    if "m" in letters:
        raise OptionsError("the layout has m, a layer that predicts further tokens: no plan of one graph has it")
    if letters != f"E{'t' * letters.count('t')}L":
        raise OptionsError(f"layout {text[:80]!r}: needs E, then t for each layer, then L, with | between stages")
    return _by_counts(graph, [stage.count("t") for stage in stages])


def split_of_llama_cpp(graph: Graph, text: str) -> Split:
    """--tensor-split with all layers offloaded, as llama.cpp reads it (load_tensors; at 0c1e57098 of 2026).

    The head counts as one more layer; unit i of n goes to the first device whose share, summed up, exceeds i/n, in
    32-bit floating point. llama.cpp keeps the embedding's table on the CPU; here it is on the first device.
    """
    # Here, since every command about plans would wait for it.
    import numpy as np

    try:
        shares = np.asarray([float(part) for part in re.split("[,/]+", text)], dtype=np.float32)
    except ValueError:
        raise OptionsError(f"{text[:80]!r}: needs shares with commas between, such as 24,41") from None
    if len(shares) > MOST_SHARES:
        raise OptionsError(f"{len(shares)} shares: llama.cpp takes at most {MOST_SHARES}")
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
    """Each rank's layers from start_layer to before end_layer, as exo 0.3.70 has them (PipelineShardMetadata).

    exo's own state names them startLayer and endLayer, each shard under its class, in no order: deviceRank has it.
    """
    try:
        shards = [_fields_of_shard(shard) for shard in content]
        ranges = [(int(shard["startlayer"]), int(shard["endlayer"])) for shard in shards]
        ranks = [int(shard.get("devicerank", at)) for at, shard in enumerate(shards)]
        by_rank = sorted(zip(ranks, ranges, strict=True))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise OptionsError(
            'needs a list such as [{"start_layer": 0, "end_layer": 24}, …], a range for each rank'
        ) from None
    return _by_counts(graph, _counts_of_ranges([layer_range for _, layer_range in by_rank], "end_layer"))


def _fields_of_shard(shard: Any) -> dict[str, Any]:
    tagged = shard.get("PipelineShardMetadata", shard)
    return {name.replace("_", "").lower(): value for name, value in tagged.items()}


def split_of_deepspeed(graph: Graph, content: Any) -> Split:
    """PipelineModule.parts as DeepSpeed 0.19 has them: stage s runs layers parts[s] to before parts[s + 1].

    Of the list that it was made from, what runs before the graph's layers is one entry, and what runs after them one.
    """
    if not isinstance(content, list) or not _are_whole(content) or len(content) < 2 or content[0] != 0:
        raise OptionsError("needs a list such as [0, 25, 66]: where each stage's layers begin, and where the last end")
    counts = _counts_of_ranges(list(pairwise(content)), "the next stage's first")
    _, layers = list_layers(graph)
    around = runs_around_layers(graph)
    if sum(counts) != len(layers) + sum(around):
        raise OptionsError(
            f"the parts have {sum(counts)} layers, and the graph {len(layers) + sum(around)}: {len(layers)} numbered "
            f"ones, {sum(around)} for what runs before or after them"
        )
    stages = [stage for stage, count in enumerate(counts) for _ in range(count)]
    runs_before, runs_after = around
    if runs_before and stages[0] != 0:
        raise OptionsError(f"stage 0 runs nothing, {content[:8]}; leave it out")
    last = stages[-1]
    return _by_layers(graph, stages[runs_before : len(stages) - runs_after], last)


def split_of_nanotron(graph: Graph, content: Any) -> Split:
    """Each PipelineBlock's rank as nanotron 0.4 sets it (build_model): of embedding, decoder layers and head."""
    if not isinstance(content, dict) or content.keys() != {"embedding", "decoder", "head"}:
        raise OptionsError('needs an object such as {"embedding": 0, "decoder": [0, 0, 1, 1], "head": 1}')
    ranks = [content["embedding"], *_list(content["decoder"]), content["head"]]
    if not _are_whole(ranks) or any(not 0 <= after - before <= 1 for before, after in pairwise([0, *ranks])):
        raise OptionsError(f"ranks {ranks[:8]}: need whole numbers from 0 on, each the one before it or the next")
    path, layers = list_layers(graph)
    if len(ranks) - 2 != len(layers):
        raise OptionsError(
            f"the decoder has {len(ranks) - 2} layers, and the graph {len(layers)}: {path}.0 to {len(layers) - 1}"
        )
    return _by_layers(graph, ranks[1:-1], ranks[-1])


def split_of_mlx(graph: Graph, content: Any) -> Split:
    """How many layers each rank has, as mlx-lm 0.32 takes them, or its start_idx and end_idx (PipelineMixin.pipeline).

    Rank 0 has the last layers, and each one at least. mlx-lm runs embedding and head on every rank; here they run where
    their results are used.
    """
    if isinstance(content, list) and content and _are_whole(content):
        if min(content) < 1:
            raise OptionsError(f"split {content[:8]}: mlx-lm needs one layer at least on each rank")
        return _last_rank_first(_by_counts(graph, content[::-1]))
    try:
        by_rank = {int(one["rank"]): (int(one["start_idx"]), int(one["end_idx"])) for one in content}
    except (TypeError, KeyError, ValueError):
        raise OptionsError(
            'needs a list such as [40, 24] or [{"rank": 0, "start_idx": 24, "end_idx": 64}, …], of each rank\'s layers'
        ) from None
    if sorted(by_rank) != list(range(len(content))):
        raise OptionsError(f"ranks {sorted(by_rank)[:8]}: needs each of 0 to {len(content) - 1} once")
    ranges = [by_rank[rank] for rank in sorted(by_rank, reverse=True)]
    return _last_rank_first(_by_counts(graph, _counts_of_ranges(ranges, "end_idx")))


def _last_rank_first(split: Split) -> Split:
    return Split(partition_of_node=split.partition_of_node, rank_of_partition=split.rank_of_partition[::-1])


def _counts_of_ranges(ranges: Sequence[tuple[int, int]], end_name: str) -> list[int]:
    """Raises OptionsError where one does not begin at the end of the one before it."""
    end = 0
    for start, stop in ranges:
        if start != end or stop < start:
            raise OptionsError(f"layers {start} to {stop} do not follow layer {end}; a range ends before {end_name}")
        end = stop
    return [stop - start for start, stop in ranges]


def _are_whole(numbers: Sequence[object]) -> bool:
    return all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


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
