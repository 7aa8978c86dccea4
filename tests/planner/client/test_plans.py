"""Plans in the making: how they are asked for, waited for and given up on, and what a failed one raises."""

from __future__ import annotations

import signal
import threading
from _thread import interrupt_main

import pytest

from planner.client import PlannerClient, plans
from planner.client.records import OperationState
from planner.cost.inventory import Device, Inventory
from planner.errors import Cancelled, Infeasible, OptionsError, PlannerError, Unavailable
from planner.plan.options import BalancedMode, PlanOptions
from planner.wire.inventory import inventory_to_proto
from planner.wire.plan import options_to_proto
from protos.v1 import plan_pb2, planner_pb2
from tests.planner.client.scripted_planner import ScriptedPlanner
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services

Scripted = tuple[ScriptedPlanner, PlannerClient]
INVENTORY = Inventory(devices=(Device(id="a", kind="cpu", host="h", memory_bytes=7),))


def operation(state: str, **more: object) -> planner_pb2.PlanOperation:
    number = planner_pb2.OperationState.Value(f"OPERATION_STATE_{state}")
    return planner_pb2.PlanOperation(id="plan-1", state=number, **more)  # type: ignore[arg-type]


def test_a_plan_is_asked_for_over_the_devices_that_are_named(scripted: Scripted) -> None:
    script, client = scripted
    script.on("CreatePlan", operation("PENDING"))
    options = PlanOptions(mode=BalancedMode(num_stages=2))
    client.start_plan("g", options, inventory=INVENTORY, request_id="mine")
    client.start_plan("g", BalancedMode(num_stages=2), inventory_id="inv-1")
    client.start_plan("g", BalancedMode(num_stages=2), device_ids=("a", "b"))
    client.start_plan("g", BalancedMode(num_stages=2))
    own, stored, named, every = script.requests("CreatePlan")
    assert own.inventory == inventory_to_proto(INVENTORY)
    assert (own.request_id, own.graph_id) == ("mine", "g")
    assert stored.inventory_id == "inv-1"
    assert list(named.registered.device_ids) == ["a", "b"]
    assert every.WhichOneof("devices") == "registered"
    assert list(every.registered.device_ids) == []
    assert {request.options == options_to_proto(options) for request in (own, stored, named, every)} == {True}
    assert len({request.request_id for request in (own, stored, named, every)}) == 4


@pytest.mark.parametrize(
    "devices",
    [
        {"inventory": INVENTORY, "inventory_id": "i"},
        {"inventory": INVENTORY, "device_ids": ("a",)},
        {"inventory_id": "i", "device_ids": ("a",)},
    ],
)
def test_devices_are_named_in_one_way(scripted: Scripted, devices: dict[str, object]) -> None:
    script, client = scripted
    with pytest.raises(OptionsError, match="give one of inventory, inventory_id and device_ids"):
        client.start_plan("g", BalancedMode(), **devices)  # type: ignore[arg-type]
    assert script.calls == []


def test_a_plan_is_waited_for_call_after_call(scripted: Scripted) -> None:
    script, client = scripted
    script.on("CreatePlan", operation("PENDING"))
    script.on("WaitPlanOperation", operation("PENDING"), operation("RUNNING"), operation("SUCCEEDED"))
    script.on("GetPlan", PlannerError("read"))
    with pytest.raises(PlannerError, match="read"):
        client.create_plan("g", BalancedMode())
    waits = [call for call in script.calls if call.method == "WaitPlanOperation"]
    assert [call.request.timeout_seconds for call in waits] == [plans.WAIT_CALL_SECONDS] * 3
    # The call may take longer than the server is asked to.
    assert all(call.remaining_seconds and call.remaining_seconds > WAIT_SECONDS for call in waits)
    assert script.requests("GetPlan") == [planner_pb2.GetPlanRequest(plan_id="plan-1")]


