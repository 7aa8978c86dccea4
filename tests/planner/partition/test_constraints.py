"""Modules kept on a device or together: as arrays, and as plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.inventory import Device, Inventory
from planner.errors import Infeasible, OptionsError
from planner.graph.ir import Graph
from planner.partition.constraints import fixed_devices, joined_groups
from planner.partition.objective import Training
from planner.plan.options import BalancedMode, CutMode, Mode, PlanOptions, SizeBasedMode
from planner.plan.plan import Plan
from planner.planning import make_plan
from tests.builders.random_graphs import GraphWriter

PATHS = ("encoder.0", "encoder.0.linear", "encoder.1", "head", "")
DEVICES = ("a", "b")


def test_the_longest_path_decides() -> None:
    fixed = (("encoder.1", "b"), ("encoder", "a"))
    assert fixed_devices(fixed, PATHS, (), DEVICES).tolist() == [0, 0, 1, -1, -1]


def test_a_path_is_not_a_prefix_of_letters() -> None:
    assert fixed_devices((("encoder.1", "b"),), ("encoder.1", "encoder.10"), (), DEVICES).tolist() == [1, -1]


def test_a_group_goes_where_one_of_it_goes() -> None:
    assert fixed_devices((("head", "b"),), PATHS, ((0, 3),), DEVICES).tolist() == [1, -1, -1, 1, -1]


def test_a_group_torn_between_two_devices() -> None:
    with pytest.raises(OptionsError, match="have to share a stage"):
        fixed_devices((("head", "b"), ("encoder.0", "a")), PATHS, ((0, 3),), DEVICES)


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ((("encodr", "a"),), "did you mean 'encoder'"),
        ((("head", "c"),), "not in the inventory; it has 'a', 'b'"),
        ((("head", "a"), ("head", "b")), "name one"),
    ],
)
def test_unknown_names(fixed: tuple[tuple[str, str], ...], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        fixed_devices(fixed, PATHS, (), DEVICES)


def test_modules_joined_with_what_they_are_grouped_with() -> None:
    assert joined_groups(((2, 4),), PATHS, (("encoder.1", "head"),)) == ((2, 3, 4),)
    with pytest.raises(OptionsError, match="together: no node runs in module 'tail'"):
        joined_groups((), PATHS, (("head", "tail"),))


def blocks() -> Graph:
    """Six nodes in modules b0, b0, b1, b1, b2, b2, each block with a trained weight."""
    writer = GraphWriter()
    value = writer.input()
    for block in range(3):
        weight = writer.state()
        value = writer.multiply(value, weight, module_path=f"b{block}")
        value = writer.multiply(value, module_path=f"b{block}")
    graph = writer.graph(value)
    return replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))


def plan(mode: Mode, **options: object) -> Plan:
    devices = tuple(Device(id=f"d{index}", kind="cpu", host="h", memory_bytes=1 << 40) for index in range(3))
    plan_options = PlanOptions(mode=mode, **options)  # type: ignore[arg-type]
    return make_plan(blocks(), "id", Inventory(devices=devices), plan_options)


@pytest.mark.parametrize("mode", [SizeBasedMode(), BalancedMode(), CutMode(module_paths=("b0", "b1"))], ids=repr)
@pytest.mark.parametrize("training", [None, Training(microbatches=3)], ids=repr)
def test_every_mode_keeps_a_module_on_its_device(mode: Mode, training: Training | None) -> None:
    answer = plan(mode, fixed=(("b1", "d2"),), training=training)
    devices = [stage.device_ids for stage in answer.stages if {2, 3} & set(stage.node_indexes())]
    assert devices == [("d2",)]


@pytest.mark.parametrize("mode", [SizeBasedMode(), BalancedMode(), CutMode(module_paths=("b0", "b1"))], ids=repr)
def test_segments_cannot_come_back_to_a_device(mode: Mode) -> None:
    with pytest.raises(Infeasible, match="fix"):
        plan(mode, fixed=(("b0", "d0"), ("b1", "d1"), ("b2", "d0")))


def test_modules_together_share_a_stage() -> None:
    answer = plan(BalancedMode(num_stages=2), together=(("b0", "b1"),))
    assert answer.stages[0].node_ranges == ((0, 4),)


def test_training_needs_something_to_train() -> None:
    writer = GraphWriter()
    graph = writer.graph(writer.multiply(writer.input(), writer.state()))
    devices = (Device(id="d0", kind="cpu", host="h", memory_bytes=1 << 40),)
    with pytest.raises(OptionsError, match="no state of the graph requires a gradient"):
        make_plan(graph, "id", Inventory(devices=devices), PlanOptions(mode=BalancedMode(), training=Training()))
