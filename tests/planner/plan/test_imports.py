"""Other systems' cuts as splits of a graph: the way back from each export, and each system's own rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, product
from typing import Any

import pytest

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.deepspeed import deepspeed_parts
from planner.plan.exports.device_map import device_map
from planner.plan.exports.exo import exo_shards
from planner.plan.exports.llama_cpp import llama_cpp_tensor_split
from planner.plan.exports.megatron import megatron_layout
from planner.plan.exports.mlx import mlx_ranges
from planner.plan.exports.nanotron import nanotron_ranks
from planner.plan.exports.torch_pipelining import split_spec, torchtitan_parts
from planner.plan.exports.vllm import vllm_layer_partition
from planner.plan.imports.layers import (
    split_of_deepspeed,
    split_of_exo,
    split_of_llama_cpp,
    split_of_megatron,
    split_of_mlx,
    split_of_nanotron,
    split_of_vllm,
)
from planner.plan.imports.modules import split_of_device_map, split_of_parts, split_of_split_spec
from tests.builders.plans import plan_of
from tests.planner.plan.test_exports_by_hand import program

NUM_LAYERS = 6
MODULES = ("embed", *(f"h.{layer}.{part}" for layer in range(NUM_LAYERS) for part in "ab"), "norm", "head")
WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "vllm": (vllm_layer_partition, split_of_vllm),
    "megatron": (megatron_layout, split_of_megatron),
    "llama-cpp": (llama_cpp_tensor_split, split_of_llama_cpp),
    "exo": (exo_shards, split_of_exo),
    "deepspeed": (deepspeed_parts, split_of_deepspeed),
    "nanotron": (nanotron_ranks, split_of_nanotron),
    "mlx": (mlx_ranges, split_of_mlx),
    "torch-pipelining": (split_spec, split_of_split_spec),
    "torchtitan": (torchtitan_parts, split_of_parts),
    "device-map": (device_map, split_of_device_map),
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return program(*MODULES)


def stages_of(counts: tuple[int, ...]) -> list[int]:
    """The embedding before the first layer, what follows the last after it."""
    layers = [stage for stage, count in enumerate(counts) for _ in range(2 * count)]
    return [0, *layers, len(counts) - 1, len(counts) - 1]


def splits() -> Iterator[tuple[int, ...]]:
    for num_stages in (1, 2, 3):
        for counts in product(range(1, NUM_LAYERS + 1), repeat=num_stages):
            if sum(counts) == NUM_LAYERS:
                yield counts


@pytest.mark.parametrize("way", WAYS)
def test_every_split_between_layers_comes_back_from_its_export(graph: Graph, way: str) -> None:
    to_text, from_text = WAYS[way]
    for counts in splits():
        stages = stages_of(counts)
        split = from_text(graph, to_text(graph, plan_of(graph, stages)))
        ranks = [split.rank_of_partition[partition] for partition in split.partition_of_node]
        # The last layers of mlx-lm are on rank 0.
        assert ranks == ([len(counts) - 1 - stage for stage in stages] if way == "mlx" else stages)


def test_devices_of_the_ranks_in_their_order(graph: Graph) -> None:
    mode = split_of_vllm(graph, "2,4").mode(("b", "a", "c"))
    assert (mode.device_of_partition, list(mode.partition_of_node)) == (("b", "a"), stages_of((2, 4)))
    with pytest.raises(OptionsError, match="the split is over 2 devices, and there are 1: a"):
        split_of_vllm(graph, "2,4").mode(("a",))


def test_stages_without_layers_hold_what_is_around_them(graph: Graph) -> None:
    assert list(split_of_vllm(graph, "0,6,0").partition_of_node) == [0, *[1] * (2 * NUM_LAYERS), 2, 2]
    assert split_of_megatron(graph, "E|t*6|L") == split_of_vllm(graph, "0,6,0")
    with pytest.raises(OptionsError, match="stage 1 of the split runs nothing"):
        split_of_vllm(graph, "3,0,3")


@pytest.mark.parametrize(
    ("layout", "counts"),
    [("Ettt|tttL", (3, 3)), ("E(t|)*2,tt|ttL", (1, 1, 2, 2)), ("Et*2|(tt|)*1t*2L", (2, 2, 2)), ("E(tt)*3L", (6,))],
)
def test_layouts_of_megatron_are_unrolled(graph: Graph, layout: str, counts: tuple[int, ...]) -> None:
    assert list(split_of_megatron(graph, layout).partition_of_node) == stages_of(counts)


def llama_cpp_devices(shares: list[int], num_layers: int) -> list[int]:
    """Of each layer and of the head, in exact fractions: the first device whose summed share exceeds the unit's."""
    ends = [sum(shares[: device + 1]) for device in range(len(shares))]
    return [
        next(device for device, end in enumerate(ends) if end * (num_layers + 1) > unit * ends[-1])
        for unit in range(num_layers + 1)
    ]


