"""A plan comes out of its rows equal to what went in, whatever its fields hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.cost.sources import CostSource, RateSource
from planner.errors import NotFound
from planner.graph.expression import ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import Dtype, ValueKind
from planner.partition.training.pipeline_order import Pass, Step
from planner.plan.options import Mode, SizeBasedMode
from planner.plan.plan import LiveTensor, PassOrder, Plan, Stage, StageEdge, StageMemory, TieGroup
from planner.store import many_rows, plan_read, plans
from planner.store.database import Database
from planner.store.graphs import add_graph
from planner.store.inventories import InventoryRecord, add_inventory
from planner.store.plan_write import plan_rows
from planner.store.plans import add_plan, delete_plan, get_plan
from tests.builders.options import MODES, full_options
from tests.planner.store import records

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
DIM = Operation(ExpressionOperator.FLOOR_DIVIDE, (Operation(ExpressionOperator.ADD, (SymbolReference(3), -1)), 2))
INVENTORY = Inventory(
    devices=(
        Device(id="b", kind="h200", host="n1", memory_bytes=2**60, flops_per_second=1.1e15),
        Device(id="a", kind="cpu", host="n2", memory_bytes=1, memory_bytes_per_second=0.1),
    ),
    links={("b", "a"): LinkSpeed(bytes_per_second=1e9 / 3, latency_seconds=1e-7)},
)


def live(value_id: int, **changes: object) -> LiveTensor:
    tensor = LiveTensor(
        value_id=value_id,
        name=f"v{value_id}",
        kind=ValueKind.TENSOR,
        dtype=Dtype.BFLOAT16,
        dims=(DIM, 4),
        size_bytes=2**40,
        producer_stage=-1,
        consumed=True,
        bypassing=False,
    )
    return replace(tensor, **changes)


def stage(index: int, **changes: object) -> Stage:
    record = Stage(
        index=index,
        node_ranges=((0, 3), (5, 9)),
        device_ids=("b", "a"),
        states=("z", "a", "m"),
        liveness=(live(9), live(2, kind=ValueKind.SYM_INT, dtype=None, dims=(), producer_stage=0, bypassing=True)),
        outputs=(2**40, 7, 9),
        compute_seconds=0.1 + 0.2,
        communication_seconds=1 / 3,
        flops=1e18 / 7,
        memory=StageMemory(
            state_bytes=1,
            activation_bytes=2**41,
            buffer_bytes=3,
            gradient_bytes=2**42,
            optimizer_bytes=5,
            saved_bytes=2**43,
        ),
        reason="the module “decoder” ends here",
        first_module="encoder",
        last_module="decoder",
        backward_seconds=2 / 7,
        recomputed_ranges=((3, 4), (12, 14)),
        recomputes_activations=index == 2,
    )
    return replace(record, **changes)


def plan(mode: Mode) -> Plan:
    empty = stage(1, node_ranges=(), states=(), liveness=(), outputs=(), device_ids=("a",))
    return Plan(
        graph_id="ab" * 32,
        graph_name="t5",
        num_nodes=17,
        options=full_options(mode),
        inventory=INVENTORY,
        stages=(stage(0), empty, stage(2)),
        edges=(
            StageEdge(source_stage=1, target_stage=2, value_ids=(9, 2), size_bytes=11, gradient_value_ids=(2,)),
            StageEdge(source_stage=0, target_stage=2, value_ids=(), size_bytes=0),
        ),
        tie_groups=(
            TieGroup(id=4, members=(("wte", 0), ("head", 2)), size_bytes=8, requires_grad=True),
            TieGroup(id=1, members=(), size_bytes=0),
        ),
        bottleneck_seconds=0.7,
        latency_seconds=2.1,
        lower_bound_seconds=None if isinstance(mode, SizeBasedMode) else 0.69,
        symbol_values=(("batch", 4),),
        step_seconds=1 / 9,
        pass_orders=(PassOrder(device_id="a", steps=tuple(Step(kind, 1, 2**40) for kind in Pass)),),
        cost_sources=(
            CostSource(
                device_kind="cpu",
                num_measured=3,
                num_nodes=17,
                rates=RateSource.CALIBRATED,
                scaled=True,
                measured_profile_ids=("prof-b", "prof-a"),
                calibration_profile_ids=("prof-c",),
            ),
            CostSource(device_kind="h200", num_measured=0, num_nodes=17, rates=RateSource.GIVEN, message_seconds=1e-4),
        ),
    )


async def add(database: Database, original: Plan) -> None:
    async with database.session() as session:
        await add_graph(session, records.graph(original.graph_id, name="t5"))
        await add_inventory(session, InventoryRecord(id="inv-1", name="", inventory=INVENTORY, created_at=NOW))
        await add_plan(session, "plan-1", original, "inv-1", NOW)


@pytest.mark.services
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
async def test_plan_is_the_same_after_its_rows(database: Database, mode: Mode) -> None:
    original = plan(mode)
    await add(database, original)
    async with database.session() as session:
        assert await get_plan(session, "plan-1") == (original, NOW)


@pytest.mark.services
async def test_one_that_is_deleted_while_it_is_read_is_not_taken_for_a_smaller_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tie_groups_of = plan_read._tie_groups

    async def deleted_first(session: AsyncSession, plan_id: str) -> tuple[TieGroup, ...]:
        async with database.session() as other:
            await delete_plan(other, plan_id)
        return await tie_groups_of(session, plan_id)

    await add(database, plan(MODES[0]))
    monkeypatch.setattr(plan_read, "_tie_groups", deleted_first)
    async with database.reading() as session:
        with pytest.raises(NotFound, match="no plan has the id 'plan-1'"):
            await get_plan(session, "plan-1")


@pytest.mark.services
async def test_others_have_their_turn_while_a_plan_is_written_and_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan has tens of thousands of rows."""
    rows_at_once, num_rows = 10, 300
    small = plan(MODES[0])
    tensors = tuple(live(index) for index in range(num_rows))
    original = replace(small, stages=(replace(small.stages[0], liveness=tensors), *small.stages[1:]))
    num_done, most_done, tensor_of = 0, 0, plan_read._live_tensor

    def counted_tensor(row: Any) -> LiveTensor:
        nonlocal num_done
        num_done += 1
        return tensor_of(row)

    def counted_rows(*args: Any) -> Iterator[Any]:
        nonlocal num_done
        for row in plan_rows(*args):
            num_done += 1
            yield row

    async def take_turns() -> None:
        nonlocal num_done, most_done
        while True:
            most_done, num_done = max(most_done, num_done), 0
            await asyncio.sleep(0)

    for module in (many_rows, plan_read):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(plans, "plan_rows", counted_rows)
    monkeypatch.setattr(plan_read, "_live_tensor", counted_tensor)
    taking_turns = asyncio.create_task(take_turns())
    async with database.session() as session:
        await add_graph(session, records.graph(original.graph_id, name="t5"))
        await add_inventory(session, InventoryRecord(id="inv-1", name="", inventory=INVENTORY, created_at=NOW))
        await add_plan(session, "plan-1", original, "inv-1", NOW)
        assert most_done == rows_at_once
        assert await get_plan(session, "plan-1") == (original, NOW)
    assert most_done == rows_at_once
    taking_turns.cancel()
