"""make_plan from end to end: whatever it returns has passed the verifier."""

from dataclasses import replace

import numpy as np
import pytest

from planner import planning
from planner.cost.calibration import Calibration
from planner.cost.device_kinds import device_kind
from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.cost.measured import MeasuredTimes
from planner.errors import GraphError, Infeasible, InventoryError, OptionsError
from planner.graph.ir import Graph
from planner.partition.describe import describe_seconds
from planner.partition.objective import Objective, Training
from planner.partition.problem import FREE
from planner.plan.options import (
    AotBasedMode,
    BalancedMode,
    CutMode,
    Mode,
    OptimalMode,
    PlanOptions,
    Routing,
    SingleMode,
    SizeBasedMode,
)
from planner.plan.plan import Plan
from planner.planning import chosen_symbol_values, explain_plan, make_plan, partition_problem, plan_costs
from tests.builders.plans import inventory_of
from tests.builders.random_graphs import GraphWriter, random_graph
from tests.contract.graphs import linear_chain


def inventory(*memory_bytes: int, linked: bool = False) -> Inventory:
    devices = tuple(
        Device(id=f"d{index}", kind=("cpu", "l4")[index % 2], host="h", memory_bytes=size)
        for index, size in enumerate(memory_bytes)
    )
    slow = LinkSpeed(bytes_per_second=1e6, latency_seconds=1e-4)
    return Inventory(devices=devices, links={("d0", "d1"): slow} if linked else {})


@pytest.mark.slow
@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("mode", [SizeBasedMode(), BalancedMode(), BalancedMode(num_stages=2)], ids=repr)
@pytest.mark.parametrize("memory", [(1 << 40,) * 3, (2000, 900, 3000), (400, 700, 500)], ids=repr)
def test_random_programs_give_plans_that_verify(mode: Mode, routing: Routing, memory: tuple[int, ...]) -> None:
    for seed in range(4):
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


def test_a_graph_without_the_backward_of_a_function_is_planned_and_not_trained() -> None:
    graph = replace(random_graph(1, 8), custom_backwards=("experiments.Rounded",))
    assert make_plan(graph, "graph", inventory_of(2), PlanOptions()).stages
    with pytest.raises(OptionsError, match=r"cannot be trained: what 'experiments.Rounded' does to gradients is not"):
        make_plan(graph, "graph", inventory_of(2), PlanOptions(training=Training()))


def test_empty_inventory_is_refused() -> None:
    with pytest.raises(InventoryError, match="no devices"):
        make_plan(random_graph(0, 5), "id", Inventory(devices=()), PlanOptions(mode=SizeBasedMode()))


@pytest.mark.parametrize("training", [None, Training()], ids=["inference", "training"])
@pytest.mark.parametrize("reader", [0, 1])
def test_a_returned_state_is_the_last_stages_whatever_the_order(reader: int, training: Training | None) -> None:
    """The last node of the program is in the first stage; a state that one of the nodes reads is returned."""
    writer = GraphWriter()
    batch, weight = writer.input(), writer.state()
    results = [writer.multiply(batch, *([weight] if node == reader else [])) for node in range(2)]
    graph = writer.graph(*results, weight)
    graph = replace(graph, states=(replace(graph.states[0], requires_grad=True),))
    mode = AotBasedMode(partition_of_node=(1, 0), device_of_partition=("node0/cpu", "node1/cpu"))
    plan = make_plan(graph, "id", inventory_of(2), PlanOptions(mode=mode, training=training))
    assert [stage.node_ranges for stage in plan.stages] == [((1, 2),), ((0, 1),)]
    states = (graph.states[0].name,)
    assert [stage.states for stage in plan.stages] == [states if reader == 1 else (), states]


def chain_plan(mode: Mode, num_devices: int = 2, width: int = 64, **options: object) -> Plan:
    """Of four equal layers over equal devices."""
    return make_plan(linear_chain(4, width), "id", inventory_of(num_devices), PlanOptions(mode=mode, **options))  # type: ignore[arg-type]


