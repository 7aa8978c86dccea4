"""Measured times as JSON: what is written reads back, and what is wrong is named."""

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate
from planner.cost.times_file import read_times, write_times
from planner.errors import InvalidArgument
from planner.graph.saved import Saved

TABLE = MeasuredTimes(
    graph_id="3f9a",
    device_kind="h200",
    symbol_values=(("batch", 8), ("sequence", 128)),
    source="a run",
    seconds=((0, 1.5e-5), (3, 3.1e-4), (4, 1.5e-5)),
    backward_seconds=((3, 4e-4), (4, 2e-5)),
    split_seconds=((3, 1e-4, 0.0),),
    saved=((3, Saved(inputs=True, outputs=False, within_bytes=2**40)),),
    delivery=Delivery(input_seconds=2e-4, output_seconds=0.0),
    update=StateUpdate(norm_seconds=3e-4, optimizer_seconds=0.0),
    num_threads=2,
)
OTHER = MeasuredTimes(graph_id="", device_kind="cpu", seconds=((1, 0.0),))


@pytest.mark.parametrize("tables", [(TABLE,), (TABLE, OTHER)])
def test_what_is_written_reads_back(tables: tuple[MeasuredTimes, ...]) -> None:
    assert read_times(write_times(tables)) == tables


def test_nodes_of_one_time_stand_together() -> None:
    same = replace(TABLE, backward_seconds=(), split_seconds=(), saved=())
    assert json.loads(write_times([same]))["times"][0] == {"nodes": [0, 4], "seconds": 1.5e-5}
    mask = Saved(inputs=False, outputs=True, within_bytes=8)
    alike = replace(
        TABLE,
        backward_seconds=((0, 1.0), (4, 1.0)),
        split_seconds=((0, 0.5, 0.75), (4, 0.5, 0.75)),
        saved=((0, mask), (4, mask)),
    )
    assert json.loads(write_times([alike]))["times"][0] == {
        "nodes": [0, 4],
        "seconds": 1.5e-5,
        "backward_seconds": 1.0,
        "input_gradient_seconds": 0.5,
        "weight_gradient_seconds": 0.75,
        "saved": {"inputs": False, "outputs": True, "within_bytes": 8},
    }
    other = replace(alike, saved=((0, mask), (4, replace(mask, outputs=False))))
    assert [one["nodes"] for one in json.loads(write_times([other]))["times"]] == [[0], [3], [4]]


def test_shortest_file_is_enough() -> None:
    (times,) = read_times('{"device_kind": "cpu", "times": [{"node": 2, "seconds": 1}]}')
    assert times == MeasuredTimes(graph_id="", device_kind="cpu", seconds=((2, 1.0),))


def table(*times: Any, **more: Any) -> dict[str, Any]:
    return {"device_kind": "cpu", "times": list(times), **more}


def with_saved(**fields: object) -> dict[str, Any]:
    return table({"node": 1, "seconds": 1, "backward_seconds": 1, "saved": fields})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (7, "measured times: is int, needs an object"),
        ({"device_kind": "cpu"}, "times: needs a list"),
        (table(), "times: needs a list of at least one"),
        (table({"node": 0, "seconds": -1}), r"times\[0\].seconds is -1, needs a finite number"),
        (table({"node": 0, "seconds": "1"}), r"times\[0\].seconds is '1', needs"),
        (table({"node": 0, "seconds": True}), r"times\[0\].seconds is True"),
        (table({"node": 0, "seconds": 1}, {"node": 0.5, "seconds": 1}), r"times\[1\].node: '0.5' is no index"),
        (table({"node": -1, "seconds": 1}), r"times\[0\].node: '-1' is no index"),
        (table({"nodes": 3, "seconds": 1}), r"times\[0\].nodes: needs a list"),
        (table({"seconds": 1}), r"times\[0\]: has \['seconds'\], needs seconds and either"),
        (table({"node": 1, "seconds": 1, "second": 1}), r"times\[0\]: has"),
        (table({"node": 4, "seconds": 1}, {"nodes": [2, 4], "seconds": 1}), r"times\[1\]: node 4 has a time already"),
        (table({"node": 1, "seconds": 1}, device_kind=""), "device_kind is empty"),
        (
            table({"node": 1, "seconds": 1}, symbol_values={"batch": "8"}),
            "batch is '8', needs an integer",
        ),
        (
            table({"node": 1, "seconds": 1}, symbol_values={"batch": 2**63}),
            "batch is 92233.*of at most 64",
        ),
        (table({"node": 1, "seconds": 1}, symbol_values={"batch": -(2**63)}), "symbol_values.batch is -92233"),
        (table({"node": 1, "seconds": 10**400}), r"times\[0\].seconds is 1000.*, needs a finite number"),
        (table({"node": 1, "seconds": 1}, kind="cpu"), "kind: no such field"),
        (table({"node": 1, "seconds": 1}, source=3), "source is 3, needs a text"),
        (table({"node": 1, "seconds": 1}, delivery={"input_seconds": 1}), r"delivery: has \['input_seconds'\], needs"),
        (table({"node": 1, "seconds": 1}, update={"norm_seconds": 1}), r"update: has \['norm_seconds'\], needs"),
        (
            table({"node": 1, "seconds": 1}, delivery={"input_seconds": 1, "output_seconds": -1}),
            "delivery.output_seconds is -1, needs a finite number",
        ),
        (
            with_saved(inputs=True, outputs=False),
            r"times\[0\].saved: has \['inputs', 'outputs'\], needs inputs, outputs and",
        ),
        (with_saved(inputs=1, outputs=False, within_bytes=0), r"times\[0\].saved.inputs is 1, needs true or false"),
        (with_saved(inputs=True, outputs="no", within_bytes=0), "saved.outputs is no, needs true or false"),
        (with_saved(inputs=True, outputs=True, within_bytes=0.5), "saved.within_bytes is 0.5, needs an integer"),
        (with_saved(inputs=True, outputs=True, within_bytes=-1), "node 1: saved.within_bytes is -1, needs 0 to"),
        (table({"node": 1, "seconds": 1}, num_threads=0.5), "num_threads is 0.5, needs an integer"),
        (table({"node": 1, "seconds": 1}, num_threads=-1), "num_threads is -1, needs 0 to 4096"),
        (table({"node": 1, "seconds": 1}, symbol_values=[]), "symbol_values: is list, needs an object"),
        (table({"node": 1, "seconds": 1}, symbol_values={"batch": True}), "symbol_values.batch is True"),
        (table({"node": 2**40 + 1, "seconds": 1}), r"times\[0\].node: '1099511627777' is no index"),
        (
            [table({"node": 0, "seconds": 1}), table({"node": 0, "seconds": 1e9})],
            r"\[1\].node 0: seconds is 1000000000",
        ),
        ([table({"node": 0, "seconds": 1}), table({"node": 0})], r"\[1\].times\[0\]"),
    ],
)
def test_error_names_the_entry(content: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        read_times(json.dumps(content))


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not JSON"):
        read_times("node 0: 3 ms")
    with pytest.raises(InvalidArgument, match=r"times\[0\].seconds is nan"):
        read_times('{"device_kind": "cpu", "times": [{"node": 0, "seconds": NaN}]}')
