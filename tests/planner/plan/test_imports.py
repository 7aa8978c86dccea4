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
from planner.plan.exports.mlx import mlx_split
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
    "mlx": (mlx_split, split_of_mlx),
    "torch-pipelining": (split_spec, split_of_split_spec),
    "torchtitan": (torchtitan_parts, split_of_parts),
    "device-map": (device_map, split_of_device_map),
}

COUNTING = ("vllm", "megatron", "llama-cpp", "exo", "deepspeed", "nanotron", "mlx")


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
    """As PipelineMixin.pipeline of mlx-lm 0.32 leaves them: a rank's layers begin where those of later ranks end."""
    for counts in splits():
        split = mlx_split(graph, plan_of(graph, stages_of(counts)))
        layers_of_rank = []
        for rank, num_layers in enumerate(split):
            start = sum(split[rank + 1 :])
            layers: list[int | None] = list(range(NUM_LAYERS))[: start + num_layers]
            layers[:start] = [None] * start
            layers_of_rank.append([layer for layer in layers if layer is not None])
        assert list(chain(*reversed(layers_of_rank))) == list(range(NUM_LAYERS))
        assert [len(layers) for layers in reversed(layers_of_rank)] == list(counts)


def test_ranges_of_mlx_are_the_split_in_other_words(graph: Graph) -> None:
    """What a rank of mlx-lm has after `pipeline`, of any release."""
    ranges = [{"rank": 0, "start_idx": 2, "end_idx": 6}, {"rank": 1, "start_idx": 0, "end_idx": 2}]
    assert split_of_mlx(graph, ranges) == split_of_mlx(graph, [4, 2])


def test_shards_as_exo_itself_states_them(graph: Graph) -> None:
    """Its state has the class above each shard, names in camel case, and ranks in no order."""
    shards = [
        {"PipelineShardMetadata": {"modelCard": {}, "deviceRank": rank, "startLayer": start, "endLayer": end}}
        for rank, start, end in ((1, 2, 6), (0, 0, 2))
    ]
    assert split_of_exo(graph, shards) == split_of_vllm(graph, "2,4")


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
        ("megatron", "Et*3 | t*3L", "' ' is none of E, t, m, L"),
        ("megatron", "E(tt|)*999999L", "more than 100000 layers"),
        ("llama-cpp", "0,0", "not all 0"),
        ("llama-cpp", "1,-1", "0 or more"),
        ("llama-cpp", "nan,1", "0 or more"),
        ("llama-cpp", "half", "needs shares"),
        ("llama-cpp", ",".join("1" * 16), "16 shares: llama.cpp takes at most 15"),
        ("exo", [{"start_layer": 0, "end_layer": 2}, {"start_layer": 3, "end_layer": 6}], "do not follow layer 2"),
        ("exo", {"start_layer": 0}, "needs a list"),
        ("exo", 7, "needs a list"),
        ("exo", [7], "needs a list"),
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
        ("mlx", [6, 0], "one layer at least on each rank"),
        ("mlx", [4, 3], "the split has 7 layers, and the graph 6"),
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


def test_shares_of_llama_cpp_may_stand_between_slashes(graph: Graph) -> None:
    assert split_of_llama_cpp(graph, "3/4") == split_of_llama_cpp(graph, "3,4")


def test_a_rank_without_a_layer_is_refused_where_it_has_nothing_else(graph: Graph) -> None:
    """exo 0.3.70 and mlx-lm 0.32 need a layer on each rank; llama.cpp has only its head besides."""
    embedding_alone = plan_of(graph, [0, *[1] * (2 * NUM_LAYERS), 1, 1])
    head_alone = plan_of(graph, [*[0] * (2 * NUM_LAYERS + 1), 1, 1])
    for way in ("exo", "mlx", "llama-cpp"):
        with pytest.raises(OptionsError, match="stage 0 runs no whole layer"):
            WAYS[way][0](graph, embedding_alone)
    for way in ("exo", "mlx"):
        with pytest.raises(OptionsError, match="stage 1 runs no whole layer"):
            WAYS[way][0](graph, head_alone)
    assert llama_cpp_tensor_split(graph, head_alone) == "6,1"
    assert deepspeed_parts(graph, head_alone) == [0, 7, 8]
    between = plan_of(graph, [*[0] * (2 * NUM_LAYERS + 1), 1, 2])
    for way in COUNTING:
        with pytest.raises(OptionsError, match=r"stage 1 runs no whole layer, .*: plan with fewer devices"):
            WAYS[way][0](graph, between)
    halves = program("0", "0", "0", "1")
    with pytest.raises(OptionsError, match="stage 0 runs no whole layer"):
        deepspeed_parts(halves, plan_of(halves, [0, 1, 1, 1]), nearest=True)


def test_llama_cpp_takes_fewer_shares_than_sixteen() -> None:
    deep = program(*(f"h.{layer}" for layer in range(16)))
    assert llama_cpp_tensor_split(deep, plan_of(deep, [min(layer, 14) for layer in range(16)])) == ",".join(
        ["1"] * 14 + ["3"]
    )
    with pytest.raises(OptionsError, match=r"16 stages, and llama\.cpp takes at most 15 shares"):
        llama_cpp_tensor_split(deep, plan_of(deep, range(16)))


def test_two_stages_on_one_device_are_refused_where_each_has_a_rank(graph: Graph) -> None:
    """Megatron-Core 0.19 has stage s on rank s modulo their number; the others a rank for each stage."""
    stages = stages_of((1, 2, 1, 2))
    in_turn = plan_of(graph, stages, device_of_stage=(0, 1, 0, 1))
    there_and_back = plan_of(graph, stages, device_of_stage=(0, 1, 1, 0))
    for way in COUNTING:
        for plan in (in_turn, there_and_back):
            if (way, plan) == ("megatron", in_turn):
                assert megatron_layout(graph, plan) == "Et|t*2|t|t*2L"
                continue
            with pytest.raises(OptionsError, match=r"both on|in turn"):
                WAYS[way][0](graph, plan)
    with pytest.raises(OptionsError, match="in turn"):
        megatron_layout(graph, plan_of(graph, stages_of((2, 2, 2)), device_of_stage=(0, 1, 0)))


def test_copies_are_no_silent_part_of_a_split(graph: Graph) -> None:
    """A whole pipeline may be copied elsewhere; a copy of one stage has no words in any format."""
    stages = stages_of((2, 4))
    uneven, even = (plan_of(graph, stages, replicas=copies) for copies in (((), (2,)), ((2,), (3,))))
    for way, (to_text, _) in WAYS.items():
        with pytest.raises(OptionsError, match=r"stage 1 runs on 2 devices.*without --saturate-host"):
            to_text(graph, uneven)
        if way in ("exo", "mlx", "llama-cpp", "device-map"):
            with pytest.raises(OptionsError, match=r"stage 0 runs on 2 devices.*one device for each stage"):
                to_text(graph, even)
        else:
            assert to_text(graph, even) == to_text(graph, plan_of(graph, stages))
