"""Inputs to leaves and leaves to outputs, for any structure, and what is said of a structure that differs."""

from __future__ import annotations

import subprocess
import sys
from collections import UserDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.client.batches import Batch, flatten_batch
from planner.client.pytree import argument_names, flatten_inputs, remember_container, unflatten_outputs
from planner.errors import InvalidArgument
from planner.graph.ir import (
    Argument,
    Graph,
    Input,
    Output,
    PyTree,
    TreeDict,
    TreeLeaf,
    TreeList,
    TreeNone,
    TreeObject,
    TreeTuple,
    ValueReference,
)
from tests.random_examples import random_examples

LEAF = TreeLeaf()
DATA = ValueReference(1)


def graph_taking(tree: PyTree, contents: list[Argument]) -> Graph:
    inputs = tuple(Input(name=f"input_{index}", content=content) for index, content in enumerate(contents))
    return Graph(torch_version="", name="", inputs=inputs, input_tree=tree)


def graph_giving(tree: PyTree, contents: list[Argument]) -> Graph:
    outputs = tuple(Output(name=f"output_{index}", content=content) for index, content in enumerate(contents))
    return Graph(torch_version="", name="", outputs=outputs, output_tree=tree)


def call(args: tuple[PyTree, ...] = (), **kwargs: PyTree) -> PyTree:
    return TreeTuple((TreeTuple(args), TreeDict(tuple(kwargs), tuple(kwargs.values()))))


def test_inputs_come_in_the_graphs_order_whatever_the_callers() -> None:
    graph = graph_taking(call((LEAF,), ids=LEAF, flag=LEAF, mask=LEAF), [DATA, DATA, False, DATA])

    assert flatten_inputs(graph, ["x"], {"mask": "m", "ids": "i", "flag": False}) == ["x", "i", "m"]


def test_constants_may_be_left_out() -> None:
    graph = graph_taking(call(ids=LEAF, cache=TreeList((LEAF, LEAF))), [DATA, None, False])

    assert flatten_inputs(graph, [], {"ids": "i"}) == ["i"]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ([], {"flag": False}, "'ids'.* is missing"),
        ([], {"ids": 1, "flag": True}, "input 'input_1' is True, the graph was captured with False"),
        ([], {"ids": 1, "flag": 0}, "input 'input_1' is 0"),
        ([], {"ids": 1, "flag": False, "extra": 2}, "'extra'.*captured without it"),
        ([5], {"ids": 1}, "inputs by position: 1, the graph was captured with 0; by name it has 'ids', 'flag'"),
    ],
)
def test_other_calls_are_refused(args: list[Any], kwargs: dict[str, Any], why: str) -> None:
    graph = graph_taking(call(ids=LEAF, flag=LEAF), [DATA, False])
    with pytest.raises(InvalidArgument, match=why):
        flatten_inputs(graph, args, kwargs)


