"""Simulated schedules against times reckoned by hand, known bubbles and the planner's own predictions."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from planner.cost.inventory import DEFAULT_LINK, Device, Inventory, LinkSpeed
from planner.cost.sources import CostSource, RateSource
from planner.errors import OptionsError
from planner.partition.objective import NAMED_SCHEDULES, PipelineSchedule, Training
from planner.plan.invariants.seconds import check_seconds
from planner.plan.options import BalancedMode, PlanOptions, Routing
from planner.plan.plan import Plan
from planner.planning import make_plan
from planner.schedule.check import check_schedule
from planner.schedule.check_training import check_training_schedule
from planner.schedule.inference import inference_schedule
from planner.schedule.simulate import simulate
from planner.schedule.timeline import Activity, Simulation
from planner.schedule.trace import chrome_trace
from planner.schedule.training import training_schedule
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter, random_graph, random_stages
from tests.planner.schedule.steps import chain_plan, training_plan
from tests.random_examples import random_seeds

GPIPE, ONE_F_ONE_B = PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B
INTERLEAVED, ZERO_BUBBLE = PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE


def step(plan: Plan) -> Simulation:
    schedule = training_schedule(plan)
    check_training_schedule(schedule, plan)
    return simulate(plan, schedule, microbatches=schedule.microbatches)


def stream(plan: Plan, microbatches: int) -> Simulation:
    return simulate(plan, inference_schedule(plan), microbatches=microbatches)


def test_two_uneven_stages_stream() -> None:
    simulation = stream(chain_plan([1.0, 3.0], transfer_seconds=0.5), 3)
    # Stage 1 receives from 1 on, computes from 1.5 to 4.5; then the next waits for it.
    assert simulation.output_seconds == (4.5, 8.0, 11.5)
    assert simulation.makespan_seconds == 11.5
    first, second = simulation.devices
    assert (first.busy_seconds, first.communication_seconds, first.waiting_seconds) == (3.0, 1.5, 7.0)
    assert (second.busy_seconds, second.communication_seconds, second.waiting_seconds) == (9.0, 1.5, 1.0)
    assert simulation.seconds_between_outputs == 3.5


def test_one_f_one_b_of_two_stages_by_hand() -> None:
    plan = chain_plan([1.0, 1.0], microbatches=2)
    simulation = step(plan)
    # d0: F0 0-1, F1 1-2, B0 4-6, B1 7-9. d1: F0 1-2, B0 2-4, F1 4-5, B1 5-7.
    times = {
        (e.device_id, e.activity, e.microbatch): e.start_seconds for e in simulation.events if e.activity.is_compute
    }
    assert times["d0", Activity.FORWARD, 1] == 1.0
    assert times["d1", Activity.BACKWARD, 0] == 2.0
    assert times["d0", Activity.BACKWARD, 0] == 4.0
    assert times["d1", Activity.FORWARD, 1] == 4.0
    assert times["d0", Activity.BACKWARD, 1] == 7.0
    assert simulation.makespan_seconds == 9.0


def test_gradients_pay_for_their_way_back() -> None:
    simulation = step(chain_plan([1.0, 1.0], microbatches=1, transfer_seconds=0.25))
    assert simulation.makespan_seconds == 1 + 0.25 + 1 + 2 + 0.25 + 2
    assert [transfer.is_gradient for transfer in simulation.transfers] == [False, True]


def measured(plan: Plan, seconds: float) -> Plan:
    """With messages that were measured to take so long at each end; their 48 bytes take some nanoseconds."""
    source = CostSource(
        device_kind="cpu", num_measured=1, num_nodes=1, rates=RateSource.ROOFLINE, message_seconds=seconds
    )
    inventory = replace(plan.inventory, default_link=DEFAULT_LINK)
    return replace(plan, cost_sources=(source,), inventory=inventory)


def test_of_a_measured_message_the_receiver_takes_its_end_behind_the_senders() -> None:
    plan = chain_plan([1.0, 2.0], ZERO_BUBBLE, microbatches=1)
    events = {(e.device_id, e.activity): (e.start_seconds, e.end_seconds) for e in step(measured(plan, 0.25)).events}
    assert events["d0", Activity.SEND] == pytest.approx((1.0, 1.25))
    assert events["d1", Activity.RECEIVE] == pytest.approx((1.25, 1.5))
    assert events["d1", Activity.SEND_GRADIENT] == pytest.approx((5.5, 5.75))
    assert events["d0", Activity.RECEIVE_GRADIENT] == pytest.approx((5.75, 6.0))
    assert events["d0", Activity.BACKWARD_WEIGHT] == pytest.approx((7.0, 8.0))


def test_a_busy_receiver_does_not_wait_for_a_handover() -> None:
    """Three microbatches forward keep the second device busy all the time once it has the first."""
    plan = measured(chain_plan([1.0, 4.0], GPIPE, microbatches=3), 0.25)
    received = [e for e in step(plan).events if e.activity is Activity.RECEIVE]
    assert [(e.start_seconds, e.end_seconds) for e in received] == [
        pytest.approx(span) for span in ((1.25, 1.5), (5.5, 5.75), (9.75, 10.0))
    ]


def test_every_event_and_transfer_of_a_step_by_hand() -> None:
    """Zero bubble: the passes of a backward pass take half of it each, and only the one for inputs has messages."""
    plan = chain_plan([1.0, 2.0], ZERO_BUBBLE, microbatches=1, transfer_seconds=0.25)
    simulation = step(plan)
    assert [(e.device_id, e.activity.value, e.start_seconds, e.end_seconds) for e in simulation.events] == [
        ("d0", "forward", 0.0, 1.0),
        ("d0", "send", 1.0, 1.25),
        ("d0", "receive gradient", 5.25, 5.5),
        ("d0", "backward for inputs", 5.5, 6.5),
        ("d0", "backward for weights", 6.5, 7.5),
        ("d1", "receive", 1.0, 1.25),
        ("d1", "forward", 1.25, 3.25),
        ("d1", "backward for inputs", 3.25, 5.25),
        ("d1", "send gradient", 5.25, 5.5),
        ("d1", "backward for weights", 5.5, 7.5),
    ]
    assert [(t.edge_index, t.is_gradient, t.source_id, t.target_id, t.size_bytes) for t in simulation.transfers] == [
        (0, False, "d0", "d1", 48),
        (0, True, "d1", "d0", 48),
    ]
    assert [(t.start_seconds, t.end_seconds) for t in simulation.transfers] == [(1.0, 1.25), (5.25, 5.5)]
    assert [(one.source_id, one.target_id, one.busy_seconds, one.size_bytes) for one in simulation.links] == [
        ("d0", "d1", 0.25, 48),
        ("d1", "d0", 0.25, 48),
    ]
    assert simulation.output_seconds == (3.25,)
    assert [device.waiting_seconds for device in simulation.devices] == [4.0, 1.0]
    assert simulation.bubble_share == 5.0 / 15.0


def test_what_weights_take_of_a_backward_pass_is_the_plans() -> None:
    plan = chain_plan([1.0, 2.0], ZERO_BUBBLE, microbatches=1)
    shares = (1.0, 0.25)
    stages = (replace(stage, weight_share=share) for stage, share in zip(plan.stages, shares, strict=True))
    simulation = step(replace(plan, stages=tuple(stages)))
    assert [(e.activity.value, e.start_seconds, e.end_seconds) for e in simulation.events if e.activity.is_compute] == [
        ("forward", 0.0, 1.0),
        ("backward for inputs", 6.0, 6.0),
        ("backward for weights", 6.0, 8.0),
        ("forward", 1.0, 3.0),
        ("backward for inputs", 3.0, 6.0),
        ("backward for weights", 6.0, 7.0),
    ]


def test_a_pass_waits_for_the_last_of_its_messages() -> None:
    pairs = [(0, 1), (0, 2), (1, 2)]
    plan = training_plan(GPIPE, devices=[[0], [1], [2]], pairs=pairs, microbatches=1)
    # Forward 1 s each, backward 2 s: the third stage's gradient is there at 5 s, the second's at 7 s.
    assert step(plan).makespan_seconds == pytest.approx(9.0)
    assert stream(plan, 1).output_seconds == pytest.approx((3.0,))


def test_what_goes_ahead_leaves_once_the_inputs_are_taken() -> None:
    writer = GraphWriter()
    one, other = writer.input(), writer.input()
    joined = writer.multiply(writer.multiply(one), writer.multiply(other))
    plan = plan_of(writer.graph(joined), (0, 1, 2))
    first, second, last = (
        replace(stage, compute_seconds=seconds, delivery_seconds=delivery)
        for stage, seconds, delivery in zip(plan.stages, (8.0, 2.0, 1.0), (3.0, 0.0, 0.0), strict=True)
    )
    simulation = stream(replace(plan, stages=(first, second, last)), 2)
    starts = {(e.stage, e.microbatch): e.start_seconds for e in simulation.events if e.activity is Activity.FORWARD}
    assert starts[0, 0] == 3.0
    assert 3.0 < starts[1, 0] < 3.01
    sent = {(t.edge_index, t.microbatch): t.start_seconds for t in simulation.transfers}
    assert [sent[edge, 0] for edge in range(3)] == [3.0, 11.0, pytest.approx(5.0, abs=0.01)]
    assert simulation.output_seconds[0] == pytest.approx(12.0, abs=0.01)
    # The second's inputs are taken when the first microbatch has left.
    assert starts[1, 1] == pytest.approx(starts[0, 1], abs=0.01)


def test_an_edge_of_no_value_takes_no_time_and_goes_out_before_the_stage_runs() -> None:
    plan = chain_plan([1.0, 4.0, 2.0, 8.0], transfer_seconds=0.5)
    first, _, last = plan.edges
    empty = [replace(edge, value_ids=(), size_bytes=0, gradient_value_ids=()) for edge in (first, last)]
    plan = replace(plan, edges=(empty[0], plan.edges[1], empty[1]))
    check_schedule(inference_schedule(plan), plan)
    simulation = stream(plan, 2)
    starts = {(e.stage, e.microbatch): e.start_seconds for e in simulation.events if e.activity is Activity.FORWARD}
    assert [starts[stage, 0] for stage in range(4)] == [0.0, 0.0, 4.5, 4.0]
    assert simulation.output_seconds[0] == 12.0
    # The first has run the first microbatch when it tells of the second.
    assert [starts[stage, 1] for stage in range(4)] == [1.0, 4.5, 9.0, 12.0]
    assert {(transfer.source_id, transfer.target_id) for transfer in simulation.transfers} == {("d1", "d2")}


def test_stages_of_one_device_run_in_the_order_in_which_they_are_ready() -> None:
    plan = chain_plan([1.0, 5.0, 1.0], devices=[[0], [1], [0]])
    simulation = stream(plan, 3)
    forward = [e for e in simulation.events if e.activity is Activity.FORWARD]
    runs = [(e.stage, e.microbatch, e.start_seconds) for e in forward if e.device_id == "d0"]
    assert runs == [(0, 0, 0.0), (0, 1, 1.0), (0, 2, 2.0), (2, 0, 6.0), (2, 1, 11.0), (2, 2, 16.0)]
    assert simulation.links[0].size_bytes == simulation.links[1].size_bytes == 3 * 48


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 16), (8, 3)])
def test_bubble_of_equal_stages(schedule: PipelineSchedule, stages: int, microbatches: int) -> None:
    simulation = step(chain_plan([1.0] * stages, schedule, microbatches=microbatches))
    assert simulation.bubble_share == pytest.approx((stages - 1) / (microbatches + stages - 1))


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_zero_bubble_leaves_a_third_of_the_bubble(stages: int, microbatches: int) -> None:
    """ZB-H1: (S - 1) x (forward + input pass - weight pass) of idle time, where 1F1B has (S - 1) x all three."""
    simulation = step(chain_plan([1.0] * stages, ZERO_BUBBLE, microbatches=microbatches))
    assert simulation.makespan_seconds == pytest.approx(3 * microbatches + (stages - 1))


@pytest.mark.parametrize(("devices", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 4, 8), (2, 3, 6)])
def test_interleaving_divides_the_bubble(devices: int, chunks: int, microbatches: int) -> None:
    where = [[stage % devices] for stage in range(devices * chunks)]
    plan = chain_plan([1.0] * len(where), INTERLEAVED, microbatches=microbatches, devices=where)
    simulation = step(plan)
    work = 3.0 * chunks * microbatches
    assert simulation.makespan_seconds == pytest.approx(work + 3.0 * (devices - 1))


@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
@pytest.mark.parametrize("microbatches", [1, 2, 5])
@pytest.mark.parametrize("where", [[0, 1, 0], [0, 0, 1, 1], [1, 0, 0, 2, 1], [0, 1, 2, 0, 1, 2, 0]], ids=str)
def test_any_placement_of_stages_ends(schedule: PipelineSchedule, microbatches: int, where: list[int]) -> None:
    devices = [[device] for device in where]
    plan = chain_plan(
        [1.0 + stage for stage in range(len(where))], schedule, microbatches=microbatches, devices=devices
    )
    simulation = step(plan)
    busiest = max(sum(3.0 * (1 + stage) for stage, own in enumerate(where) if own == device) for device in set(where))
    assert simulation.makespan_seconds >= microbatches * busiest
    assert sum(device.busy_seconds for device in simulation.devices) == pytest.approx(
        microbatches * sum(3.0 * (1 + stage) for stage in range(len(where)))
    )


def test_copies_share_the_microbatches() -> None:
    plan = chain_plan([1.0, 2.0], devices=[[0], [1, 2]])
    simulation = stream(plan, 40)
    assert simulation.seconds_between_outputs == pytest.approx(1.0, rel=0.06)
    forwards = Counter(event.device_id for event in simulation.events if event.activity is Activity.FORWARD)
    assert forwards == {"d0": 40, "d1": 20, "d2": 20}
    assert step(plan).makespan_seconds < step(chain_plan([1.0, 2.0])).makespan_seconds


def test_copies_sum_their_gradients_once() -> None:
    plan = chain_plan([1.0, 2.0], devices=[[0], [1, 2]], transfer_seconds=0.5, gradient_bytes=1000)
    reduced = [event for event in step(plan).events if event.activity is Activity.REDUCE]
    assert [event.device_id for event in reduced] == ["d1", "d2"]
    # A ring of two: a message each way.
    assert all(event.end_seconds - event.start_seconds == pytest.approx(1.0) for event in reduced)


def inventory() -> Inventory:
    return Inventory(
        devices=tuple(
            Device(id=f"d{index}", kind=("cpu", "l4")[index % 2], host="h", memory_bytes=1 << 40) for index in range(3)
        ),
        links={("d0", "d1"): LinkSpeed(bytes_per_second=1e6, latency_seconds=1e-4)},
        default_link=LinkSpeed(bytes_per_second=1e9, latency_seconds=1e-6),
    )


@pytest.mark.slow
@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
@pytest.mark.fuzz
def test_the_step_takes_what_the_plan_says(schedule: PipelineSchedule, routing: Routing) -> None:
    compared = 0
    for seed in random_seeds(6):
        graph = random_graph(seed, 14)
        states = tuple(replace(state, requires_grad=index % 2 == 0) for index, state in enumerate(graph.states))
        graph = replace(graph, states=states)
        training = Training(schedule=schedule, microbatches=5)
        options = PlanOptions(mode=BalancedMode(num_stages=seed % 4), routing=routing, training=training)
        try:
            plan = make_plan(graph, "id", inventory(), options)
        except OptionsError:
            # Nothing to train, or fewer cuts than asked for.
            continue
        assert plan.step_seconds is not None
        assert step(plan).makespan_seconds == pytest.approx(plan.step_seconds, rel=1e-9)
        compared += 1
    assert compared >= 3


@pytest.mark.slow
@pytest.mark.parametrize("routing", Routing)
@pytest.mark.fuzz
def test_a_stream_of_random_programs_runs_at_the_bottleneck(routing: Routing) -> None:
    for seed in random_seeds(12):
        options = PlanOptions(mode=BalancedMode(num_stages=1 + seed % 3), routing=routing)
        try:
            plan = make_plan(random_graph(seed, 14), "id", inventory(), options)
        except OptionsError:
            continue
        simulation = stream(plan, 60)
        assert simulation.seconds_between_outputs == pytest.approx(plan.bottleneck_seconds, rel=1e-9)
        assert simulation.output_seconds[0] == pytest.approx(plan.latency_seconds, rel=1e-9)


def uneven_inventory(choice: random.Random, count: int) -> Inventory:
    """Links as slow as random graphs are small, so that messages take about as long as stages."""
    names = [f"d{index}" for index in range(count)]
    return Inventory(
        devices=tuple(
            Device(id=name, kind=choice.choice(["cpu", "l4"]), host="h", memory_bytes=1 << 40) for name in names
        ),
        links={
            (a, b): LinkSpeed(bytes_per_second=10 ** choice.uniform(6, 9), latency_seconds=10 ** choice.uniform(-7, -4))
            for a in names
            for b in names
            if a != b
        },
    )


@pytest.mark.slow
@pytest.mark.fuzz
def test_a_lone_batch_takes_the_latency_that_the_plan_says_and_the_verifier_derives() -> None:
    """Of any stages on any devices: several stages on one, skipped stages, both routings, copies."""
    shared = 0
    for seed in random_seeds(200):
        choice = random.Random(seed)
        graph = random_graph(seed, choice.randint(4, 16))
        stages = random_stages(graph, seed, choice.randint(1, 6))
        count, num_devices = max(stages) + 1, choice.randint(2, 4)
        where = [choice.sample(range(num_devices), choice.choice([1, 1, 1, 2])) for _ in range(count)]
        plan = plan_of(
            graph,
            stages,
            choice.choice(list(Routing)),
            device_of_stage=[own[0] for own in where],
            replicas=[own[1:] for own in where],
            inventory=uneven_inventory(choice, num_devices),
        )
        check_seconds(plan)
        assert stream(plan, 1).output_seconds[0] == pytest.approx(plan.latency_seconds, rel=1e-9), seed
        shared += len({own[0] for own in where}) < count
    assert shared > 60


def test_the_stages_of_a_device_run_each_microbatch_in_their_order() -> None:
    """The last is ready before the one in front of it, and waits."""
    plan = training_plan(GPIPE, devices=[[0], [1], [0], [0]], pairs=[(0, 1), (1, 2), (0, 3)], microbatches=1)
    simulation = stream(plan, 1)
    runs = [(e.stage, e.start_seconds) for e in simulation.events if e.activity is Activity.FORWARD]
    assert sorted(runs) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert simulation.output_seconds[0] == 4.0
    later = [e for e in stream(plan, 3).events if e.activity is Activity.FORWARD and e.device_id == "d0"]
    for microbatch in range(3):
        own = [(e.start_seconds, e.stage) for e in later if e.microbatch == microbatch]
        assert [stage for _, stage in sorted(own)] == [0, 2, 3]


def test_the_first_result_of_a_chain_takes_its_latency() -> None:
    plan = chain_plan([1.0, 2.0, 4.0], transfer_seconds=0.5)
    assert stream(plan, 1).output_seconds == (8.0,)


def test_same_schedule_same_timeline() -> None:
    plan = chain_plan([1.0, 1.0, 1.0], INTERLEAVED, devices=[[0], [1], [0]])
    assert step(plan) == step(plan)


def test_a_device_does_one_thing_at_a_time() -> None:
    plan = chain_plan([1.0, 2.0, 1.5], devices=[[0], [1], [0]], transfer_seconds=0.25)
    for simulation in (stream(plan, 9), step(plan)):
        for device in simulation.devices:
            spans = [(e.start_seconds, e.end_seconds) for e in simulation.events if e.device_id == device.device_id]
            assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(spans))


def test_a_trace_holds_every_event_and_names_every_device() -> None:
    simulation = step(chain_plan([1.0, 2.0], transfer_seconds=0.5))
    document = json.loads(json.dumps(chrome_trace(simulation)))
    kinds = Counter(event["ph"] for event in document["traceEvents"])
    assert kinds["X"] == len(simulation.events) + len(simulation.transfers)
    assert kinds["s"] == kinds["f"] == len(simulation.transfers)
    named = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert named == ["d0", "d1", "links"]
    end = max(event["ts"] + event["dur"] for event in document["traceEvents"] if event["ph"] == "X")
    assert math.isclose(end, simulation.makespan_seconds * 1e6)


def test_numbers_of_microbatches_that_do_not_fit() -> None:
    plan = chain_plan([1.0], microbatches=4)
    with pytest.raises(OptionsError, match="at least 1"):
        stream(plan, 0)
    with pytest.raises(OptionsError, match=r"training\.microbatches=5"):
        simulate(plan, training_schedule(plan), microbatches=5)
    with pytest.raises(OptionsError, match="for inference"):
        training_schedule(replace(plan, options=PlanOptions(mode=BalancedMode())))