def test_a_server_that_answers_too_early_is_not_asked_again_at_once(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, client = scripted
    script.on("CreatePlan", operation("RUNNING"))
    script.on("WaitPlanOperation", operation("RUNNING"))
    monkeypatch.setattr(plans, "PAUSE_SECONDS", 60.0)
    with pytest.raises(Unavailable, match=r"not ready after 0\.3 s"):
        client.create_plan("g", BalancedMode(), timeout_seconds=0.3)
    assert len(script.requests("WaitPlanOperation")) == 1


def test_a_wait_asks_for_no_more_than_what_is_left_of_it(scripted: Scripted) -> None:
    script, client = scripted
    script.on("CreatePlan", operation("RUNNING"))
    script.on("WaitPlanOperation", operation("RUNNING"))
    with pytest.raises(Unavailable, match=r"plan plan-1 is not ready after 0\.05 s"):
        client.create_plan("g", BalancedMode(), timeout_seconds=0.05)
    assert all(0 < request.timeout_seconds <= 0.05 for request in script.requests("WaitPlanOperation"))


def test_a_plan_that_is_there_is_not_waited_for(scripted: Scripted) -> None:
    script, client = scripted
    script.on("GetPlanOperation", operation("CANCELLED"))
    pending = client.get_plan_operation("plan-1")
    with pytest.raises(Cancelled, match="plan plan-1 was cancelled before it was made"):
        pending.wait(timeout_seconds=0)
    assert [call.method for call in script.calls] == ["GetPlanOperation"]


def test_what_planning_raised_is_raised(scripted: Scripted) -> None:
    script, client = scripted
    failure = planner_pb2.Failure(
        reason=Infeasible.reason, message="stage 1 lacks 12 bytes", stage=1, metadata={"missing_bytes": "12"}
    )
    script.on("CreatePlan", operation("FAILED", failure=failure))
    with pytest.raises(Infeasible, match="stage 1 lacks 12 bytes") as raised:
        client.create_plan("g", BalancedMode())
    assert raised.value.metadata == {"missing_bytes": "12", "reason": "INFEASIBLE", "stage": "1"}


def test_the_state_is_the_last_answers(scripted: Scripted) -> None:
    script, client = scripted
    script.on("CreatePlan", operation("PENDING"))
    script.on("GetPlanOperation", operation("RUNNING"))
    script.on("CancelPlanOperation", operation("CANCELLED"))
    started = client.start_plan("g", BalancedMode())
    assert (started.id, started.state) == ("plan-1", OperationState.PENDING)
    assert started.refresh() is started.state is OperationState.RUNNING
    assert started.cancel() is started.state is OperationState.CANCELLED
    assert script.requests("CancelPlanOperation")[0].operation_id == "plan-1"


def test_a_plan_given_up_on_is_cancelled_on_the_server(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    script, client = scripted
    script.on("CreatePlan", operation("RUNNING"))
    script.on("CancelPlanOperation", operation("CANCELLED"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plans.PlanOperation, "_wait_once", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.create_plan("g", BalancedMode())
    assert [call.method for call in script.calls] == ["CreatePlan", "CancelPlanOperation"]


def test_a_plan_is_given_up_on_before_its_id_has_come(scripted: Scripted) -> None:
    """Ctrl-C while the server makes the operation: asked for again by the same request id, it is the same one."""
    script, client = scripted
    until_ended = threading.Event()

    def interrupted(_: object) -> planner_pb2.PlanOperation:
        interrupt_main()
        until_ended.wait(WAIT_SECONDS)
        return operation("PENDING")

    script.on("CreatePlan", interrupted, operation("PENDING"))
    script.on("CancelPlanOperation", operation("CANCELLED"))
    # Whoever runs the tests in the background has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            client.create_plan("g", BalancedMode())
    finally:
        signal.signal(signal.SIGINT, before)
        until_ended.set()
    first, again = script.requests("CreatePlan")
    assert first == again
    assert [request.operation_id for request in script.requests("CancelPlanOperation")] == ["plan-1"]


def test_a_plan_that_only_takes_long_is_not_cancelled(scripted: Scripted) -> None:
    script, client = scripted
    script.on("CreatePlan", operation("RUNNING"))
    with pytest.raises(Unavailable):
        client.create_plan("g", BalancedMode(), timeout_seconds=0)
    assert [call.method for call in script.calls] == ["CreatePlan"]


@pytest.mark.parametrize("state", list(OperationState))
def test_which_states_have_ended(state: OperationState) -> None:
    assert state.has_ended == (state not in (OperationState.PENDING, OperationState.RUNNING))


def test_lists_pass_their_filters_on(scripted: Scripted) -> None:
    script, client = scripted
    summary = planner_pb2.PlanSummary(
        id="p", graph_id="g", graph_name="n", mode="cut", num_stages=3, bottleneck_seconds=0.5, peak_bytes=1 << 53 | 1
    )
    page = planner_pb2.ListPlansResponse
    script.on("ListPlans", page(plans=[summary], next_page_token="t"), page(plans=[plan_summary("q")]))
    first, second = client.list_plans(graph_id="g", mode="cut", device_id="a", page_size=1)
    assert (first.id, first.graph_name, first.num_stages, first.peak_bytes) == ("p", "n", 3, 2**53 + 1)
    assert second.id == "q"
    request = script.requests("ListPlans")[0]
    assert (request.graph_id, request.mode, request.device_id, request.page_size) == ("g", "cut", "a", 1)


def plan_summary(plan_id: str) -> planner_pb2.PlanSummary:
    return planner_pb2.PlanSummary(id=plan_id)


def test_deleting_names_the_plan(scripted: Scripted) -> None:
    script, client = scripted
    script.on("DeletePlan", planner_pb2.DeletePlanResponse())
    client.delete_plan("p")
    assert script.requests("DeletePlan") == [planner_pb2.DeletePlanRequest(plan_id="p")]


def test_a_plan_that_is_none_is_refused(scripted: Scripted) -> None:
    script, client = scripted
    script.on("GetPlan", plan_pb2.Plan(id="p"))
    with pytest.raises(PlannerError):
        client.get_plan("p")