@pytest.mark.parametrize("shares", [[1, 1], [3, 4], [1, 2, 4], [2, 5], [10, 1], [1, 10, 3], [0, 1]])
def test_shares_of_llama_cpp_are_rounded_as_it_rounds_them(graph: Graph, shares: list[int]) -> None:
    split = split_of_llama_cpp(graph, ",".join(map(str, shares)))
    ranks = [split.rank_of_partition[partition] for partition in split.partition_of_node]
    expected = llama_cpp_devices(shares, NUM_LAYERS)
    assert ranks[1:-2:2] == expected[:-1]
    assert ranks[-1] == expected[-1]


def test_whole_layers_of_any_model_reach_the_device_that_the_export_means() -> None:
    for num_layers in (12, 33, 61, 80):
        deep = program("embed", *(f"h.{layer}" for layer in range(num_layers)), "head")
        for first in range(1, num_layers):
            split = split_of_llama_cpp(deep, f"{first},{num_layers - first + 1}")
            assert list(split.partition_of_node) == [*[0] * (first + 1), *[1] * (num_layers - first + 1)]


def test_each_stage_of_deepspeed_runs_its_slice_of_the_list() -> None:
    """As PipelineModule builds it: layers[parts[stage] : parts[stage + 1]], of a list with or without other layers."""
    for modules, listed in (
        (MODULES, ["embed", *(f"h.{layer}" for layer in range(NUM_LAYERS)), "head"]),
        (tuple(str(layer) for layer in range(NUM_LAYERS)), [str(layer) for layer in range(NUM_LAYERS)]),
    ):
        sequence = program(*modules)
        num_before = len(listed) > NUM_LAYERS
        for counts in splits():
            stages = [0] * num_before + [stage for stage, count in enumerate(counts) for _ in range(count)]
            stages += [len(counts) - 1] * num_before
            of_nodes = [stages[listed.index(name if name in listed else _listed(name))] for name in modules]
            parts = deepspeed_parts(sequence, plan_of(sequence, of_nodes))
            built = [listed[parts[stage] : parts[stage + 1]] for stage in range(len(counts))]
            assert [stage for stage, layers in enumerate(built) for _ in layers] == stages
            assert list(chain(*built)) == listed


def _listed(name: str) -> str:
    """The entry of PipelineModule's list that runs a module which is no entry itself."""
    return name.rpartition(".")[0] if name.startswith("h.") else "head"


def test_each_rank_of_mlx_keeps_its_layers(graph: Graph) -> None:
    """As PipelineMixin.pipeline leaves them: cut at end_idx, nothing before start_idx, and the first layers last."""
    for counts in splits():
        ranges = mlx_ranges(graph, plan_of(graph, stages_of(counts)))
        layers_of_rank = []
        for layer_range in ranges:
            layers: list[int | None] = list(range(NUM_LAYERS))[: layer_range["end_idx"]]
            layers[: layer_range["start_idx"]] = [None] * layer_range["start_idx"]
            layers_of_rank.append([layer for layer in layers if layer is not None])
        assert list(chain(*reversed(layers_of_rank))) == list(range(NUM_LAYERS))
        assert [len(layers) for layers in reversed(layers_of_rank)] == list(counts)


def test_a_map_may_come_back_to_a_device_and_the_innermost_module_counts() -> None:
    graph = program("a", "b.x", "b.y", "", "c")
    split = split_of_device_map(graph, {"a": "cuda:1", "b": "cuda:0", "b.y": "cuda:1", "c": "cuda:0"})
    assert (split.partition_of_node, split.rank_of_partition) == ((0, 1, 2, 2, 3), (0, 1, 0, 1))
    whole = split_of_device_map(graph, {"": 0})
    assert (set(whole.partition_of_node), whole.rank_of_partition) == ({0}, (0,))


