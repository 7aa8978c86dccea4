"""Commands about what needs daemons, against a server that keeps to a script: what they ask, write and end with."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from planner.cli import exit_codes
from planner.errors import Conflict
from planner.wire.graph import graph_to_bytes
from protos.v1 import inventory_pb2, planner_pb2
from tests.contract.graphs import chain_weights, linear_chain
from tests.planner.cli.conftest import RunCli
from tests.planner.client.loopback_daemon import LoopbackDaemon, identity_graph, serving
from tests.planner.client.scripted_planner import ScriptedPlanner
from tests.planner.client.test_deployments import deployment, event

pytestmark = pytest.mark.services

Scripted = tuple[ScriptedPlanner, RunCli]
GRAPH = "ab" * 32
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def graph(graph_id: str, name: str, seconds: int = 0) -> planner_pb2.GraphRecord:
    record = planner_pb2.GraphRecord(id=graph_id, name=name, num_nodes=3, deployable=True)
    record.created_at.seconds = seconds
    return record


def test_deploying_is_followed_until_it_is_ready(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("Deploy", deployment("PENDING"))
    loading = planner_pb2.DeploymentEvent(
        sequence=2,
        state=planner_pb2.DEPLOYMENT_STATE_LOADING,
        stage=0,
        device_id="a",
        loaded_bytes=1000,
        total_bytes=1000,
    )
    script.on("WatchDeployment", [event(1, "LOADING"), loading, event(3, "READY")])
    script.on("GetDeployment", deployment("READY"))
    finished = cli("deploy", "plan-1", "-o", "json")
    assert finished.document()["state"] == "ready"
    assert "stage 0 on a" in finished.stderr
    assert script.requests("Deploy")[0].plan_id == "plan-1"
    assert "dep-1: ready (plan-1, generation 0)" in cli("deploy", "plan-1").stdout


def test_deploying_need_not_be_followed(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("Deploy", deployment("PENDING"))
    assert cli("deploy", "plan-1", "--no-wait", "-o", "yaml").stdout.startswith("id: dep-1\n")
    assert [call.method for call in script.calls] == ["Deploy"]


def test_a_rollout_that_fails_has_its_own_status(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    failure = planner_pb2.Failure(reason="WORKER_DIED", message="killed", stage=1, device_id="b")
    script.on("Deploy", deployment("PENDING"))
    script.on("WatchDeployment", [event(1, "FAILED")])
    script.on("GetDeployment", deployment("FAILED", failure=failure))
    finished = cli("deploy", "plan-1")
    assert (finished.status, finished.stdout) == (exit_codes.DEPLOYMENT_FAILED, "")
    assert "error: deployment dep-1 failed in stage 1 on device b: killed" in finished.stderr


def test_deployments_are_listed_got_and_stopped(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("ListDeployments", planner_pb2.ListDeploymentsResponse(deployments=[deployment("READY")]))
    script.on("GetDeployment", deployment("READY"))
    script.on("StopDeployment", deployment("STOPPED"))
    [listed] = cli("deployment", "list", "--plan", "plan-1", "--active", "-o", "json").document()
    assert listed == cli("deployment", "get", "dep-1", "-o", "json").document()
    assert cli("stop", "dep-1", "-o", "json").document()["state"] == "stopped"
    assert cli("deployment", "stop", "dep-1").status == exit_codes.USAGE
    request = script.requests("ListDeployments")[0]
    assert (request.plan_id, request.active_only) == ("plan-1", True)
    cli("deployment", "list")
    assert not script.requests("ListDeployments")[1].active_only
    assert "dep-1" in cli("deployment", "list").stdout
    assert "dep-1: ready" in cli("deployment", "get", "dep-1").stdout
    assert "dep-1: stopped" in cli("stop", "dep-1").stdout


def test_events_are_written_one_by_one(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    first = planner_pb2.DeploymentEvent(sequence=1, state=planner_pb2.DEPLOYMENT_STATE_LOADING, message="π")
    first.occurred_at.FromDatetime(MOMENT)
    script.on("WatchDeployment", [first, event(2, "STOPPED")])
    as_json = cli("deployment", "watch", "dep-1", "-o", "json")
    lines = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert [(line["sequence"], line["state"]) for line in lines] == [(1, "loading"), (2, "stopped")]
    assert '"π"' in as_json.stdout
    assert as_json.stderr == "dep-1 is stopped\n"
    assert yaml.safe_load(cli("deployment", "watch", "dep-1", "-o", "yaml").stdout) == lines
    lines_of_table = cli("deployment", "watch", "dep-1").stdout.splitlines()
    assert lines_of_table[0] == f"{MOMENT.astimezone():%H:%M:%S} loading: π"
    assert lines_of_table[1].endswith(" stopped")


@pytest.mark.parametrize(("failure", "says"), [(planner_pb2.Failure(message="it died"), "it died"), (None, "said")])
def test_watching_one_that_fails_says_why(
    scripted_cli: Scripted, failure: planner_pb2.Failure | None, says: str
) -> None:
    script, cli = scripted_cli
    last = planner_pb2.DeploymentEvent(
        sequence=1, state=planner_pb2.DEPLOYMENT_STATE_FAILED, message="said", failure=failure
    )
    script.on("WatchDeployment", [last])
    finished = cli("deployment", "watch", "dep-1")
    assert finished.status == exit_codes.DEPLOYMENT_FAILED
    assert finished.stderr == f"error: {says}\n"


def test_devices_are_listed(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    device = inventory_pb2.Device(id="a", kind="h100", host="n1", memory_bytes=80 << 30)
    registered = planner_pb2.RegisteredDevice(
        device=device, daemon_address="n1:1", deployment_ids=["dep-1"], torch_version="2.13.0"
    )
    script.on("ListDevices", planner_pb2.ListDevicesResponse(devices=[registered]))
    [document] = cli("device", "list", "-o", "json").document()
    assert document["device"]["memory_bytes"] == 80 << 30
    assert (document["daemon_address"], document["deployment_ids"]) == ("n1:1", ["dep-1"])
    assert "80 GiB" in cli("device", "list").stdout


def test_a_device_is_drained(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    leaves = planner_pb2.DeploymentOnDrainedDevice(deployment_id="dep-1")
    stays = planner_pb2.DeploymentOnDrainedDevice(deployment_id="dep-2", stays_because="nothing fits")
    script.on(
        "DrainDevice",
        planner_pb2.DrainDeviceResponse(deployments=[leaves, stays]),
        planner_pb2.DrainDeviceResponse(deployments=[stays]),
    )
    assert cli("device", "drain", "h/gpu0").stdout == "dep-2 stays: nothing fits\n"
    assert [request.device_id for request in script.requests("DrainDevice")] == ["h/gpu0"] * 2
    script.on("DrainDevice", planner_pb2.DrainDeviceResponse())
    assert cli("device", "drain", "h/gpu0", "--undo").stdout == "nothing is on h/gpu0\n"
    assert script.requests("DrainDevice")[-1].undo


def test_a_graph_is_found_by_name_then_by_id(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    of_the_name = [graph("2", "chain", 9), graph("3", "chain", 7), graph("1", "chain", 5)]
    page = planner_pb2.ListGraphsResponse
    script.on("ListGraphs", lambda request: page(graphs=of_the_name if request.name == "chain" else []))
    script.on("GetGraph", graph(GRAPH, "other"))
    assert cli("graph", "get", "chain", "-o", "json").document()["id"] == "2"
    assert script.requests("GetGraph") == []
    assert cli("graph", "get", GRAPH[:6], "-o", "json").document()["id"] == GRAPH
    assert script.requests("GetGraph")[0].graph_id == GRAPH[:6]
    for other in (GRAPH[:5], "abcdeg", "ABCDEF", "ab" * 33):
        finished = cli("graph", "get", other)
        assert finished.status == exit_codes.NOT_FOUND
        assert f"no graph has the name or id '{other}'" in finished.stderr


def test_a_name_that_looks_like_an_id_is_a_name(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph("2", GRAPH[:6])]))
    script.on("GetGraph", graph(GRAPH, "other"))
    assert cli("graph", "get", GRAPH[:6], "-o", "json").document()["id"] == "2"
    assert script.requests("GetGraph") == []


def profile(profile_id: str) -> planner_pb2.ProfileRecord:
    return planner_pb2.ProfileRecord(
        id=profile_id, graph_id=GRAPH, device_kind="cpu", num_nodes=3, num_measured=2, total_seconds=0.5
    )


def test_profiling_asks_for_what_is_named(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph(GRAPH, "chain")]))
    step = planner_pb2.ProfileGraphResponse
    script.on("ProfileGraph", [step(device_id="a", num_done=1, num_distinct=1), step(profile=profile("p1"))])
    options = ("--device", "a", "--device", "b", "--kind", "h100", "--symbol", "batch=2")
    [record] = cli("profile", "run", "chain", *options, "--repetitions", 7, "--warmup", 4, "-o", "json").document()
    assert (record["id"], record["total_seconds"]) == ("p1", 0.5)
    [request] = script.requests("ProfileGraph")
    assert (request.graph_id, list(request.device_ids), list(request.device_kinds)) == (GRAPH, ["a", "b"], ["h100"])
    assert (dict(request.symbol_values), request.repetitions, request.warmup) == ({"batch": 2}, 7, 4)
    finished = cli("profile", "run", "chain")
    assert "2 of 3" in finished.stdout
    assert "1/1" in finished.stderr


def test_profiles_are_listed_and_deleted(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph(GRAPH, "chain")]))
    script.on("ListProfiles", planner_pb2.ListProfilesResponse(profiles=[profile("p1")]))
    script.on("DeleteProfile", planner_pb2.DeleteProfileResponse(id="p1"))
    assert [one["id"] for one in cli("profile", "list", "-o", "json").document()] == ["p1"]
    cli("profile", "list", "--graph", "chain", "--kind", "cpu")
    assert [(one.graph_id, one.device_kind) for one in script.requests("ListProfiles")] == [("", ""), (GRAPH, "cpu")]
    assert cli("profile", "delete", "p1", "-o", "json").document() == {"id": "p1", "deleted": True}
    assert cli("profile", "delete", "p1").stdout == "p1 deleted\n"
    assert {one.profile_id for one in script.requests("DeleteProfile")} == {"p1"}


def test_times_are_exported_and_imported_again(scripted_cli: Scripted, tmp_path: Path) -> None:
    script, cli = scripted_cli
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph(GRAPH, "chain")]))
    times = [planner_pb2.NodeTime(node=0, seconds=0.1), planner_pb2.NodeTime(node=2, seconds=0.3)]
    script.on("GetProfile", planner_pb2.Profile(record=profile("p1"), times=times))
    script.on("ImportTimes", profile("p2"))
    written = cli("profile", "export", "p1", "times.json")
    assert (written.status, written.stdout) == (0, "")
    assert cli("profile", "export", "p1").stdout == (tmp_path / "times.json").read_text()
    [record] = cli("profile", "import", "times.json", "--graph", "chain", "-o", "json").document()
    assert record["id"] == "p2"
    cli("profile", "import", "times.json")
    first, second = script.requests("ImportTimes")
    assert first == second
    assert (first.graph_id, first.device_kind, list(first.times)) == (GRAPH, "cpu", times)
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph("cd" * 32, "chain")]))
    refused = cli("profile", "import", "times.json", "--graph", "chain")
    assert refused.status == exit_codes.INVALID_INPUT
    assert "the times are of graph abababababab, not of cdcdcdcdcdcd" in refused.stderr


@pytest.fixture
def daemon(scripted_cli: Scripted, tmp_path: Path) -> LoopbackDaemon:
    """Behind a deployment that gives back what it gets: {"y": x} for x of [batch, 3], batch from 1 to 8."""
    daemon = LoopbackDaemon()
    script, _ = scripted_cli
    with serving(daemon) as address:
        script.on("GetDeployment", deployment("READY", input_address=address, output_address=address))
        script.on("GetGraph", planner_pb2.GraphRecord(id=GRAPH))
        script.on("ReadBlob", [planner_pb2.ReadBlobResponse(chunk=graph_to_bytes(identity_graph()))])
        yield daemon  # type: ignore[misc]


def rows(count: int) -> np.ndarray:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


@pytest.mark.parametrize(
    ("arguments", "num_batches"),
    [((), 1), (("--batch-size", 3), 3), (("--batch-size", 7), 1), (("--batch-size", 1, "--window", 1), 7)],
)
def test_a_file_runs_through_a_deployment(
    scripted_cli: Scripted, daemon: LoopbackDaemon, arguments: tuple[object, ...], num_batches: int
) -> None:
    _, cli = scripted_cli
    np.savez("in.npz", x=rows(7))
    finished = cli("run", "dep-1", "in.npz", "--out", "out.npz", *arguments, "-o", "json")
    assert finished.document() == {
        "deployment_id": "dep-1",
        "num_batches": num_batches,
        "outputs": [{"name": "y", "dtype": "float32", "dims": [7, 3]}],
        "path": "out.npz",
    }
    np.testing.assert_array_equal(np.load("out.npz")["y"], rows(7))
    assert daemon.received == list(range(1, num_batches + 1))
    assert f"{num_batches}/{num_batches}" in finished.stderr


def test_a_run_is_told_in_a_table(scripted_cli: Scripted, daemon: LoopbackDaemon) -> None:
    _, cli = scripted_cli
    np.savez("in.npz", x=rows(4))
    table = cli("run", "dep-1", "in.npz", "--batch-size", 2).stdout
    assert "2 batches (--out FILE keeps them)" in table
    assert ["y", "float32", "[4,", "3]"] in [line.split() for line in table.splitlines()]
    assert "1 batch, written to out.safetensors" in cli("run", "dep-1", "in.npz", "--out", "out.safetensors").stdout


def test_a_batch_that_fails_ends_the_run_and_writes_nothing(
    scripted_cli: Scripted, daemon: LoopbackDaemon, tmp_path: Path
) -> None:
    _, cli = scripted_cli
    daemon.failing = {2}
    np.savez("in.npz", x=rows(6))
    finished = cli("run", "dep-1", "in.npz", "--batch-size", 2, "--out", "out.npz")
    assert (finished.status, finished.stdout) == (exit_codes.DEPLOYMENT_FAILED, "")
    assert "microbatch 2 failed in stage 1 on device b: index out of range" in finished.stderr
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"z": rows(2)}, "the file lacks input 'x'; it takes x"),
        ({"x": rows(2), "w": rows(2)}, "the graph has no input 'w'; it takes x"),
        ({"x": rows(2).astype(np.float64)}, "input 'x': float64 found, float32 needed"),
        ({"x": rows(9)}, "dimension 0 (batch) is 9, needs at least 1 and at most 8"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    scripted_cli: Scripted, daemon: LoopbackDaemon, arrays: dict[str, np.ndarray], says: str
) -> None:
    _, cli = scripted_cli
    np.savez("in.npz", **arrays)
    finished = cli("run", "dep-1", "in.npz")
    assert finished.status == exit_codes.INVALID_INPUT
    assert says in finished.stderr
    assert daemon.received == []


def test_where_nothing_can_be_written_nothing_is_run(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    np.savez("in.npz", x=rows(1))
    assert cli("run", "dep-1", "in.npz", "--out", "nowhere/out.npz").status == exit_codes.INVALID_INPUT
    assert cli("run", "dep-1", "in.npz", "--out", "out.txt").status == exit_codes.INVALID_INPUT
    assert cli("run", "dep-1", "lost.npz").status == exit_codes.INVALID_INPUT
    assert script.calls == []


def test_weights_are_attached_to_the_graph_that_is_named(scripted_cli: Scripted, tmp_path: Path) -> None:
    script, cli = scripted_cli
    weights = chain_weights(4)
    (tmp_path / "w.safetensors").write_bytes(weights)
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph(GRAPH, "chain")]))
    script.on("GetGraph", graph(GRAPH, "chain"))
    script.on("ReadBlob", [planner_pb2.ReadBlobResponse(chunk=graph_to_bytes(linear_chain(4)))])
    script.on("GetUpload", planner_pb2.Upload(complete=True))
    script.on("AttachWeights", graph(GRAPH, "chain"))
    assert cli("graph", "attach-weights", "chain", "w.safetensors", "-o", "json").document()["id"] == GRAPH
    [request] = script.requests("AttachWeights")
    assert (request.graph_id, [file.size_bytes for file in request.weights.files]) == (GRAPH, [len(weights)])
    assert cli("graph", "attach-weights", "chain", "lost.safetensors").status == exit_codes.USAGE


def test_a_graph_that_cannot_be_deployed_is_submitted_and_says_so(scripted_cli: Scripted, chain: Path) -> None:
    script, cli = scripted_cli
    record = planner_pb2.GraphRecord(id=GRAPH, name="four", not_deployable_reason="it has no weights")
    script.on("GetUpload", planner_pb2.Upload(complete=True))
    script.on("CreateGraph", record)
    finished = cli("submit", chain, "--name", "four")
    assert "It can be planned, but not deployed: it has no weights" in finished.stderr
    assert script.requests("CreateGraph")[0].name == "four"
    assert len(script.requests("CreateGraph")[0].weights.files) == 1


def test_lists_are_narrowed_by_the_server(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph(GRAPH, "chain")]))
    for method in ("ListInventories", "ListPlans", "ListProfiles", "ListDeployments", "ListDevices"):
        script.on(method, getattr(planner_pb2, f"{method}Response")())
    since = ("--since", "2026-01-02T03:04:05Z", "--owner", "alice")
    cli("graph", "list", "--name", "chain", *since)
    cli("inventory", "list", "--name", "rack", *since)
    cli("plan", "list", *since)
    cli("profile", "list", *since)
    cli("deployment", "list", "--graph", "chain", "--state", "ready", *since)
    cli("device", "list", "--kind", "h100", "--host", "node1")
    requests = {call.method: call.request for call in script.calls if call.method != "ListGraphs"}
    requests["ListGraphs"] = script.requests("ListGraphs")[0]
    devices = requests.pop("ListDevices")
    assert (devices.kind, devices.host) == ("h100", "node1")
    assert len(requests) == 5
    assert all(request.owner == "alice" for request in requests.values())
    assert all(request.created_since.ToDatetime(tzinfo=UTC) == MOMENT for request in requests.values())
    assert (requests["ListGraphs"].name, requests["ListInventories"].name) == ("chain", "rack")
    deployments = requests["ListDeployments"]
    assert (deployments.graph_id, deployments.state) == (GRAPH, planner_pb2.DEPLOYMENT_STATE_READY)
    refused = cli("graph", "list", "--since", "yesterday")
    assert refused.status == exit_codes.INVALID_INPUT
    assert "'yesterday' is no moment; write 90m" in refused.stderr


def test_deletions_say_what_is_gone(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    script.on("ListGraphs", planner_pb2.ListGraphsResponse(graphs=[graph(GRAPH, "chain")]))
    script.on("DeleteGraph", planner_pb2.DeleteGraphResponse(id=GRAPH))
    script.on("DeleteInventory", planner_pb2.DeleteInventoryResponse(id="inv-1"))
    script.on("DeleteDeployment", planner_pb2.DeleteDeploymentResponse(id="dep-1"))
    assert cli("graph", "delete", "chain").stdout == f"{GRAPH} deleted\n"
    assert cli("inventory", "delete", "inv-1", "-o", "json").document() == {"id": "inv-1", "deleted": True}
    assert cli("deployment", "delete", "dep-1", "-o", "json").document() == {"id": "dep-1", "deleted": True}
    assert script.requests("DeleteGraph")[0].graph_id == GRAPH
    script.on("DeleteGraph", Conflict("graph ab is needed by plan plan-1"))
    refusal = cli("graph", "delete", "chain")
    assert (refusal.status, "needed by plan plan-1" in refusal.stderr) == (exit_codes.CONFLICT, True)


def test_collecting_blobs_says_what_was_freed_and_what_was_kept(scripted_cli: Scripted) -> None:
    script, cli = scripted_cli
    answer = planner_pb2.CollectBlobsResponse(num_blobs=1, size_bytes=2048, num_referenced=3, num_young=4)
    script.on("CollectBlobs", answer)
    assert cli("gc").stdout == "1 blob freed, 2 KiB; kept: 3 of graphs, 4 used lately\n"
    script.on("CollectBlobs", planner_pb2.CollectBlobsResponse())
    assert cli("gc", "--dry-run").stdout == "0 blobs would be freed, 0 B; kept: 0 of graphs, 0 used lately\n"
    assert [request.dry_run for request in script.requests("CollectBlobs")] == [False, True]
