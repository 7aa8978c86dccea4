"""Cost graphs in our own format: order, outputs by name, shared weights, times by kind."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cli.instance_file import MAX_BYTES, MAX_SECONDS, Instance, parse_instance
from planner.errors import GraphError, InventoryError
from planner.graph.ir import Dtype, OperatorKind, ValueKind, ValueReference

DEVICES = [{"id": "a", "kind": "k", "memory": "1GiB"}]


def instance(*nodes: dict[str, Any], **more: Any) -> Instance:
    return parse_instance({"devices": DEVICES, "nodes": [{"seconds": {"k": 1}, **node} for node in nodes], **more})


def reads(placed: Instance, node_id: str) -> list[str]:
    graph = placed.graph
    names = {value.id: value.name for value in graph.values}
    node = graph.nodes[placed.node_ids.index(node_id)]
    return [names[one.value_id] for one in node.arguments if isinstance(one, ValueReference)]


def test_nodes_stand_after_what_they_read_else_in_the_files_order() -> None:
    problem = instance(
        {"id": "z"}, {"id": "end", "inputs": ["mid", "z"]}, {"id": "mid", "inputs": ["start"]}, {"id": "start"}
    )
    assert problem.node_ids == ("z", "start", "mid", "end")
    assert [node.name for node in problem.graph.nodes] == list(problem.node_ids)
    assert reads(problem, "end") == ["mid", "z"]
    assert all(node.operator.kind is OperatorKind.OPAQUE for node in problem.graph.nodes)


def test_what_nobody_reads_is_a_result() -> None:
    problem = instance(
        {"id": "n", "outputs": {"used": 4, "left": 5}}, {"id": "m", "inputs": ["n/used"], "output_bytes": 9}
    )
    values = {value.id: value for value in problem.graph.values}
    results = [values[output.content.value_id] for output in problem.graph.outputs]  # type: ignore[union-attr]
    assert [(value.name, value.opaque_bytes) for value in results] == [("n/left", 5), ("m", 9)]
    assert all(value.kind is ValueKind.OPAQUE for value in results)


def test_the_only_output_is_read_by_the_nodes_id_or_its_own_name() -> None:
    for source in ("n", "n/mean"):
        problem = instance({"id": "n", "outputs": {"mean": 4}}, {"id": "m", "inputs": [source]})
        assert reads(problem, "m") == ["n/mean"]
    problem = instance({"id": "a/b", "output_bytes": 1}, {"id": "m", "inputs": ["a/b"]})
    assert reads(problem, "m") == ["a/b"]


def test_reading_twice_is_reading_once() -> None:
    assert reads(instance({"id": "n"}, {"id": "m", "inputs": ["n", "n"]}), "m") == ["n"]


def test_an_id_may_be_a_number() -> None:
    problem = instance({"id": 1}, {"id": "2", "inputs": [1]})
    assert problem.node_ids == ("1", "2")
    assert reads(problem, "2") == ["1"]


def test_a_weight_of_one_name_is_one_weight() -> None:
    problem = instance(
        {"id": "n", "weights": {"shared": 8, "odd": 7}, "trained": False},
        {"id": "m", "weights": {"shared": 8}, "weight_bytes": 12},
    )
    states = {state.name: state for state in problem.graph.states}
    assert list(states) == ["shared", "odd", "m.weight"]
    values = problem.graph.values_by_id()
    sizes = {name: (values[state.value_id].dtype, values[state.value_id].dims) for name, state in states.items()}
    assert sizes == {
        "shared": (Dtype.FLOAT32, (2,)),
        "odd": (Dtype.UINT8, (7,)),
        "m.weight": (Dtype.FLOAT32, (3,)),
    }
    assert {name: state.requires_grad for name, state in states.items()} == {
        "shared": True,
        "odd": False,
        "m.weight": True,
    }
    assert reads(problem, "m") == ["shared", "m.weight"]


@pytest.mark.parametrize("first", [True, False])
def test_a_weight_is_trained_where_any_of_its_nodes_trains_it(first: bool) -> None:
    problem = instance(
        {"id": "n", "weights": {"w": 8}, "trained": first}, {"id": "m", "weights": {"w": 8}, "trained": not first}
    )
    assert [state.requires_grad for state in problem.graph.states] == [True]


def test_a_weight_of_two_sizes_is_refused() -> None:
    with pytest.raises(GraphError, match="node 'm': weight 'w' has 8 bytes, and 4 elsewhere"):
        instance({"id": "n", "weights": {"w": 4}}, {"id": "m", "weights": {"w": 8}})


def test_times_and_modules_are_the_nodes() -> None:
    problem = instance({"id": "n", "seconds": {"k": 2, "*": 0.5}, "module": "layers.0"}, {"id": "m"})
    first, second = problem.graph.nodes
    assert first.opaque_seconds == (("k", 2.0), ("*", 0.5))
    assert (first.module_path, second.module_path) == ("layers.0", "")
    assert [device.id for device in problem.inventory.devices] == ["a"]


def test_links_are_the_inventorys() -> None:
    problem = instance({"id": "n"}, default_link={"bytes_per_second": 7})
    assert problem.inventory.default_link.bytes_per_second == 7


def test_the_most_that_can_be_given_is_taken() -> None:
    problem = instance({"id": "n", "output_bytes": MAX_BYTES, "seconds": {"k": MAX_SECONDS}})
    assert problem.graph.values[0].opaque_bytes == MAX_BYTES


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"output_bytes": MAX_BYTES + 1}, r"output_bytes is \d+, needs whole bytes from 0 to 2\^50"),
        ({"output_bytes": 1.5}, "output_bytes is 1.5, needs whole bytes"),
        ({"output_bytes": True}, "output_bytes is True, needs whole bytes"),
        ({"outputs": {}}, "outputs is {}, needs a mapping"),
        ({"outputs": ["a"]}, r"outputs is \['a'\], needs a mapping"),
        ({"outputs": {"a": -1}}, r"outputs\.a is -1"),
        ({"weights": ["w"]}, r"weights is \['w'\], needs a mapping from name to bytes"),
        ({"weights": {"w": "8"}}, r"weights\.w is '8', needs whole bytes"),
        ({"seconds": {}}, "seconds is {}, needs a mapping from device kind to seconds"),
        ({"seconds": 3}, "seconds is 3, needs a mapping"),
        ({"seconds": {"k": True}}, r"seconds\.k is True"),
        ({"seconds": {"k": "1"}}, r"seconds\.k is '1'"),
        (
            {"seconds": {"k": 2 * MAX_SECONDS}},
            r"seconds\.k is 2000000000000000\.0, needs a finite number from 0 to 1e\+15",
        ),
        ({"trained": 1, "weight_bytes": 4}, "trained is 1, needs true or false"),
    ],
)
def test_what_cannot_be_is_named(node: dict[str, Any], says: str) -> None:
    with pytest.raises(GraphError, match=f"node 'n': {says}"):
        instance({"id": "n", **node})


def test_what_is_no_instance_is_refused() -> None:
    with pytest.raises(GraphError, match="unknown key 'edges'; known: nodes, "):
        instance({"id": "n"}, edges=[])
    with pytest.raises(InventoryError, match="the instance has no devices"):
        parse_instance({"devices": [], "nodes": []})
    with pytest.raises(GraphError, match="the instance has no nodes"):
        parse_instance({"devices": DEVICES, "nodes": []})
    with pytest.raises(GraphError, match="needs a mapping with an id"):
        parse_instance({"devices": DEVICES, "nodes": ["n"]})
    with pytest.raises(GraphError, match="a node '1' exists already"):
        instance({"id": 1}, {"id": "1"})
