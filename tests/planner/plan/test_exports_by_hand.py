"""Exports of small programs whose modules are written down: corners that whole models do not have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.device_map import device_map
from planner.plan.exports.megatron import megatron_layout
from planner.plan.exports.module_tree import enclosing_modules, find_layers
from planner.plan.exports.torch_pipelining import split_spec, torchtitan_parts
from planner.plan.exports.vllm import vllm_layer_partition
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter


def program(*modules: str) -> Graph:
    """A chain of nodes, one of each of these modules."""
    writer = GraphWriter()
    value = writer.input()
    for path in modules:
        value = writer.multiply(value, module_path=path)
    return writer.graph(value)


def layers(*stages: int, modules: Sequence[str], nearest: bool = False) -> tuple[str, tuple[int, ...]]:
    graph = program(*modules)
    layers_of_plan = find_layers(graph, plan_of(graph, stages), nearest=nearest)
    return layers_of_plan.path, layers_of_plan.stage_of_layer


def test_modules_around_a_path() -> None:
    assert list(enclosing_modules("a.b.c")) == ["a", "a.b", "a.b.c"]
    assert list(enclosing_modules("a")) == ["a"]
    assert list(enclosing_modules("")) == []


def test_layers_are_those_of_the_outermost_container_that_runs_most() -> None:
    many = [f"many.{layer}" for layer in range(5)]
    assert layers(0, 0, 0, 0, 1, 1, modules=("few.0", *many)) == ("many", (0, 0, 0, 1, 1))
    assert layers(0, 1, modules=("outer.0.inner.0", "outer.1.inner.0")) == ("outer", (0, 1))
    assert layers(0, 0, 1, 1, modules=("a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1")) == ("a", (0, 1))


def test_layers_are_counted_by_number_not_by_name() -> None:
    names = [f"h.{index}" for index in range(11)]
    assert layers(*[int(index > 8) for index in range(11)], modules=names) == ("h", (0,) * 9 + (1, 1))


def test_a_layer_without_a_node_is_named() -> None:
    with pytest.raises(OptionsError, match=r"layer h\.1 runs no node in this graph"):
        layers(0, 1, modules=("h.0", "h.2"))
    with pytest.raises(OptionsError, match=r"layer h\.0 runs no node"):
        layers(0, 1, modules=("h.1", "h.2"))


def test_nearest_goes_where_most_nodes_run_and_to_the_earlier_stage_of_equals() -> None:
    names = ("h.0", "h.1", "h.1", "h.1", "h.2")
    assert layers(0, 0, 1, 1, 1, modules=names, nearest=True) == ("h", (0, 1, 1))
    assert layers(0, 0, 0, 1, 1, modules=names, nearest=True) == ("h", (0, 0, 1))
    assert layers(0, 0, 1, 1, modules=("h.0", "h.1", "h.1", "h.2"), nearest=True) == ("h", (0, 0, 1))
    with pytest.raises(
        OptionsError, match=r"layer h\.1 is cut: its nodes run in stages 0, 1\..*--together 'h\.\*'"
    ) as cut:
        layers(0, 0, 1, 1, 1, modules=names)
    assert cut.value.metadata["layer"] == "h.1"


def test_counts_of_layers_in_the_formats_of_vllm_and_megatron() -> None:
    graph = program("embed", "h.0", "h.1", "h.2", "head")
    plan = plan_of(graph, (0, 1, 2, 2, 3))
    assert vllm_layer_partition(graph, plan) == "0,1,2,0"
    assert megatron_layout(graph, plan) == "E|t|t*2|L"
    whole = plan_of(graph, (0,) * 5)
    assert megatron_layout(graph, whole) == "Et*3L"


def test_a_cut_is_named_by_the_outermost_module_that_begins_there_before_one_that_ends() -> None:
    graph = program("a.x", "a.y", "b.x", "b.y", "b.y", "c")
    assert split_spec(graph, plan_of(graph, (0, 0, 1, 1, 1, 1))) == {"b": "beginning"}
    assert split_spec(graph, plan_of(graph, (0, 1, 1, 1, 1, 1))) == {"a.y": "beginning"}
    assert split_spec(program("a", "a", "", ""), plan_of(program("a", "a", "", ""), (0, 0, 1, 1))) == {"a": "end"}
    with pytest.raises(OptionsError, match=r"the cut before node 4 is inside of module 'b\.y'") as cut:
        split_spec(graph, plan_of(graph, (0, 0, 0, 0, 1, 1)))
    assert cut.value.metadata["module"] == "b.y"


def test_a_split_spec_needs_stages_that_follow_each_other() -> None:
    writer = GraphWriter()
    first = writer.multiply(writer.input(), module_path="a")
    second = writer.multiply(writer.input(), module_path="b")
    graph = writer.graph(writer.multiply(first, module_path="a"), writer.multiply(second, module_path="b"))
    with pytest.raises(OptionsError, match=r"stage 0 is made of 2 pieces of the program.*plan with --mode balanced"):
        split_spec(graph, plan_of(graph, (0, 1, 0, 1)))


def test_a_module_that_is_called_twice_is_no_place_to_cut_at() -> None:
    graph = program("a", "b", "a", "c")
    assert split_spec(graph, plan_of(graph, (0, 0, 0, 1))) == {"c": "beginning"}
    assert split_spec(graph, plan_of(graph, (0, 1, 1, 1))) == {"b": "beginning"}
    assert split_spec(graph, plan_of(graph, (0, 0, 1, 1))) == {"b": "end"}
    graph = program("a", "b", "a", "")
    with pytest.raises(OptionsError, match="before node 3 is at the end of module 'a', which is called more than once"):
        split_spec(graph, plan_of(graph, (0, 0, 0, 1)))
    with pytest.raises(OptionsError, match="the cut before node 2 is inside of module ''"):
        split_spec(program("a", "", "", "a"), plan_of(program("a", "", "", "a"), (0, 0, 1, 1)))


def test_parts_are_the_models_own_modules_and_items_of_its_lists() -> None:
    graph = program("embed", "h.0.a", "h.0.b", "h.1.a", "", "h.1.b", "head")
    assert torchtitan_parts(graph, plan_of(graph, (0, 0, 0, 1, 1, 1, 1))) == [["embed", "h.0"], ["h.1", "head"]]
    # A list within one stage goes by its items, and a sequence by its own name: which it is the graph does not say.
    assert torchtitan_parts(graph, plan_of(graph, (0, 1, 1, 1, 1, 1, 1))) == [["embed"], ["h", "h.0", "h.1", "head"]]
    with pytest.raises(OptionsError, match=r"module 'h\.1' is cut: it runs in stages 0, 1\.") as cut:
        torchtitan_parts(graph, plan_of(graph, (0, 0, 0, 0, 0, 1, 1)))
    assert cut.value.metadata["module"] == "h.1"
    with pytest.raises(OptionsError, match=r"module 'h' is cut: it runs in stages 0, 1\."):
        torchtitan_parts(program("h.a", "h.b"), plan_of(program("h.a", "h.b"), (0, 1)))


def test_devices_are_numbered_in_the_order_of_stages_or_named() -> None:
    graph = program("a", "b", "b.c")
    plan = plan_of(graph, (0, 1, 1), device_of_stage=(1, 0))
    assert device_map(graph, plan) == {"a": 0, "b": 1}
    assert device_map(graph, plan, {"node0/cpu": "cuda:3", "node1/cpu": 7}) == {"a": 7, "b": "cuda:3"}
    assert device_map(graph, plan_of(graph, (0, 0, 0))) == {"": 0}


def test_a_program_without_modules_is_refused() -> None:
    graph = program("", "")
    with pytest.raises(OptionsError, match="the module itself runs on node0/cpu, node1/cpu"):
        device_map(graph, plan_of(graph, (0, 1)), nearest=True)