def test_cuts_and_devices_are_those_asked_for() -> None:
    cut = chain_plan(CutMode(module_paths=("layers.0",)))
    assert [stage.node_ranges for stage in cut.stages] == [((0, 1),), ((1, 4),)]
    mode = AotBasedMode(partition_of_node=(0, 0, 0, 1), device_of_partition=("node1/cpu", "node0/cpu"))
    plan_of_mode = chain_plan(mode)
    assert [stage.device_ids for stage in plan_of_mode.stages] == [("node1/cpu",), ("node0/cpu",)]
    assert [stage.num_nodes for stage in plan_of_mode.stages] == [3, 1]
    with pytest.raises(OptionsError, match="device 'gpu7' is not in the inventory, which has 'node0/cpu', 'node1/cpu'"):
        chain_plan(replace(mode, device_of_partition=("node1/cpu", "gpu7")))


def test_stages_are_as_many_as_asked_for() -> None:
    assert len(chain_plan(BalancedMode(num_stages=3), num_devices=3).stages) == 3
    assert len(chain_plan(OptimalMode(num_stages=3), num_devices=4).stages) == 3
    assert len(chain_plan(OptimalMode(num_stages=1), num_devices=4).stages) == 1


def test_copies_are_made_only_where_they_are_allowed() -> None:
    """A layer of a thousand columns takes far longer than its activations' way to another device."""

    def num_devices_used(mode: Mode, **options: object) -> int:
        plan = chain_plan(mode, num_devices=2, width=1024, **options)
        return sum(len(stage.device_ids) for stage in plan.stages)

    assert num_devices_used(OptimalMode(num_stages=1)) == 1
    assert num_devices_used(OptimalMode(num_stages=1, replicate=True)) == 2
    assert num_devices_used(SingleMode()) == 1
    assert num_devices_used(SingleMode(), saturate_host=True) == 2


def test_each_edge_has_two_buffers_unless_told_otherwise() -> None:
    def buffers(in_flight: int) -> list[int]:
        plan = chain_plan(CutMode(module_paths=("layers.1",)), microbatches_in_flight=in_flight)
        return [stage.memory.buffer_bytes for stage in plan.stages]

    assert buffers(0) == buffers(2)
    assert buffers(4) == [2 * size for size in buffers(2)]
    chain_plan(SizeBasedMode(), microbatches_in_flight=1 << 16)
    with pytest.raises(OptionsError, match="microbatches_in_flight is -1, needs 0"):
        chain_plan(SizeBasedMode(), microbatches_in_flight=-1)


def test_named_profile_whose_rates_are_missing_is_told() -> None:
    rates = Calibration(
        device_kind="cpu", rates=device_kind("t4"), num_nodes=9, median_error=0.1, profile_id="prof-here"
    )
    options = PlanOptions(mode=SingleMode(), rates_from_profiles=("prof-here", "prof-gone"))
    with pytest.raises(OptionsError, match="rates_from_profiles names 'prof-gone', whose rates were not handed over"):
        make_plan(linear_chain(4), "id", inventory_of(1), options, (), (rates,))
    plan = make_plan(
        linear_chain(4), "id", inventory_of(1), replace(options, rates_from_profiles=("prof-here",)), (), (rates,)
    )
    assert plan.cost_sources[0].calibration_profile_ids == ("prof-here",)


