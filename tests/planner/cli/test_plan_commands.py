"""What can be asked of plans besides making and listing them, against a real server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cli import exit_codes
from planner.cli.commands.plan.export import ExportFormat
from planner.wire.graph import graph_to_bytes
from tests.contract.graphs import linear_chain
from tests.planner.cli.conftest import RunCli

pytestmark = pytest.mark.services


@pytest.fixture
def graph(cli: RunCli, chain: Path) -> str:
    return cli("submit", chain, "-o", "json").document()["id"]


def cut_plan(cli: RunCli, graph: str, devices: Path, *arguments: object) -> Any:
    return cli("plan", "create", "--graph", graph, "--inventory", devices, *arguments, "-o", "json").document()


def test_diff(cli: RunCli, graph: str, two_devices: Path) -> None:
    one = cut_plan(cli, graph, two_devices, "--cut", "layers.0")
    other = cut_plan(cli, graph, two_devices, "--cut", "layers.2")
    document = cli("plan", "diff", one["id"], other["id"], "-o", "json").document()
    assert document["num_nodes_moved"] == 2
    assert document["moved_bytes"] == 2 * 8 * 8 * 4
    table = cli("plan", "diff", one["id"], other["id"]).stdout
    assert "2 of 4 nodes move (50.0%)" in table
    assert "512 B of state to move" in table


def test_diff_of_plans_of_two_graphs_is_refused(cli: RunCli, graph: str, chain: Path, two_devices: Path) -> None:
    finished = cli("plan", "diff", cut_plan(cli, graph, two_devices)["id"], "plan-000000000000")
    assert finished.status == exit_codes.NOT_FOUND


def test_what_if_stores_nothing(cli: RunCli, graph: str, two_devices: Path, tmp_path: Path) -> None:
    plan = cut_plan(cli, graph, two_devices, "--cut", "layers.1")
    before = cli("plan", "list", "--graph", graph, "-o", "json").document()
    document = cli("plan", "what-if", plan["id"], "--mode", "single", "--without", "a", "-o", "json").document()
    assert [stage["device_ids"] for stage in document["plan"]["stages"]] == [["b"]]
    assert document["diff"]["num_stages"] == [2, 1]
    assert cli("plan", "list", "--graph", graph, "-o", "json").document() == before
    bigger = tmp_path / "bigger.yaml"
    bigger.write_text("devices:\n- {id: x, memory: 1GiB}\n- {id: y, memory: 1GiB}\n")
    table = cli("plan", "what-if", plan["id"], "--inventory", bigger).stdout
    assert "→ x: 2 tensors, 512 B" in table
    assert "4 of 4 nodes move" in table


def test_what_if_a_device_that_is_not_there_is_left_out(cli: RunCli, graph: str, two_devices: Path) -> None:
    plan = cut_plan(cli, graph, two_devices, "--cut", "layers.1")
    finished = cli("plan", "what-if", plan["id"], "--without", "c")
    assert finished.status == exit_codes.INVALID_INPUT
    assert "no device is called 'c'; there are 'a', 'b'" in finished.stderr


def test_export(cli: RunCli, graph: str, two_devices: Path) -> None:
    plan = cut_plan(cli, graph, two_devices, "--cut", "layers.0")["id"]

    def exported(format_: str, *arguments: str) -> str:
        return cli("plan", "export", plan, "--format", format_, *arguments).stdout.strip()

    assert exported("vllm") == "VLLM_PP_LAYER_PARTITION=1,3"
    assert exported("megatron") == '--pipeline-model-parallel-layout "Et|t*3L"'
    assert json.loads(exported("torch-pipelining")) == {"layers.1": "beginning"}
    assert json.loads(exported("torchtitan")) == [["layers.0"], ["layers.1", "layers.2", "layers.3"]]
    assert json.loads(exported("device-map")) == {"layers.0": 0, "layers.1": 1, "layers.2": 1, "layers.3": 1}
    named = json.loads(exported("device-map", "--name", "a=cuda:0", "--name", "b=1"))
    assert set(named.values()) == {"cuda:0", 1}
    for unnamed in ("a", "=cuda:0", "a="):
        assert "is no DEVICE=NAME" in cli("plan", "export", plan, "--format", "device-map", "--name", unnamed).stderr
    assert json.loads(exported("device-map", "--nearest")) == json.loads(exported("device-map"))
    refused = cli("plan", "export", plan, "--format", "torchtitan", "--nearest")
    assert refused.status == exit_codes.INVALID_INPUT
    movers = "vllm, megatron, device-map, llama-cpp, exo, deepspeed, nanotron, mlx"
    assert f"only {movers} move what is cut" in refused.stderr
    assert exported("llama-cpp") == "--tensor-split 1,4"
    assert [shard["end_layer"] for shard in json.loads(exported("exo"))] == [1, 4]
    assert json.loads(exported("deepspeed")) == [0, 1, 4]
    assert json.loads(exported("nanotron")) == {"embedding": 0, "decoder": [0, 1, 1, 1], "head": 1}
    assert json.loads(exported("mlx")) == [3, 1]


def test_layers_are_kept_whole(cli: RunCli, graph: str, two_devices: Path) -> None:
    plan = cut_plan(cli, graph, two_devices, "--together", "layers.*", "--stages", "2")
    assert cli("plan", "export", plan["id"], "--format", "vllm").stdout.startswith("VLLM_PP_LAYER_PARTITION=")
    refused = cli("plan", "create", "--graph", graph, "--inventory", two_devices, "--together", "blocks.*")
    assert refused.status == exit_codes.INVALID_INPUT
    assert "no node runs in module 'blocks.*'" in refused.stderr


def test_simulate_a_stream(cli: RunCli, graph: str, two_devices: Path, tmp_path: Path) -> None:
    plan = cut_plan(cli, graph, two_devices, "--cut", "layers.1")
    trace = tmp_path / "trace.json"
    document = cli("plan", "simulate", plan["id"], "--microbatches", 20, "--trace", trace, "-o", "json").document()
    simulation = document["simulation"]
    assert document["schedule"] == "inference"
    assert len(simulation["output_seconds"]) == 20
    assert simulation["makespan_seconds"] >= 20 * plan["bottleneck_seconds"]
    assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} >= {"X", "M"}
    lost = cli("plan", "simulate", plan["id"], "--trace", tmp_path / "nowhere" / "trace.json")
    assert lost.status == exit_codes.INVALID_INPUT
    assert "No such file" in lost.stderr
    table = cli("plan", "simulate", plan["id"]).stdout
    assert "inference, 32 microbatches" in table
    assert "of device time is bubble" in table
    refused = cli("plan", "simulate", plan["id"], "--schedule", "gpipe")
    assert refused.status == exit_codes.INVALID_INPUT
    assert "the plan is for inference" in refused.stderr


def test_simulate_a_training_step(cli: RunCli, two_devices: Path, tmp_path: Path) -> None:
    chain = linear_chain(4, name="trained")
    states = tuple(replace(state, requires_grad=True) for state in chain.states)
    (tmp_path / "trained.ppgraph").mkdir()
    (tmp_path / "trained.ppgraph" / "graph.pb").write_bytes(graph_to_bytes(replace(chain, states=states)))
    graph = cli("submit", tmp_path / "trained.ppgraph", "-o", "json").document()["id"]
    plan = cut_plan(cli, graph, two_devices, "--cut", "layers.1", "--schedule", "1f1b", "--microbatches", 4)
    document = cli("plan", "simulate", plan["id"], "-o", "json").document()
    assert document["simulation"]["makespan_seconds"] == pytest.approx(plan["step_seconds"])
    slower = cli("plan", "simulate", plan["id"], "--microbatches", 8, "--schedule", "gpipe", "-o", "json").document()
    assert slower["simulation"]["makespan_seconds"] > document["simulation"]["makespan_seconds"]
    assert "training step" in cli("plan", "get", plan["id"]).stdout


def test_explain_says_what_the_next_best_cut_costs(cli: RunCli, graph: str, two_devices: Path) -> None:
    plan = cut_plan(cli, graph, two_devices, "--cut", "layers.0")["id"]
    lines = cli("plan", "explain", plan, "-o", "json").document()["lines"]
    (line,) = (line for line in lines if "next best" in line)
    assert "with the other cuts where they are: after" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--cut", "layers.0", "--mode", "optimal"), "only --mode cut takes it"),
        (("--mode", "balanced", "--free"), "only --mode optimal takes it"),
        (("--mode", "size_based", "--stages", "2"), "only --mode optimal or balanced takes it"),
        (("--mode", "aot_based"), "needs --assignment FILE"),
        (("--symbol", "batch"), "is no NAME=VALUE"),
        (("--bucket", "batch=x"), "is no NAME=VALUE,…[:WEIGHT]"),
        (("--fix", "layers.0"), "is no MODULE=DEVICE"),
        (("--together", "layers.0"), "needs two or more"),
        (("--objective", "step_time"), "needs a training schedule"),
        (("--effort", "-1"), "effort is -1.0"),
    ],
)
def test_options_that_cannot_be_are_refused(
    cli: RunCli, graph: str, two_devices: Path, arguments: tuple[str, ...], says: str
) -> None:
    finished = cli("plan", "create", "--graph", graph, "--inventory", two_devices, *arguments)
    assert finished.status == exit_codes.INVALID_INPUT
    assert says in " ".join(finished.stderr.split())
    assert "Traceback" not in finished.stderr


def test_an_assignment_by_hand(cli: RunCli, graph: str, two_devices: Path, tmp_path: Path) -> None:
    path = tmp_path / "assignment.json"
    path.write_text(json.dumps({"partition_of_node": [0, 0, 0, 1], "device_of_partition": ["b", "a"]}))
    plan = cut_plan(cli, graph, two_devices, "--assignment", path)
    assert [(stage["device_ids"], stage["num_nodes"]) for stage in plan["stages"]] == [(["b"], 3), (["a"], 1)]
    path.write_text('{"partition_of_node": [0.5]}')
    finished = cli("plan", "create", "--graph", graph, "--inventory", two_devices, "--assignment", path)
    assert finished.status == exit_codes.INVALID_INPUT


def test_what_was_exported_is_imported_again(cli: RunCli, graph: str, two_devices: Path, tmp_path: Path) -> None:
    plan = cut_plan(cli, graph, two_devices, "--cut", "layers.0")
    over = ("--graph", graph, "--inventory", two_devices, "-o", "json")
    for format_ in [one.value for one in ExportFormat]:
        written = cli("plan", "export", plan["id"], "--format", format_).stdout
        imported = cli("plan", "import", "--format", format_, *over, "--", written).document()
        assert [stage["node_ranges"] for stage in imported["stages"]] == [
            stage["node_ranges"] for stage in plan["stages"]
        ]
    (tmp_path / "split.json").write_text(cli("plan", "export", plan["id"], "--format", "exo").stdout)
    there = cli("plan", "import", tmp_path / "split.json", "--format", "exo", "--device", "b", "--device", "a", *over)
    assert [stage["device_ids"] for stage in there.document()["stages"]] == [["b"], ["a"]]


def test_an_imported_split_beside_the_best(cli: RunCli, graph: str, two_devices: Path) -> None:
    over = ("--format", "vllm", "--graph", graph, "--inventory", two_devices)
    document = cli("plan", "import", "3,1", *over, "--best", "-o", "json").document()
    assert document["plan"]["bottleneck_seconds"] >= document["best"]["bottleneck_seconds"]
    assert document["diff"]["bottleneck_seconds"] == [
        document["plan"]["bottleneck_seconds"],
        document["best"]["bottleneck_seconds"],
    ]
    table = cli("plan", "import", "3,1", *over, "--best").stdout
    assert "proven optimal" in table
    assert ["vllm", "best", "change"] in [line.split() for line in table.splitlines()]
    refused = cli("plan", "import", "1,1,2", *over)
    assert refused.status == exit_codes.INVALID_INPUT
    assert "the split is over 3 devices, and there are 2: a, b" in refused.stderr
    assert "nor the name of a file" in cli("plan", "import", "1,3", "--format", "exo", *over[2:]).stderr
    unknown = cli("plan", "import", "1,3", *over, "--device", "c", "--device", "a")
    assert "device 'c' is not in the inventory, which has 'a', 'b'" in unknown.stderr
    alone = cli("plan", "import", "4", *over, "--device", "b", "--best", "-o", "json").document()
    assert [stage["device_ids"] for stage in alone["best"]["stages"]] == [["b"]]
