"""make_plan from end to end: whatever it returns has passed the verifier."""

from dataclasses import replace

import pytest

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.errors import GraphError, Infeasible, InventoryError, OptionsError
from planner.graph.ir import Graph
from planner.partition.objective import Training
from planner.plan.options import AotBasedMode, BalancedMode, Mode, PlanOptions, Routing, SizeBasedMode
from planner.planning import chosen_symbol_values, make_plan
from tests.builders.plans import inventory_of
from tests.builders.random_graphs import GraphWriter, random_graph


def inventory(*memory_bytes: int, linked: bool = False) -> Inventory:
    devices = tuple(
        Device(id=f"d{index}", kind=("cpu", "l4")[index % 2], host="h", memory_bytes=size)
        for index, size in enumerate(memory_bytes)
    )
    slow = LinkSpeed(bytes_per_second=1e6, latency_seconds=1e-4)
    return Inventory(devices=devices, links={("d0", "d1"): slow} if linked else {})


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("mode", [SizeBasedMode(), BalancedMode(), BalancedMode(num_stages=2)], ids=repr)
@pytest.mark.parametrize("memory", [(1 << 40,) * 3, (2000, 900, 3000), (400, 700, 500)], ids=repr)
def test_random_programs_give_plans_that_verify(mode: Mode, routing: Routing, memory: tuple[int, ...]) -> None:
    for seed in range(12):
        graph = random_graph(seed, 14)
        try:
            plan = make_plan(
                graph, "id", inventory(*memory, linked=seed % 2 == 0), PlanOptions(mode=mode, routing=routing)
            )
        except (Infeasible, OptionsError):
            assert memory[0] < 1 << 40 or mode == BalancedMode(num_stages=2)
            continue
        assert plan.graph_id == "id"
        assert plan.num_nodes == len(graph.nodes)


def test_same_question_same_plan() -> None:
    options = PlanOptions(mode=BalancedMode(num_stages=2))
    plans = [make_plan(random_graph(3, 30), "id", inventory(1 << 30, 1 << 30), options) for _ in range(2)]
    assert plans[0] == plans[1]


def test_larger_batch_costs_more() -> None:
    graph = random_graph(3, 30)
    costs = []
    for batch in (1, 64):
        options = PlanOptions(mode=SizeBasedMode(), symbol_values=(("batch", batch),))
        plan = make_plan(graph, "id", inventory(1 << 30), options)
        assert dict(plan.symbol_values) == {"batch": batch}
        costs.append(plan.stages[0].memory.activation_bytes)
    assert costs[0] < costs[1]


def test_symbols_take_their_hint_unless_told_otherwise() -> None:
    graph = random_graph(0, 5)
    assert chosen_symbol_values(graph, PlanOptions(mode=SizeBasedMode())) == graph.hints()


@pytest.mark.parametrize(
    ("name", "value", "message"), [("bach", 2, "'batch'"), ("batch", 65, "1 to 64"), ("batch", 0, "1 to 64")]
)
def test_impossible_symbol_values_are_refused(name: str, value: int, message: str) -> None:
    options = PlanOptions(mode=SizeBasedMode(), symbol_values=((name, value),))
    with pytest.raises(OptionsError, match=message):
        make_plan(random_graph(0, 5), "id", inventory(1 << 30), options)


def test_impossible_microbatches_in_flight_are_refused() -> None:
    options = PlanOptions(mode=SizeBasedMode(), microbatches_in_flight=1 << 40)
    with pytest.raises(OptionsError, match="microbatches_in_flight"):
        make_plan(random_graph(0, 5), "id", inventory(1 << 30), options)


def test_empty_graph_is_refused() -> None:
    with pytest.raises(GraphError, match="no nodes"):
        make_plan(Graph(torch_version="2.13", name="void"), "id", inventory(1), PlanOptions(mode=SizeBasedMode()))


def test_empty_inventory_is_refused() -> None:
    with pytest.raises(InventoryError, match="no devices"):
        make_plan(random_graph(0, 5), "id", Inventory(devices=()), PlanOptions(mode=SizeBasedMode()))


def test_crowd_of_devices_is_refused() -> None:
    crowd = inventory(*range(1000, 2000))
    with pytest.raises(InventoryError, match="1000 devices"):
        make_plan(random_graph(0, 5), "id", crowd, PlanOptions(mode=BalancedMode()))


@pytest.mark.parametrize("training", [None, Training()], ids=["inference", "training"])
@pytest.mark.parametrize("reader", [0, 1])
def test_a_returned_state_is_the_last_stages_whatever_the_order(reader: int, training: Training | None) -> None:
    """The last node of the program is in the first stage; a state that one of the nodes reads is returned."""
    writer = GraphWriter()
    given, weight = writer.input(), writer.state()
    results = [writer.multiply(given, *([weight] if node == reader else [])) for node in range(2)]
    graph = writer.graph(*results, weight)
    graph = replace(graph, states=(replace(graph.states[0], requires_grad=True),))
    mode = AotBasedMode(partition_of_node=(1, 0), device_of_partition=("node0/cpu", "node1/cpu"))
    plan = make_plan(graph, "id", inventory_of(2), PlanOptions(mode=mode, training=training))
    assert [stage.node_ranges for stage in plan.stages] == [((1, 2),), ((0, 1),)]
    held = (graph.states[0].name,)
    assert [stage.states for stage in plan.stages] == [held if reader == 1 else (), held]
