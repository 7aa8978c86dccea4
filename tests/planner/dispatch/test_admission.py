"""Which plans may be deployed now."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from planner.cost.inventory import Device, Inventory
from planner.dispatch.admission import admit, check_compile
from planner.errors import Conflict, DeviceFull, DeviceGone, NotDeployable
from planner.partition.objective import Training
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import Plan, Stage, StageMemory
from planner.store.deployment_records import Daemon, WorkerSettings


def stage(index: int, *device_ids: str, peak_bytes: int = 60) -> Stage:
    return Stage(
        index=index,
        node_ranges=((index, index + 1),),
        device_ids=device_ids,
        states=(),
        liveness=(),
        outputs=(),
        compute_seconds=0.0,
        communication_seconds=0.0,
        flops=0.0,
        memory=StageMemory(state_bytes=peak_bytes, activation_bytes=0, buffer_bytes=0),
        reason="",
    )


def plan(*stages: Stage) -> Plan:
    return Plan(
        graph_id="00",
        graph_name="g",
        num_nodes=len(stages),
        options=PlanOptions(mode=BalancedMode()),
        inventory=Inventory(devices=(Device(id="a", kind="cpu", host="node", memory_bytes=100),)),
        stages=stages,
        edges=(),
        tie_groups=(),
        bottleneck_seconds=0.0,
        latency_seconds=0.0,
        lower_bound_seconds=None,
        symbol_values=(),
    )


def daemon(device_id: str, memory_bytes: int = 100) -> Daemon:
    return Daemon(
        device=Device(id=device_id, kind="cpu", host="node", memory_bytes=memory_bytes),
        address=f"{device_id}:1",
        incarnation_id=f"incarnation of {device_id}",
        torch_version="2.13.0",
        lease_expires_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_each_stage_goes_to_the_daemon_that_stands_for_its_device() -> None:
    placements = admit(plan(stage(0, "b"), stage(1, "a")), [daemon("a"), daemon("b")], {"c": {"dep-9": 10**9}})
    assert [(p.stage, p.device_id, p.daemon_address, p.incarnation_id) for p in placements] == [
        (0, "b", "b:1", "incarnation of b"),
        (1, "a", "a:1", "incarnation of a"),
    ]


def test_a_device_that_is_gone_is_named_with_those_that_live() -> None:
    with pytest.raises(DeviceGone, match=r"device z, planned for stage 1, .* live devices: a, b\.") as caught:
        admit(plan(stage(0, "a"), stage(1, "z")), [daemon("b"), daemon("a")], {})
    assert caught.value.metadata["device_id"] == "z"
    assert caught.value.metadata["stage"] == "1"
    assert caught.value.metadata["live_device_ids"] == "a, b"
    with pytest.raises(DeviceGone, match="live devices: none"):
        admit(plan(stage(0, "a")), [], {})
    with pytest.raises(DeviceGone, match=r"device z, planned for stage 0, 2, has no live daemon"):
        admit(plan(stage(0, "z"), stage(1, "a"), stage(2, "z")), [daemon("a")], {})


def test_of_many_live_devices_some_are_named_and_those_of_the_plan_first() -> None:
    live = [daemon(f"device-{number:02}") for number in range(40)] + [daemon("own")]
    with pytest.raises(
        DeviceGone, match=r"live devices: own, device-00, (device-\d\d, ){5}device-06 and 33 more\. Start"
    ):
        admit(plan(stage(0, "own"), stage(1, "z")), live, {})


def test_a_device_that_is_drained_is_said_to_be() -> None:
    drained = replace(daemon("z"), draining=True)
    with pytest.raises(DeviceGone, match=r"planned for stage 1, is drained.* live devices: a\..*z --undo") as caught:
        admit(plan(stage(0, "a"), stage(1, "z")), [daemon("a"), drained], {})
    assert caught.value.metadata["device_id"] == "z"


def test_stages_of_one_device_count_together() -> None:
    two = plan(stage(0, "a"), stage(1, "a"))
    assert len(admit(two, [daemon("a", 120)], {})) == 2
    with pytest.raises(DeviceFull, match="120 bytes") as caught:
        admit(two, [daemon("a", 119)], {})
    assert caught.value.metadata["needed_bytes"] == "120"


def test_what_others_were_promised_is_left_to_them() -> None:
    promised = {"a": {"dep-1": 30, "dep-2": 10}}
    assert admit(plan(stage(0, "a")), [daemon("a")], promised)
    with pytest.raises(DeviceFull, match="promised to dep-1, dep-2; the plan needs") as caught:
        admit(plan(stage(0, "a", peak_bytes=61)), [daemon("a")], promised)
    assert caught.value.metadata == {
        "device_id": "a",
        "memory_bytes": "100",
        "needed_bytes": "61",
        "promised_bytes": "40",
        "deployment_ids": "dep-1, dep-2",
    }


def test_a_device_that_lost_memory_is_told_apart_from_one_that_is_full() -> None:
    with pytest.raises(DeviceFull, match="less memory than when the plan was made") as caught:
        admit(plan(stage(0, "a", peak_bytes=101)), [daemon("a")], {"a": {"dep-1": 100}})
    assert caught.value.metadata == {"device_id": "a", "memory_bytes": "100", "needed_bytes": "101"}
    assert admit(plan(stage(0, "a", peak_bytes=100)), [daemon("a")], {})


def test_copies_train_each_where_it_is_planned() -> None:
    training = PlanOptions(mode=BalancedMode(), training=Training(microbatches=2))
    two = replace(plan(stage(0, "b", "a"), stage(1, "a")), options=training)
    placements = admit(two, [daemon("a", 120), daemon("b")], {})
    assert [(one.stage, one.device_id, one.daemon_address) for one in placements] == [
        (0, "b", "b:1"),
        (0, "a", "a:1"),
        (1, "a", "a:1"),
    ]
    with pytest.raises(DeviceFull, match="device a offers"):
        admit(two, [daemon("a", 119), daemon("b")], {})


def test_copies_serve_each_where_it_is_planned() -> None:
    placements = admit(plan(stage(0, "a", "b")), [daemon("a"), daemon("b")], {})
    assert [(one.stage, one.device_id) for one in placements] == [(0, "a"), (0, "b")]


def test_a_stage_on_no_device_is_refused() -> None:
    with pytest.raises(Conflict, match="stage 1 is planned for no device") as caught:
        admit(plan(stage(0, "a"), stage(1)), [daemon("a")], {})
    assert caught.value.metadata == {"stage": "1"}


def test_stages_are_compiled_for_inference_alone() -> None:
    inference = plan(stage(0, "a"))
    training = replace(inference, options=replace(inference.options, training=Training()))
    check_compile(inference, WorkerSettings(compile=True))
    check_compile(training, WorkerSettings(num_threads=3))
    with pytest.raises(NotDeployable, match=r"the plan is for training.*without compile"):
        check_compile(training, WorkerSettings(compile=True))
