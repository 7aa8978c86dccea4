"""The client against a real planner-server: graphs, inventories, plans, and errors by their own types."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from planner.client import PlannerClient
from planner.client.records import OperationState, StoredPlan, UploadProgress
from planner.cost.inventory import Device, Inventory
from planner.errors import (
    Cancelled,
    Conflict,
    DeploymentFailed,
    Infeasible,
    InvalidArgument,
    NotFound,
    OptionsError,
    PlannerError,
    Unavailable,
)
from planner.plan.options import BalancedMode, CutMode, PlanOptions, Routing
from planner.wire.graph import graph_to_bytes
from tests.contract.graphs import chain_bytes, chain_weights, linear_chain, relu_chain

pytestmark = pytest.mark.services

MEBIBYTE = 1 << 20


def inventory(*memory_bytes: int) -> Inventory:
    return Inventory(
        devices=tuple(
            Device(id=f"d{index}", kind="cpu", host="h", memory_bytes=size) for index, size in enumerate(memory_bytes)
        )
    )


def saved_chain(folder: Path, num_layers: int = 4) -> Path:
    """Another graph for each test: what one of them is called, or was given, stays with it."""
    folder.mkdir()
    (folder / "graph.pb").write_bytes(chain_bytes(num_layers, name=f"chain of {folder.parent.name}"))
    (folder / "weights-00001.safetensors").write_bytes(chain_weights(num_layers))
    return folder


def test_a_saved_graph_is_submitted_with_its_weights(client: PlannerClient, tmp_path: Path) -> None:
    record = client.submit(saved_chain(tmp_path / "chain"), name="my chain")
    assert (record.name, record.num_nodes, record.num_states, record.deployable) == ("my chain", 4, 4, True)
    assert len(record.weight_files) == 1
    assert client.get_graph(record.id[:8]) == client.get_graph(record.id)
    assert record.id in [graph.id for graph in client.list_graphs()]
    assert graph_to_bytes(client.read_graph(record.id)) == (tmp_path / "chain" / "graph.pb").read_bytes()
    # Again: the same program is the same graph.
    assert client.submit(tmp_path / "chain").id == record.id


def test_weights_can_follow_later(client: PlannerClient, tmp_path: Path) -> None:
    record = client.submit(linear_chain(5))
    assert not record.deployable
    assert record.not_deployable_reason
    others, weights, sent = tmp_path / "others.safetensors", tmp_path / "w.safetensors", list[UploadProgress]()
    others.write_bytes(chain_weights(4))
    weights.write_bytes(chain_weights(5))
    with pytest.raises(NotFound, match=r"'layers.4.weight' is in none of the weight files"):
        client.attach_weights(record.id, [others], sent.append)
    assert not sent
    assert client.attach_weights(record.id, weights, sent.append).deployable
    assert sent


def test_what_is_no_graph_is_refused(client: PlannerClient, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"graph\.pb"):
        client.submit(tmp_path)
    (tmp_path / "graph.pb").write_bytes(b"\xff" * 100)
    with pytest.raises(InvalidArgument):
        client.submit(tmp_path)


def test_a_plan_is_made_read_listed_and_deleted(client: PlannerClient) -> None:
    graph = client.submit(linear_chain(6))
    options = PlanOptions(mode=CutMode(module_paths=("layers.2",)), routing=Routing.RELAY)
    plan = client.create_plan(graph.id, options, inventory=inventory(MEBIBYTE, MEBIBYTE), request_id="first")
    assert isinstance(plan, StoredPlan)
    assert [stage.num_nodes for stage in plan.stages] == [3, 3]
    assert plan.options == options
    assert client.get_plan(plan.id) == plan
    again = client.create_plan(graph.id, options, inventory=inventory(MEBIBYTE, MEBIBYTE), request_id="first")
    assert again.id == plan.id
    summary = next(summary for summary in client.list_plans(graph_id=graph.id))
    assert (summary.id, summary.mode, summary.num_stages) == (plan.id, "cut", 2)
    assert list(client.list_plans(graph_id=graph.id, mode="balanced")) == []
    client.delete_plan(plan.id)
    with pytest.raises(NotFound):
        client.get_plan(plan.id)


def test_plans_are_listed_over_several_pages(client: PlannerClient) -> None:
    graph = client.submit(linear_chain(7))
    plan_ids = {client.create_plan(graph.id, BalancedMode(), inventory=inventory(MEBIBYTE)).id for _ in range(5)}
    listed = [plan.id for plan in client.list_plans(graph_id=graph.id, page_size=2)]
    assert len(listed) == 5
    assert set(listed) == plan_ids


def test_a_plan_over_a_stored_inventory(client: PlannerClient) -> None:
    graph = client.submit(linear_chain(3))
    stored = client.create_inventory(inventory(MEBIBYTE, 2 * MEBIBYTE), name="two")
    assert client.get_inventory(stored.id) == stored
    assert stored.id in [record.id for record in client.list_inventories()]
    plan = client.create_plan(graph.id, BalancedMode(num_stages=2), inventory_id=stored.id)
    assert plan.inventory == stored.inventory


def test_planning_errors_come_back_as_their_own_types(client: PlannerClient) -> None:
    graph = client.submit(linear_chain(4))
    with pytest.raises(Infeasible) as lacking:
        client.create_plan(graph.id, BalancedMode(), inventory=inventory(100))
    assert lacking.value.metadata
    with pytest.raises(OptionsError, match=r"layers\.99"):
        client.create_plan(graph.id, CutMode(module_paths=("layers.99",)), inventory=inventory(MEBIBYTE, MEBIBYTE))
    with pytest.raises(OptionsError, match="one of"):
        client.create_plan(graph.id, BalancedMode(), inventory=inventory(MEBIBYTE), inventory_id="inv-1")
    with pytest.raises(NotFound):
        client.create_plan("0" * 64, BalancedMode(), inventory=inventory(MEBIBYTE))
    client.create_plan(graph.id, BalancedMode(), inventory=inventory(MEBIBYTE), request_id="taken")
    with pytest.raises(Conflict):
        client.create_plan(graph.id, BalancedMode(), inventory=inventory(2 * MEBIBYTE), request_id="taken")


def test_planning_can_be_cancelled(client: PlannerClient) -> None:
    graph = client.submit(relu_chain(20_000))
    operation = client.start_plan(graph.id, BalancedMode(), inventory=inventory(*[MEBIBYTE] * 8))
    with pytest.raises(Unavailable, match=f"{operation.id} is not ready"):
        operation.wait(timeout_seconds=0)
    assert operation.cancel() is OperationState.CANCELLED
    with pytest.raises(Cancelled):
        operation.wait()
    assert client.get_plan_operation(operation.id).state is OperationState.CANCELLED


def test_nothing_is_there_to_deploy(client: PlannerClient) -> None:
    assert client.list_devices() == ()
    assert list(client.list_deployments()) == []
    for ask in (client.deploy, client.get_deployment, client.stop, client.pipeline):
        with pytest.raises(NotFound):
            ask("plan-or-deployment")
    with pytest.raises(NotFound):
        list(client.watch("dep-0"))


def test_a_plan_for_devices_that_are_not_there_is_not_deployed(client: PlannerClient, tmp_path: Path) -> None:
    graph = client.submit(saved_chain(tmp_path / "chain"))
    plan = client.create_plan(graph.id, BalancedMode(), inventory=inventory(MEBIBYTE))
    with pytest.raises((Conflict, Unavailable, DeploymentFailed), match="d0"):
        client.deploy(plan.id)


def test_what_is_no_id_is_told_from_one(client: PlannerClient, tmp_path: Path) -> None:
    record = client.submit(saved_chain(tmp_path / "chain"))
    plan = client.create_plan(record.id, BalancedMode(), inventory=inventory(MEBIBYTE))
    for call, given in (
        (client.get_graph, record),
        (client.deploy, plan),
        (client.stop, plan),
        (client.pipeline, plan),
    ):
        with pytest.raises(InvalidArgument, match=f"_id is a {type(given).__name__}, needs str: give its id"):
            call(given)  # type: ignore[operator]
    with pytest.raises(InvalidArgument, match="graph_id is a GraphRecord, needs str: give its id"):
        client.create_plan(graph_id=record, options=BalancedMode())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"deployment_id is a int, needs str$"):
        next(iter(client.watch(3)))  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=r"options\.mode is 'optimal', needs Mode"):
        client.create_plan(record.id, "optimal")  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgument, match=r"got a list, needs what export\(module, args\) gives, or where that was"
    ):
        client.submit([])  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["", "127.0.0.1", "http://127.0.0.1:50051", "a:1,", [], 50051, ["a:1", 2]])
def test_what_is_no_address_is_refused(address: object) -> None:
    with pytest.raises(InvalidArgument, match=r"needs host:port, as 127\.0\.0\.1:50051"):
        PlannerClient(address)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["[::1]:50051", "planner.cluster.local:50051", "dns:///planner:1", "a:1,b:2"])
def test_addresses_are_as_grpc_takes_them(address: str) -> None:
    with PlannerClient(address) as client:
        assert client.address == address


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with PlannerClient(address) as client, pytest.raises(Unavailable) as refused:
            client.list_devices()
    assert address in refused.value.message
    assert "planner-server" in refused.value.message


def test_a_server_that_says_nothing_is_given_up_on() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with PlannerClient(address, timeout_seconds=0.5) as client, pytest.raises(Unavailable, match=address):
            client.list_devices()


def test_every_error_type_has_a_reason_of_its_own() -> None:
    def tree(root: type[PlannerError]) -> list[type[PlannerError]]:
        return [root, *(kind for child in root.__subclasses__() for kind in tree(child))]

    kinds = [kind for kind in tree(PlannerError) if kind.__module__ == "planner.errors"]
    assert len({kind.reason for kind in kinds}) == len(kinds)


def test_export_stays_a_function_beside_its_package() -> None:
    import planner.client
    import planner.client.export.export

    assert callable(planner.client.export)
    assert "planner.client.export" in sys.modules