def test_names_are_bound_as_in_a_call_of_the_module() -> None:
    """Also of what was captured by position; a container there has no name in the graph."""
    graph = graph_taking(call((LEAF, TreeList((LEAF,)), LEAF, LEAF), mask=LEAF), [DATA, DATA, DATA, 3, DATA])
    assert argument_names(graph) == ("input_0", "input_2", "input_3", "mask")
    for args, kwargs in (
        (["x", ["l"], "y"], {"mask": "m"}),
        (["x", ["l"]], {"mask": "m", "input_2": "y"}),
        (["x", ["l"]], {"mask": "m", "input_3": 3, "input_2": "y"}),
    ):
        assert flatten_inputs(graph, args, kwargs) == ["x", "l", "y", "m"]
    for args, kwargs, why in (
        (["x", ["l"]], {"mask": "m"}, "input 'input_2' .* is missing"),
        ([], {"mask": "m", "input_0": "x", "input_2": "y"}, "input 'input_1' .* is missing"),
        (["x", ["l"], "y"], {"mask": "m", "input_2": "y"}, "input 'input_2' is given by position too"),
        (
            ["x", ["l"]],
            {"maks": "m", "input_2": "y"},
            r"'maks': .* without it; it has \['input_0', 'input_2', 'in",
        ),
        (["x", ["l"], "y", 3, "m"], {}, "inputs by position: 5, the graph was captured with 4; by name it has 'mask'"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            flatten_inputs(graph, args, kwargs)


def test_a_batch_that_was_not_unpacked_is_told_of() -> None:
    for graph in (graph_taking(call((LEAF, LEAF)), [DATA, DATA]), graph_taking(call(x=LEAF, y=LEAF), [DATA, DATA])):
        for batch in (("x", "y"), ["x", "y"], {"x": 1, "y": 2}):
            with pytest.raises(
                InvalidArgument, match=rf"one {type(batch).__name__} for 2 inputs: unpack it, as step\(\*"
            ):
                flatten_inputs(graph, [batch], {})
    # The constant beside the list may be left out.
    assert flatten_inputs(graph_taking(call((TreeList((LEAF,)), LEAF)), [DATA, 3]), [["x"]], {}) == ["x"]


def test_a_batch_is_what_a_loader_gives() -> None:
    graph = graph_taking(call((LEAF, LEAF)), [DATA, DATA])
    for batch in (("x", "y"), ["x", "y"], UserDict(input_1="y", input_0="x"), Batch(("x",), {"input_1": "y"})):
        assert flatten_batch(graph, batch) == ["x", "y"]
    assert flatten_batch(graph_taking(call((LEAF,)), [DATA]), "x") == ["x"]
    # The module's only argument.
    assert flatten_batch(graph_taking(call((TreeList((LEAF, LEAF)),)), [DATA, DATA]), ["x", "y"]) == ["x", "y"]
    named = TreeDict(("a", "b"), (LEAF, LEAF))
    assert flatten_batch(graph_taking(call((named,)), [DATA, DATA]), {"b": "y", "a": "x"}) == ["x", "y"]
    assert flatten_batch(graph_taking(call((named,), c=LEAF), [DATA] * 3), Batch(({"a": 1, "b": 2},), {"c": 3})) == [
        1,
        2,
        3,
    ]


def test_another_container_is_refused() -> None:
    graph = graph_taking(call((TreeList((LEAF,)), TreeNone())), [DATA])

    assert flatten_inputs(graph, [["x"], None], {}) == ["x"]
    with pytest.raises(InvalidArgument, match="found tuple, the graph was captured with a list"):
        flatten_inputs(graph, [("x",), None], {})
    with pytest.raises(InvalidArgument, match="captured with None"):
        flatten_inputs(graph, [["x"], 3], {})


def test_constants_and_none_are_filled_in() -> None:
    tree = TreeDict(("a", "b", "c"), (LEAF, TreeTuple((LEAF, LEAF)), TreeNone()))

    assert unflatten_outputs(graph_giving(tree, [DATA, 3, DATA]), ["x", "y"]) == {"a": "x", "b": (3, "y"), "c": None}


POINT = TreeObject("tests.Point", ("x", "y"), (LEAF, LEAF))


class Point:
    x, y = 1, 2


@pytest.mark.parametrize("container", [{"y": 2, "x": 1}, (1, 2), [1, 2], Point()])
def test_a_registered_container_is_given_as_itself_or_by_its_parts(container: object) -> None:
    assert flatten_inputs(graph_taking(call((POINT,)), [DATA, DATA]), [container], {}) == [1, 2]


@pytest.mark.parametrize(
    ("container", "why"),
    [
        ((1, 2, 3), "found tuple, the graph was captured with tests.Point"),
        ((1,), "found tuple, the graph was captured with tests.Point"),
        (3, "int has no 'x', as tests.Point has"),
        ({"x": 1, "z": 2}, r"\['z'\]: the graph was captured without it; it has \['x', 'y'\]"),
        ({"x": 1}, r"\['y'\]\) is missing"),
    ],
)
def test_a_registered_container_of_other_parts_is_refused(container: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        flatten_inputs(graph_taking(call((POINT,)), [DATA, DATA]), [container], {})


def test_dicts_and_tuples_are_told_apart() -> None:
    graph = graph_taking(call((TreeDict(("a",), (LEAF,)), TreeTuple((LEAF,)))), [DATA, DATA])
    assert flatten_inputs(graph, [{"a": 1}, (2,)], {}) == [1, 2]
    with pytest.raises(InvalidArgument, match="found list, the graph was captured with a dict"):
        flatten_inputs(graph, [[1], (2,)], {})
    with pytest.raises(InvalidArgument, match="found list, the graph was captured with a tuple"):
        flatten_inputs(graph, [{"a": 1}, [2]], {})


def test_a_container_of_constants_and_nones_may_be_left_out() -> None:
    cache = TreeDict(("keys", "values"), (TreeList((LEAF, TreeNone())), LEAF))
    graph = graph_taking(call((LEAF,), cache=cache, mask=LEAF), [DATA, 1, 2, DATA])
    assert flatten_inputs(graph, ["x"], {"mask": "m"}) == ["x", "m"]
    assert flatten_inputs(graph, ["x"], {"mask": "m", "cache": {"values": 2}}) == ["x", "m"]
    with pytest.raises(InvalidArgument, match="input 'input_2' is 3, the graph was captured with 2"):
        flatten_inputs(graph, ["x"], {"mask": "m", "cache": {"keys": [1, None], "values": 3}})


def test_a_wrong_number_of_leaves_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="1 output leaves, the graph gives 2"):
        unflatten_outputs(graph_giving(TreeTuple((LEAF, LEAF)), [DATA, DATA]), ["x"])


def test_an_unknown_container_comes_back_as_a_dict() -> None:
    tree = TreeObject("nowhere.Result", ("logits",), (LEAF,))

    assert unflatten_outputs(graph_giving(tree, [DATA]), ["x"]) == {"logits": "x"}


@pytest.mark.parametrize("name", ["topk", "cummax"])
def test_a_named_tuple_of_torch_comes_back_as_itself_where_nothing_was_exported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr("planner.client.pytree._containers", {})
    tree = TreeObject(f"torch.return_types.{name}", ("0", "1"), (LEAF, LEAF))
    result = unflatten_outputs(graph_giving(tree, [DATA, DATA]), [1, 2])
    assert type(result) is getattr(torch.return_types, name)
    assert tuple(result) == (1, 2)


@pytest.mark.parametrize("name", ["unknown", "pytree_register_structseq", "__loader__"])
def test_what_is_no_named_tuple_of_torch_comes_back_as_a_dict(name: str) -> None:
    tree = TreeObject(f"torch.return_types.{name}", ("0",), (LEAF,))
    assert unflatten_outputs(graph_giving(tree, [DATA]), ["x"]) == {"0": "x"}


def test_a_remembered_container_comes_back_as_itself() -> None:
    remember_container("tests.Remembered", ("low", "high"), lambda items: range(*items))
    tree = TreeObject("tests.Remembered", ("low", "high"), (LEAF, LEAF))

    assert unflatten_outputs(graph_giving(tree, [DATA, DATA]), [2, 5]) == range(2, 5)


def test_a_model_output_of_a_graph_from_elsewhere_comes_back_as_itself() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    tree = TreeObject("transformers.modeling_outputs.BaseModelOutput", ("last_hidden_state",), (LEAF,))

    output = unflatten_outputs(graph_giving(tree, [DATA]), ["x"])

    assert isinstance(output, BaseModelOutput)
    assert output.last_hidden_state == "x"


@pytest.mark.services
def test_needs_no_torch() -> None:
    program = "import sys, planner.client.pytree, planner.client.export; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def structures() -> st.SearchStrategy[tuple[PyTree, Any]]:
    """A structure, and an instance of it that holds numbers."""

    def extend(inner: st.SearchStrategy[tuple[PyTree, Any]]) -> st.SearchStrategy[tuple[PyTree, Any]]:
        several = st.lists(inner, max_size=4)
        named = st.dictionaries(st.text(max_size=5), inner, max_size=4)
        return st.one_of(
            several.map(lambda pairs: (TreeList(tuple(t for t, _ in pairs)), [v for _, v in pairs])),
            several.map(lambda pairs: (TreeTuple(tuple(t for t, _ in pairs)), tuple(v for _, v in pairs))),
            named.map(
                lambda pairs: (
                    TreeDict(tuple(pairs), tuple(t for t, _ in pairs.values())),
                    {key: v for key, (_, v) in pairs.items()},
                )
            ),
        )

    leaves = st.one_of(st.integers().map(lambda number: (LEAF, number)), st.just((TreeNone(), None)))
    return st.recursive(leaves, extend, max_leaves=12)


def count_leaves(tree: PyTree) -> int:
    return 1 if isinstance(tree, TreeLeaf) else sum(map(count_leaves, getattr(tree, "items", ())))


@random_examples(60)
@given(structures())
def test_every_structure_comes_back(structure: tuple[PyTree, Any]) -> None:
    tree, instance = structure
    contents: list[Argument] = [DATA] * count_leaves(tree)

    leaves = flatten_inputs(graph_taking(call((tree,)), contents), [instance], {})

    assert unflatten_outputs(graph_giving(tree, contents), leaves) == instance
