"""Tables of plans, records and studies, without a server."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import datetime
from typing import Any

import pytest
from rich.console import Console

from planner.cli.output import OutputFormat, emit, say
from planner.cli.profile_tables import profiles_table
from planner.cli.study_tables import change, diff_table, simulation_table
from planner.cli.tables import (
    deployment_table,
    deployments_table,
    devices_table,
    graphs_table,
    inventories_table,
    inventory_table,
    memory_bar,
    plan_table,
    plans_table,
)
from planner.client.records import (
    Deployment,
    DeploymentState,
    Failure,
    GraphRecord,
    InventoryRecord,
    PlanSummary,
    ProfileRecord,
    RegisteredDevice,
    StagePlacement,
    StoredPlan,
)
from planner.cost.calibration import Calibration
from planner.cost.device_kinds import DeviceKind
from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.graph.ir import Dtype, ValueKind
from planner.partition.objective import Objective, Training
from planner.plan.diff import NodeMove, PlanDiff, StateMove
from planner.plan.options import BalancedMode, OptimalMode, PlanOptions
from planner.plan.plan import LiveTensor, Plan, Stage, StageMemory, TieGroup
from planner.planning import make_plan
from planner.schedule.timeline import DeviceTime, Simulation
from tests.contract.graphs import linear_chain


def shown(renderable: object, width: int = 180) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_a_plan_as_a_table() -> None:
    inventory = Inventory(
        devices=tuple(Device(id=name, kind="cpu", host="h", memory_bytes=4096) for name in ("left", "right"))
    )
    plan = make_plan(linear_chain(6), "0" * 64, inventory, PlanOptions(mode=BalancedMode(num_stages=2)))
    text = shown(plan_table(plan))
    rows = [line for line in text.splitlines() if "left" in line or "right" in line]
    assert len(rows) == 2
    assert "layers.0 → layers.2" in text
    assert "chain, balanced, 2 stages, direct routing" in text
    assert "4 KiB" in text
    assert "optimal" in text


DEVICES = Inventory(
    devices=(
        Device(id="a", kind="cpu", host="h", memory_bytes=4096),
        Device(id="b", kind="h100", host="h", memory_bytes=3 << 20),
    ),
    links={("a", "b"): LinkSpeed(bytes_per_second=1 << 20, latency_seconds=0.002)},
    default_link=LinkSpeed(bytes_per_second=2 << 30, latency_seconds=0),
)
MOMENT = datetime(2026, 1, 2, 3, 4, 5).astimezone()
SHOWN = "2026-01-02 03:04:05"


def stage(**changes: Any) -> Stage:
    usual: dict[str, Any] = {
        "index": 0,
        "node_ranges": ((0, 1000), (2000, 2234)),
        "device_ids": ("a",),
        "states": (),
        "liveness": (),
        "outputs": (),
        "compute_seconds": 0.25,
        "communication_seconds": 3e-6,
        "flops": 1.0,
        "memory": StageMemory(state_bytes=1024, activation_bytes=512, buffer_bytes=512),
        "reason": "",
    }
    return Stage(**{**usual, **changes})


def plan(*stages: Stage, **changes: Any) -> Plan:
    usual: dict[str, Any] = {
        "graph_id": "abcdef" * 10 + "abcd",
        "graph_name": "",
        "num_nodes": 1234,
        "options": PlanOptions(mode=BalancedMode()),
        "inventory": DEVICES,
        "stages": stages,
        "edges": (),
        "tie_groups": (),
        "bottleneck_seconds": 0.25,
        "latency_seconds": 2.0,
        "lower_bound_seconds": None,
        "symbol_values": (),
    }
    return Plan(**{**usual, **changes})


def live(size_bytes: int, *, consumed: bool, bypassing: bool) -> LiveTensor:
    return LiveTensor(
        value_id=1,
        name="v",
        kind=ValueKind.TENSOR,
        dtype=Dtype.UINT8,
        dims=(size_bytes,),
        size_bytes=size_bytes,
        producer_stage=0,
        consumed=consumed,
        bypassing=bypassing,
    )


def test_a_stage_as_a_row() -> None:
    text = shown(plan_table(plan(stage(), stage(index=1, device_ids=("a", "b")))))
    assert "abcdefabcdef, balanced, 2 stages, direct routing" in text
    cells = [line.split() for line in text.splitlines() if "2 KiB" in line]
    assert cells[0][:6] == ["0", "a", "1,234", "250", "ms", "3"]
    # Copies are held to the smallest device's memory.
    assert cells[1][:3] == ["1", "a,", "b"]
    assert all("2 KiB / 4 KiB" in line and "50%" in line for line in text.splitlines() if "1,234" in line)


def test_one_stage_is_no_stages_and_a_stored_plan_has_its_id() -> None:
    lone = plan(stage(), graph_name="chain")
    assert "\nchain, balanced, 1 stage, direct routing" in "\n" + shown(plan_table(lone))
    stored = StoredPlan(
        **{field.name: getattr(lone, field.name) for field in fields(Plan)}, id="plan-1", created_at=MOMENT
    )
    assert "plan-1: chain, balanced, 1 stage, direct routing" in shown(plan_table(stored))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "stage 0: no module; takes 0 B"),
        ({"first_module": "m", "last_module": "m"}, "stage 0: m; takes 0 B"),
        ({"first_module": "m", "last_module": "n"}, "stage 0: m → n; takes 0 B"),
        ({"last_module": "n"}, "stage 0: n; takes 0 B"),
        (
            {
                "liveness": (
                    live(100, consumed=True, bypassing=False),
                    live(30, consumed=True, bypassing=True),
                    live(2048, consumed=False, bypassing=True),
                    live(1024, consumed=False, bypassing=True),
                )
            },
            "stage 0: no module; takes 130 B, passes on 3 KiB (unread: 2)",
        ),
        (
            {"recomputed_ranges": ((0, 2), (5, 6))},
            "stage 0: no module; takes 0 B; runs 3 nodes of earlier stages again",
        ),
    ],
)
def test_what_a_stage_holds_in_a_line(changes: dict[str, Any], line: str) -> None:
    assert line in shown(plan_table(plan(stage(**changes)))).splitlines()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "bottleneck 250 ms, latency 2 s"),
        ({"lower_bound_seconds": 0.25}, "bottleneck 250 ms, latency 2 s; throughput proven optimal for mode balanced"),
        (
            {"lower_bound_seconds": 0.2},
            "bottleneck 250 ms, latency 2 s; throughput within 20.00% of optimal for mode balanced",
        ),
        (
            {"lower_bound_seconds": 0.25 - 1e-9, "options": PlanOptions(mode=OptimalMode())},
            "bottleneck 250 ms, latency 2 s; throughput within less than 0.01% of optimal",
        ),
        (
            {
                "lower_bound_seconds": 1.0,
                "options": PlanOptions(mode=OptimalMode(), objective=Objective.LATENCY),
            },
            "bottleneck 250 ms, latency 2 s; latency within 50.00% of optimal",
        ),
        ({"step_seconds": 4.0}, "bottleneck 250 ms, latency 2 s, training step 4 s"),
        (
            {"tie_groups": (TieGroup(id=1, members=(("w", 0), ("v", 1)), size_bytes=4),)},
            "bottleneck 250 ms, latency 2 s, 1 tied tensor(s) held by several stages",
        ),
    ],
)
def test_a_plans_figures_in_a_line(changes: dict[str, Any], line: str) -> None:
    assert line in shown(plan_table(plan(stage(), **changes))).splitlines()


def test_where_seconds_come_from() -> None:
    plan = make_plan(linear_chain(2), "0" * 64, DEVICES, PlanOptions(mode=BalancedMode(num_stages=1)))
    text = shown(plan_table(plan))
    for source in plan.cost_sources:
        assert f"seconds of {source.device_kind}: {source.text()}" in text


def graph_record(**changes: Any) -> GraphRecord:
    usual: dict[str, Any] = {
        "id": "0123456789abcdef",
        "name": "chain",
        "size_bytes": 1,
        "num_nodes": 12345,
        "num_states": 6,
        "state_bytes": 1536,
        "weight_files": (),
        "deployable": True,
        "not_deployable_reason": "",
        "created_at": MOMENT,
    }
    return GraphRecord(**{**usual, **changes})


def test_graphs() -> None:
    text = shown(
        graphs_table([graph_record(), graph_record(name="bare", deployable=False, not_deployable_reason="why")])
    )
    [line] = [line for line in text.splitlines() if "chain" in line]
    assert line.split() == ["0123456789ab", "chain", "12,345", "6", "1.5", "KiB", "yes", *SHOWN.split()]
    assert "no: why" in text


def test_plans() -> None:
    summary = PlanSummary(
        id="plan-1",
        graph_id="0123456789abcdef",
        graph_name="",
        mode="cut",
        num_stages=3,
        bottleneck_seconds=0.5,
        peak_bytes=2048,
        created_at=MOMENT,
    )
    first, second = (
        line.split()
        for line in shown(plans_table([summary, replace(summary, graph_name="n")])).splitlines()
        if "cut" in line
    )
    assert first == ["plan-1", "0123456789ab", "cut", "3", "500", "ms", "2", "KiB", *SHOWN.split()]
    assert second[1] == "n"


def test_registered_devices() -> None:
    free = RegisteredDevice(
        device=DEVICES.devices[1],
        daemon_address="h:1",
        lease_expires_at=MOMENT,
        deployment_ids=(),
        torch_version="2.13.0",
        draining=False,
    )
    draining = replace(free, deployment_ids=("dep-1", "dep-2"), draining=True)
    lines = shown(devices_table([free, draining])).splitlines()
    first, second = (line.split() for line in lines if "h100" in line)
    assert first == ["b", "h100", "h", "3", "MiB", "h:1", "2.13.0", "there", "-"]
    assert second[-3:] == ["draining", "dep-1,", "dep-2"]


def test_inventories() -> None:
    record = InventoryRecord(id="inv-1", name="lab", inventory=DEVICES, created_at=MOMENT)
    [line] = [line for line in shown(inventories_table([record])).splitlines() if "lab" in line]
    assert line.split() == ["inv-1", "lab", "2", "3", "MiB", *SHOWN.split()]
    text = shown(inventory_table(record))
    assert "inv-1 lab" in text
    assert ["a", "cpu", "h", "4", "KiB"] in [line.split() for line in text.splitlines()]
    assert ["a", "b", "1", "MiB/s", "2", "ms"] in [line.split() for line in text.splitlines()]
    assert "others: 2 GiB/s, 0 s" in text


def test_an_inventory_of_many_is_counted_by_sort() -> None:
    """Of 24 hosts of eight devices each, of two kinds."""
    kinds = ("h100", 80 << 30), ("l4", 24 << 30)
    devices = [
        Device(id=f"n{host}/gpu{number}", kind=kind, host=f"n{host}", memory_bytes=memory_bytes)
        for host in range(24)
        for kind, memory_bytes in [kinds[host % 3 == 0]]
        for number in range(8)
    ]
    near, far = (LinkSpeed(bytes_per_second=2.0**exponent, latency_seconds=1e-6) for exponent in (38, 35))
    pairs = [(one, other) for one in devices for other in devices if one.host == other.host and one is not other]
    links = {(one.id, other.id): near for one, other in pairs} | {("n0/gpu0", "n1/gpu0"): far}
    inventory = Inventory(devices=tuple(devices), links=links)
    text = shown(inventory_table(InventoryRecord(id="inv-1", name="lab", inventory=inventory, created_at=MOMENT)))
    rows = [line.split() for line in text.splitlines()]
    assert ["128", "h100", "80", "GiB", "16"] in rows
    assert ["64", "l4", "24", "GiB", "8"] in rows
    assert ["1,344", "one", "host", "256", "GiB/s", "1", "µs"] in rows
    assert ["1", "two", "hosts", "32", "GiB/s", "1", "µs"] in rows
    assert len(rows) < 20


def deployment(**changes: Any) -> Deployment:
    usual: dict[str, Any] = {
        "id": "dep-1",
        "plan_id": "plan-1",
        "graph_id": "g",
        "state": DeploymentState.READY,
        "generation": 2,
        "failure": None,
        "stages": (StagePlacement(stage=0, device_id="a", daemon_address="h:1"),),
        "input_address": "",
        "output_address": "",
        "created_at": MOMENT,
        "ended_at": None,
    }
    return Deployment(**{**usual, **changes})


def test_deployments() -> None:
    failed = deployment(
        id="dep-2", state=DeploymentState.FAILED, failure=Failure(reason="R", message="[bold]it died[/bold]")
    )
    text = shown(deployments_table([deployment(), failed]))
    first, second = (line.split() for line in text.splitlines() if "dep-" in line)
    assert first == ["dep-1", "plan-1", "ready", "1", *SHOWN.split(), "-"]
    assert second[2] == "failed"
    assert "[bold]it died[/bold]" in text
    alone = shown(deployment_table(failed))
    assert "dep-2: failed (plan-1, generation 2)" in alone
    assert "[bold]it died[/bold]" in alone
    assert ["0", "a", "-", "h:1"] in [line.split() for line in alone.splitlines()]
    assert "it died" not in shown(deployment_table(deployment()))
    recovered = deployment(plan_id="plan-2", asked_plan_id="plan-1", plan_reason="without b, planned ahead")
    text = shown(deployment_table(recovered))
    assert "by plan-2, without b, planned ahead" in text
    assert "asked for with plan-1" in text
    assert "asked for" not in shown(deployment_table(deployment(asked_plan_id="plan-1")))


def test_compiled_stages_say_how_far_their_outputs_are() -> None:
    stages = tuple(
        StagePlacement(stage=index, device_id="a", daemon_address="h:1", compiled_difference=difference)
        for index, difference in enumerate((2.5e-7, None))
    )
    lines = [line.split() for line in shown(deployment_table(deployment(stages=stages, compile=True))).splitlines()]
    assert ["0", "a", "-", "2.5e-07", "h:1"] in lines
    assert ["1", "a", "-", "-", "h:1"] in lines


def test_ids_are_whole_on_a_narrow_terminal() -> None:
    plan_id, deployment_id = "plan-0123456789abcdef0123", "dep-fedcba98765432100123"
    failure = Failure(reason="R", message="a stage died, and what it said takes more than a line " * 3)
    failed = deployment(id=deployment_id, plan_id=plan_id, state=DeploymentState.FAILED, failure=failure)

    text = shown(deployments_table([failed]), width=80)

    assert plan_id in text
    assert deployment_id in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_changes_between_plans() -> None:
    diff = PlanDiff(
        num_nodes=2000,
        num_nodes_moved=1500,
        node_moves=(NodeMove(source_device_ids=("a",), target_device_ids=("b", "c"), num_nodes=1500),),
        state_moves=(
            StateMove(source_device_id="", target_device_id="b", num_states=1, size_bytes=512),
            StateMove(source_device_id="a", target_device_id="c", num_states=1234, size_bytes=1024),
        ),
        moved_bytes=1536,
        dropped_bytes=(("a", 2048),),
        num_stages=(3, 1),
        bottleneck_seconds=(0.5, 0.25),
        latency_seconds=(0.0, 1.0),
        step_seconds=(1.0, 1.5),
    )
    lines = [line.strip() for line in shown(diff_table("p", "q", diff)).splitlines()]
    words = [line.split() for line in lines]
    assert ["stages", "3", "1", "-2"] in words
    assert ["bottleneck", "500", "ms", "250", "ms", "-50.0%"] in words
    assert ["latency", "0", "s", "1", "s", "-"] in words
    assert ["step", "1", "s", "1.5", "s", "+50.0%"] in words
    assert "1,500 of 2,000 nodes move (75.0%)" in lines
    assert "a → b, c: 1,500 nodes" in lines
    assert "1.5 KiB of state to move" in lines
    assert "nowhere → b: 1 tensors, 512 B" in lines
    assert "a → c: 1,234 tensors, 1 KiB" in lines
    assert "a lets go of 2 KiB" in lines
    inference = replace(diff, num_nodes=0, num_nodes_moved=0, step_seconds=(1.0, None))
    text = shown(diff_table("p", "q", inference))
    assert "0 of 0 nodes move (0.0%)" in text
    assert "step" not in text


def simulation(**changes: Any) -> Simulation:
    usual: dict[str, Any] = {
        "microbatches": 4,
        "makespan_seconds": 2.0,
        "bubble_share": 0.125,
        "devices": (
            DeviceTime(device_id="a", busy_seconds=1.0, communication_seconds=0.5, waiting_seconds=0.5),
            DeviceTime(device_id="b", busy_seconds=0.0, communication_seconds=0.0, waiting_seconds=2.0),
        ),
        "links": (),
        "output_seconds": (0.5, 1.0, 1.5, 2.0),
        "events": (),
        "transfers": (),
    }
    return Simulation(**{**usual, **changes})


def test_a_simulation() -> None:
    text = shown(simulation_table(plan(stage()), "inference", simulation()))
    words = [line.split() for line in text.splitlines()]
    assert "inference, 4 microbatches" in text
    assert ["a", "1", "s", "500", "ms", "500", "ms", "75.0%"] in words
    assert ["b", "0", "s", "0", "s", "2", "s", "0.0%"] in words
    assert "2 s in all, 12.5% of device time is bubble" in text
    assert "a result every 500 ms once it is steady (the plan says 250 ms), the first after 500 ms" in text
    lone = shown(simulation_table(plan(stage()), "inference", simulation(output_seconds=(2.0,))))
    assert "a result every" not in lone
    training = plan(stage(), options=PlanOptions(mode=BalancedMode(), training=Training()), step_seconds=3.0)
    stepped = shown(simulation_table(training, "gpipe", simulation()))
    assert "the plan says 3 s for its own schedule and microbatches" in stepped
    assert "a result every" not in stepped
    nothing = shown(simulation_table(plan(stage()), "inference", simulation(makespan_seconds=0.0)))
    assert nothing.count("0.0%") == 2


@pytest.mark.parametrize(
    ("before", "after", "text"), [(2, 1, "-50.0%"), (1, 1, "+0.0%"), (0, 1, "-"), (4, 5, "+25.0%")]
)
def test_changes_are_shares_of_what_was(before: float, after: float, text: str) -> None:
    assert change(before, after) == text


def test_profiles() -> None:
    rates = DeviceKind(
        float64_flops_per_second=1e9,
        float32_flops_per_second=81e9,
        float16_flops_per_second=1e9,
        float8_flops_per_second=1e9,
        memory_bytes_per_second=64e9,
        node_seconds=2.94e-6,
    )
    record = ProfileRecord(
        id="prof-1",
        graph_id="0123456789abcdef",
        device_kind="cpu",
        symbol_values=(("batch", 8), ("seq", 128)),
        source="",
        num_nodes=1500,
        num_measured=1200,
        total_seconds=0.25,
        calibration=None,
        created_at=MOMENT,
    )
    fitted = replace(
        record,
        symbol_values=(),
        source="bench",
        calibration=Calibration(device_kind="cpu", rates=rates, num_nodes=9, median_error=0.123),
    )
    lines = shown(profiles_table([record, fitted])).splitlines()
    first, second = (line.split() for line in lines if "prof-1" in line)
    assert first[:8] == ["prof-1", "0123456789ab", "cpu", "batch=8,", "seq=128", "1,200", "of", "1,500"]
    assert first[8:] == ["250", "ms", "-", "-"]
    assert second[3] == "-"
    assert "0.081 TFLOP/s, 64 GB/s, 2.94 µs a call, ±12%" in " ".join(second)
    assert second[-1] == "bench"


def test_memory_bars() -> None:
    assert memory_bar(0, 100).plain == "░" * 6 + "   0%"
    assert memory_bar(50, 100).plain == "█" * 3 + "░" * 3 + "  50%"
    assert memory_bar(300, 100).plain == "█" * 6 + " 300%"
    assert memory_bar(1, 0).plain.startswith("░")


@pytest.mark.parametrize(
    ("used", "color"), [(74, "green"), (75, "yellow"), (94, "yellow"), (95, "red"), (200, "red"), (0, "green")]
)
def test_a_bar_warns_before_its_device_is_full(used: int, color: str) -> None:
    assert memory_bar(used, 100).style == color


def test_a_name_is_never_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    device = Device(id="[bold]x[/nope] :warning:", kind="cpu", host="h", memory_bytes=1 << 30)
    plan = make_plan(linear_chain(2), "0" * 64, Inventory(devices=(device,)), PlanOptions(mode=BalancedMode()))
    emit(plan, OutputFormat.TABLE, lambda: plan_table(plan))
    say("[/nope]\x1b[31mred\x07")
    printed = capsys.readouterr()
    assert device.id in printed.out
    assert "mode balanced" in printed.out
    assert printed.err == "[/nope]\\x1b[31mred\\x07\n"
