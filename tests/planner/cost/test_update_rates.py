"""At what rates states are updated: as a profile measured all of them together, else at the memory's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.inventory import Device, Inventory
from planner.cost.measured import MeasuredTimes, StateUpdate
from planner.errors import InvalidArgument
from planner.partition.objective import Training
from planner.plan.explain import explain
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import Plan
from planner.plan.update import device_updates
from planner.planning import make_plan
from planner.schedule.prediction import predict
from tests.builders.random_graphs import GraphWriter
from tests.planner.schedule.test_reschedule import trained

NORMS, OPTIMIZER = 0.5, 6.0


def planned(update: StateUpdate | None, training: Training | None = None) -> Plan:
    writer = GraphWriter()
    value = writer.input()
    for width in (4, 8, 12):
        value = writer.multiply(value, writer.state(width=width))
    graph = trained(writer.graph(value))
    seconds = tuple((node, 1e-3) for node in range(len(graph.nodes)))
    times = MeasuredTimes(graph_id="", device_kind="cpu", seconds=seconds, update=update)
    device = Device(id="a", kind="cpu", host="h", memory_bytes=1 << 40, memory_bytes_per_second=1e3)
    # The measured rates are of the kind; the other one's are its own.
    other = replace(device, id="b", kind="h100")
    inventory = Inventory(devices=(device, replace(device, id="c"), other))
    options = PlanOptions(mode=BalancedMode(num_stages=3), training=training or Training(microbatches=3))
    return make_plan(graph, "id", inventory, options, [times])


def test_stages_take_their_share_of_what_was_measured_of_all_states() -> None:
    before = device_updates(planned(None))
    plan = planned(StateUpdate(norm_seconds=NORMS, optimizer_seconds=OPTIMIZER), Training(microbatches=3))
    memory = {stage.device_ids[0]: stage.memory for stage in plan.stages if stage.memory.gradient_bytes}
    # No state is in two stages.
    total = sum(one.gradient_bytes for one in memory.values())
    after = device_updates(plan)
    assert after.keys() == memory.keys() == {"a", "b", "c"}
    for device in ("a", "c"):
        assert after[device].norms == pytest.approx(NORMS * memory[device].gradient_bytes / total)
        touched = 3 * memory[device].gradient_bytes + 2 * memory[device].optimizer_bytes
        assert after[device].optimizer == pytest.approx(OPTIMIZER * touched / (3 * total))
    assert after["b"] == before["b"]


def test_plans_count_what_their_simulations_count_and_say_it() -> None:
    plan = planned(StateUpdate(norm_seconds=NORMS, optimizer_seconds=OPTIMIZER))
    assert plan.step_seconds == pytest.approx(predict(plan).makespan_seconds)
    assert any("cpu reads norms of gradients at" in line for line in explain(plan))
    assert not any("reads norms of gradients" in line for line in explain(planned(None)))


def test_what_takes_no_time_was_not_measured() -> None:
    nothing = StateUpdate(norm_seconds=0.0, optimizer_seconds=OPTIMIZER)
    assert planned(nothing).step_seconds == planned(None).step_seconds


def test_seconds_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"update\.optimizer_seconds is -1"):
        StateUpdate(norm_seconds=0.0, optimizer_seconds=-1.0)
