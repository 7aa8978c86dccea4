"""How many messages edges hold: more where stages are skipped, as far as devices have bytes to spare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from planner.cli.tables import plan_table
from planner.errors import PlanInvariantError
from planner.partition.objective import PipelineSchedule
from planner.plan.depths import SMALL_BYTES, edge_depths, held_up
from planner.plan.explain import explain
from planner.plan.plan import Plan
from planner.schedule.check_training import check_training_schedule
from planner.schedule.training import training_schedule
from stage_daemon.transport import stream
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter
from tests.planner.schedule.steps import training_plan

Pairs = Sequence[tuple[int, int]]


def plan_with(pairs: Pairs, devices: Sequence[Sequence[int]] = (), microbatches: int = 4) -> Plan:
    num_stages = max(target for _, target in pairs) + 1
    return training_plan(
        PipelineSchedule.ONE_F_ONE_B,
        devices=devices or [[stage] for stage in range(num_stages)],
        pairs=pairs,
        microbatches=microbatches,
    )


def with_spare(plan: Plan, spare_bytes: int) -> Plan:
    """On each device beside what the plan needs there: four times as much, of which a quarter may be taken."""
    peaks = plan.device_peak_bytes
    devices = [replace(one, memory_bytes=peaks[one.id] + 4 * spare_bytes) for one in plan.inventory.devices]
    return replace(plan, inventory=replace(plan.inventory, devices=tuple(devices)))


def of_inference(plan: Plan) -> Plan:
    return replace(plan, options=replace(plan.options, training=None))


def depths_of(plan: Plan) -> dict[tuple[int, int], int]:
    ends = [(edge.source_stage, edge.target_stage) for edge in plan.edges]
    return dict(zip(ends, edge_depths(plan), strict=True))


CHAIN = [(0, 1), (1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_between_neighbours_it_is_what_is_in_flight(in_flight: int) -> None:
    plan = with_spare(plan_with(CHAIN), 1 << 30)
    plan = replace(plan, options=replace(plan.options, microbatches_in_flight=in_flight))
    assert set(depths_of(plan).values()) == {in_flight}


def test_each_stage_that_is_skipped_adds_one() -> None:
    plan = with_spare(plan_with([*CHAIN, (0, 4), (1, 3), (0, 2)]), 1 << 30)
    assert depths_of(plan) == {**dict.fromkeys(CHAIN, 2), (0, 4): 5, (1, 3): 3, (0, 2): 3}


def test_the_longest_way_counts_whatever_the_numbers_of_stages() -> None:
    """Stages 1 and 2 stand side by side: from 0 to 3 a microbatch passes one of them."""
    plan = with_spare(plan_with([(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)]), 1 << 30)
    assert depths_of(plan) == {(0, 1): 2, (0, 2): 2, (1, 3): 2, (2, 3): 2, (0, 3): 3}


def test_a_short_way_beside_a_long_one_holds_as_much() -> None:
    """One stage beside eight took 1.28 times the time where each edge held two: benchmarks/skipped_stages.py."""
    long_way = [(0, 2), (2, 3), (3, 4), (4, 6)]
    plan = with_spare(plan_with([*long_way, (0, 1), (1, 5), (5, 6)]), 1 << 30)
    assert depths_of(plan) == {**dict.fromkeys(long_way, 2), (0, 1): 2, (1, 5): 2, (5, 6): 3}


def test_a_tower_that_is_sent_its_inputs_ahead_is_further_on() -> None:
    writer = GraphWriter()
    one, other = writer.input(), writer.input()
    first, second = writer.multiply(writer.multiply(one)), writer.multiply(other)
    plan = plan_of(writer.graph(writer.multiply(first, second)), (0, 1, 2, 3))
    assert {(edge.source_stage, edge.target_stage) for edge in plan.edges} == {(0, 1), (0, 2), (1, 3), (2, 3)}
    assert depths_of(plan) == {(0, 1): 2, (0, 2): 2, (1, 3): 2, (2, 3): 3}


def test_each_copy_of_a_skipped_stage_adds_one() -> None:
    plan = with_spare(plan_with([(0, 1), (1, 2), (0, 2)], devices=[[0], [1, 2, 3], [4]]), 1 << 30)
    assert depths_of(plan) == {(0, 1): 2, (1, 2): 2, (0, 2): 5}


def test_without_bytes_to_spare_nothing_is_added() -> None:
    assert set(depths_of(with_spare(plan_with([*CHAIN, (0, 4)]), 0)).values()) == {2}


def test_where_bytes_are_few_all_edges_are_as_many_short() -> None:
    """Edges over three and over two stages leave the first device: room for three messages is for two and for one."""
    plan = of_inference(plan_with([*CHAIN, (0, 4), (0, 3)]))
    size = plan.edges[0].size_bytes
    assert {edge.size_bytes for edge in plan.edges} == {size}
    assert size > 0
    room = {spare: depths_of(with_spare(plan, spare * size)) for spare in (1, 3, 5)}
    assert [(depths[0, 4], depths[0, 3]) for depths in room.values()] == [(3, 2), (4, 3), (5, 4)]


def test_a_plan_that_trains_has_three_such_edges() -> None:
    plan = plan_with([*CHAIN, (0, 2)])
    size = plan.edges[-1].size_bytes
    assert plan.edges[-1].gradient_value_ids
    assert depths_of(with_spare(plan, 3 * size - 1))[0, 2] == 2
    assert depths_of(with_spare(plan, 3 * size))[0, 2] == 3


def test_a_step_ends_that_would_wait_for_ever_with_two_messages() -> None:
    """As a transformer's, whose mask the first stage makes and all others read."""
    pairs = [(stage, stage + 1) for stage in range(10)] + [(0, stage) for stage in range(2, 11)]
    plan = with_spare(plan_with(pairs, microbatches=8), 1 << 30)
    schedule = training_schedule(plan)
    with pytest.raises(PlanInvariantError):
        check_training_schedule(schedule, plan, capacity=2)
    check_training_schedule(schedule, plan, capacity=2, depths=edge_depths(plan))