def test_what_a_whole_computes_between_its_parts_stays_with_the_part_before() -> None:
    graph = program("", "a", "", "b")
    assert split_of_parts(graph, [["a"], ["b"]]).partition_of_node == (0, 0, 0, 1)
    assert split_of_split_spec(graph, {"a": "end"}).partition_of_node == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("way", "content", "message"),
    [
        ("vllm", "2,3", r"the split has 5 layers, and the graph 6: h\.0 to 5"),
        ("vllm", "2,x", "needs whole numbers"),
        ("vllm", "", "needs whole numbers"),
        ("megatron", "t*6L", "needs E, then t for each layer, then L"),
        ("megatron", "Et*3|Lt*3", "needs E, then t for each layer, then L"),
        ("megatron", "Et*6|mL", "predicts further tokens"),
        ("megatron", "Ex*6L", "'x' is none of E, t, m, L"),
        ("megatron", "E(tt|)*999999L", "more than 100000 layers"),
        ("llama-cpp", "0,0", "not all 0"),
        ("llama-cpp", "1,-1", "0 or more"),
        ("llama-cpp", "nan,1", "0 or more"),
        ("llama-cpp", "half", "needs shares"),
        ("exo", [{"start_layer": 0, "end_layer": 2}, {"start_layer": 3, "end_layer": 6}], "do not follow layer 2"),
        ("exo", {"start_layer": 0}, "needs a list"),
        ("exo", 7, "needs a list"),
        ("deepspeed", [0, 4], "the parts have 4 layers, and the graph 8: 6 numbered ones, 2 for what runs before"),
        ("deepspeed", [0, 5, 4, 8], "do not follow layer 5"),
        ("deepspeed", [0, 0, 8], "stage 0 runs nothing"),
        ("deepspeed", [1, 8], "needs a list such as"),
        ("deepspeed", [0, 8.0], "needs a list such as"),
        ("deepspeed", "0,8", "needs a list such as"),
        ("nanotron", {"embedding": 0, "decoder": [0] * 5, "head": 0}, r"the decoder has 5 layers, and the graph 6"),
        ("nanotron", {"embedding": 0, "decoder": [0, 1, 0, 1, 1, 1], "head": 1}, "each the one before it or the next"),
        ("nanotron", {"embedding": 0, "decoder": [0, 2, 2, 2, 2, 2], "head": 2}, "each the one before it or the next"),
        ("nanotron", {"embedding": 0, "decoder": "x", "head": 2}, "need whole numbers"),
        ("nanotron", [0, 1], "needs an object such as"),
        (
            "mlx",
            [{"rank": 0, "start_idx": 0, "end_idx": 6}, {"rank": 0, "start_idx": 0, "end_idx": 6}],
            "each of 0 to 1",
        ),
        (
            "mlx",
            [{"rank": 0, "start_idx": 0, "end_idx": 3}, {"rank": 1, "start_idx": 3, "end_idx": 6}],
            "do not follow",
        ),
        ("mlx", [{"rank": 0}], "needs a list such as"),
        ("mlx", 7, "needs a list such as"),
        ("torch-pipelining", {"h.9": "beginning"}, r"no node of this graph runs in module 'h\.9'"),
        ("torch-pipelining", {"h.1": "middle"}, "to beginning or end"),
        ("torchtitan", [["embed", "h.0.a", "h.0.b"]], r"module 'h\.0\.a' lies deeper than torchtitan looks"),
        ("torchtitan", [["embed", "h.0"]], r"module 'h\.1\.a' runs in this graph and is in no part"),
        ("torchtitan", [["embed", "nowhere"]], "no node of this graph runs in module 'nowhere'"),
        ("torchtitan", ["embed"], "needs a list of lists"),
        ("device-map", {"embed": 0, "h": "disk"}, "offloads modules to disk"),
        ("device-map", {"model.embed": 0}, "no node of this graph runs in module 'model.embed'"),
        ("device-map", [], "needs an object"),
    ],
)
def test_what_is_no_split_of_the_graph_is_refused(graph: Graph, way: str, content: object, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        WAYS[way][1](graph, content)


def test_llama_cpp_has_no_device_without_a_layer(graph: Graph) -> None:
    with pytest.raises(OptionsError, match="stage 0 runs no layer"):
        llama_cpp_tensor_split(graph, plan_of(graph, [0, *[1] * (2 * NUM_LAYERS), 1, 1]))
    assert llama_cpp_tensor_split(graph, plan_of(graph, [*[0] * (2 * NUM_LAYERS + 1), 1, 1])) == "6,1"