def test_named_rates_come_before_the_graphs_own() -> None:
    graph = linear_chain(10, 512)
    own = MeasuredTimes(
        graph_id="", device_kind="cpu", seconds=tuple((node, 1.0) for node in range(9)), profile_id="prof-own"
    )
    quick = Calibration(
        device_kind="cpu", rates=device_kind("h200"), num_nodes=9, median_error=0.1, profile_id="prof-quick"
    )
    by_own = make_plan(graph, "id", inventory_of(1), PlanOptions(mode=SingleMode()), (own,), (quick,))
    options = PlanOptions(mode=SingleMode(), rates_from_profiles=("prof-quick",))
    by_name = make_plan(graph, "id", inventory_of(1), options, (own,), (quick,))
    assert by_own.stages[0].compute_seconds == pytest.approx(10.0, rel=0.01)
    assert by_name.stages[0].compute_seconds == pytest.approx(9.0, rel=0.01)


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.LATENCY])
def test_next_best_cut_is_what_a_plan_cut_there_costs(objective: Objective) -> None:
    """Explained with the times that the plan was made with, by which the first layer takes longest."""
    graph, inventory = linear_chain(4, 64), inventory_of(2)
    options = PlanOptions(mode=CutMode(module_paths=("layers.1",)), objective=objective)
    times = (MeasuredTimes(graph_id="", device_kind="cpu", seconds=((0, 0.25), (1, 0.125), (2, 0.125), (3, 0.125))),)
    plan = make_plan(graph, "id", inventory, options, times)
    elsewhere = replace(options, mode=CutMode(module_paths=("layers.0",)))
    other = make_plan(graph, "id", inventory, elsewhere, times)
    (line,) = (line for line in explain_plan(graph, plan, times) if "next best" in line)
    assert "after node 0" in line or "after linear_0" in line
    assert describe_seconds(other.objective_value) in line
    assert f"({other.objective_value / plan.objective_value - 1:+.1%})" in line


def test_cut_that_has_no_other_place_says_so() -> None:
    """Each device holds one of the two layers and no more."""
    graph = linear_chain(2, 64)
    whole = make_plan(graph, "id", inventory_of(1), PlanOptions(mode=SingleMode()))
    room = int(0.9 * whole.stages[0].memory.peak_bytes)
    devices = tuple(replace(device, memory_bytes=room) for device in inventory_of(2).devices)
    plan = make_plan(graph, "id", Inventory(devices=devices), PlanOptions(mode=CutMode(module_paths=("layers.0",))))
    assert any("no other place for this cut" in line for line in explain_plan(graph, plan))


def test_problem_is_the_question_in_numbers() -> None:
    options = PlanOptions(training=Training(), routing=Routing.RELAY, fixed=(("layers.3", "node1/cpu"),))
    graph, inventory = linear_chain(4), inventory_of(2)
    graph = replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))
    problem = partition_problem(graph, inventory, options)
    assert (problem.num_nodes, problem.num_devices) == (4, 2)
    assert problem.relay
    assert problem.training == Training()
    assert problem.microbatches_in_flight == 2
    assert problem.fixed_device.tolist() == [FREE, FREE, FREE, 1]
    plain = partition_problem(graph, inventory, PlanOptions())
    assert (plain.relay, plain.training, plain.fixed_device.tolist()) == (False, None, [FREE] * 4)
    np.testing.assert_array_equal(plain.compute_seconds, plan_costs(graph, inventory, PlanOptions()).seconds)


def test_a_thousand_devices_are_chosen_among() -> None:
    """In hosts of eight, each host of one of four kinds; as good as with the 64 of them alone, or better."""

    def fleet(hosts: int) -> Inventory:
        kinds = ("l4", "t4", "a10g", "v100-32gb")
        devices = tuple(
            Device(id=f"h{host}/d{index}", kind=kinds[host % 4], host=f"h{host}", memory_bytes=1 << 30)
            for host in range(hosts)
            for index in range(8)
        )
        near = LinkSpeed(bytes_per_second=3e11, latency_seconds=2e-6)
        links = {
            (one.id, other.id): near
            for first in range(0, len(devices), 8)
            for one in devices[first : first + 8]
            for other in devices[first : first + 8]
            if one is not other
        }
        return Inventory(devices=devices, links=links)

    graph = linear_chain(12)
    few, many = (make_plan(graph, "id", fleet(hosts), PlanOptions()) for hosts in (8, 128))
    assert many.bottleneck_seconds <= few.bottleneck_seconds * (1 + 1e-9)


def test_tables_that_no_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = linear_chain(4)
    monkeypatch.setattr(planning, "MAX_DEVICES_TIMES_NODES", 3 * len(graph.nodes))
    make_plan(graph, "id", inventory(*[1 << 30] * 3), PlanOptions())
    with pytest.raises(InventoryError, match=r"has 4 devices; for a graph of .* may choose among 3: give"):
        make_plan(graph, "id", inventory(*[1 << 30] * 4), PlanOptions())