def streamed(spare_messages: int, seconds: float = 1.0) -> Plan:
    """Five stages of so many seconds; the last reads what the first makes. Room for so many messages more."""
    return of_seconds(of_inference(plan_with([*CHAIN, (0, 4)])), spare_messages, seconds)


def of_seconds(plan: Plan, spare_messages: int, seconds: float) -> Plan:
    """Each stage, with large messages between them."""
    plan = with_spare(plan, spare_messages * 2 * SMALL_BYTES)
    only = {"backward_seconds": 0.0, "communication_seconds": 0.0, "delivery_seconds": 0.0}
    stages = tuple(replace(stage, compute_seconds=seconds, **only) for stage in plan.stages)
    edges = tuple(replace(edge, size_bytes=2 * SMALL_BYTES) for edge in plan.edges)
    return replace(plan, stages=stages, edges=edges, bottleneck_seconds=seconds)


def test_who_lacks_the_memory_is_told_how_slow_the_pipeline_is() -> None:
    """benchmarks/skipped_stages.py measures 80.7 ms of ten stages of 30 that hold two, and 49.3 of six."""
    held = held_up(streamed(0))
    assert held is not None
    assert ((held.edge.source_stage, held.edge.target_stage), held.num_messages, held.num_needed) == ((0, 4), 2, 5)
    assert (held.seconds, held.spare_bytes, held.needed_bytes) == (5 / 4, 0, 6 * SMALL_BYTES)
    [line] = [line for line in explain(streamed(0)) if "at best" in line]
    console = Console(width=400)
    with console.capture() as table:
        console.print(plan_table(streamed(0)))
    assert line in table.get()
    assert "results come every 1.25 s at best" in line
    assert "from stage 0 to 4 holds 2 messages of 131072 bytes (128.0 KiB), needs 5" in line


def test_a_round_over_several_edges_is_waited_for() -> None:
    """One stage beside five, and beside nine. With the first way the round takes 8 s and has room for 8."""
    long_way = [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    plan = of_seconds(of_inference(plan_with([*long_way, (0, 1), (1, 7)])), 0, 1.0)
    assert held_up(plan) is None
    longer = [(0, 2), *((stage, stage + 1) for stage in range(2, 11))]
    held = held_up(of_seconds(of_inference(plan_with([*longer, (0, 1), (1, 11)])), 0, 1.0))
    assert held is not None
    assert (held.edge.source_stage, held.edge.target_stage) == (1, 11)
    # Ten seconds to the last, whose pass and the short way's come back: over two edges that hold two, and four ends.
    assert held.seconds == (10 + 2) / 8


@pytest.mark.parametrize(
    "plan",
    [
        streamed(3),
        # Five stages' seconds between four messages and what the ends are at.
        streamed(1),
        of_inference(with_spare(plan_with(CHAIN), 0)),
        replace(streamed(0), edges=tuple(replace(edge, size_bytes=SMALL_BYTES) for edge in streamed(0).edges)),
        replace(streamed(0), bottleneck_seconds=1.25),
    ],
    ids=["room for all", "room for enough", "nothing skips", "small", "slow anyway"],
)
def test_nobody_is_told_where_nothing_is_held_up(plan: Plan) -> None:
    assert held_up(plan) is None
    assert not any("at best" in line for line in explain(plan))


def test_small_messages_are_those_that_the_daemon_has_many_of() -> None:
    assert SMALL_BYTES == stream.SMALL_BYTES
