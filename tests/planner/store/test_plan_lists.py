"""Plans as they are listed, kept and deleted, on both databases."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select

from planner.errors import Conflict, NotFound
from planner.plan.options import CutMode
from planner.plan.plan import StageEdge, TieGroup
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from planner.store.paging import parse_page
from planner.store.plans import PlanFilter, PlanSummary, delete_plan, get_plan, list_plans
from planner.store.tables import Row
from tests.planner.store.records import (
    GRAPH_ID,
    append,
    deployment,
    event,
    fill,
    fill_plan,
    graph,
    inventory,
    later,
    plan,
    stage,
)

pytestmark = pytest.mark.services
OTHER_GRAPH = "cd" * 32


async def listed(database: Database, **filters: str) -> list[str]:
    async with database.session() as session:
        summaries, token = await list_plans(session, parse_page("plans", 0, ""), PlanFilter(**filters))
    assert token == ""
    return [summary.id for summary in summaries]


async def test_a_summary_says_what_the_fullest_device_holds(database: Database) -> None:
    await fill(database, graph(), inventory())
    stages = (stage(0, "a", peak_bytes=60), stage(1, "b", "c", peak_bytes=100), stage(2, "a", peak_bytes=2**60))
    await fill_plan(database, "plan-1", plan(*stages), later(3))
    async with database.session() as session:
        [summary], _ = await list_plans(session, parse_page("plans", 0, ""), PlanFilter())
    assert summary == PlanSummary(
        id="plan-1",
        graph_id=GRAPH_ID,
        graph_name="t5",
        mode="balanced",
        num_stages=3,
        bottleneck_seconds=0.75,
        peak_bytes=2**60 + 60,
        created_at=later(3),
    )


async def test_filters(database: Database) -> None:
    await fill(database, graph(), graph(OTHER_GRAPH), inventory())
    cut = CutMode(module_paths=("x",))
    await fill_plan(database, "plan-1", plan(stage(0, "a"), stage(1, "b")), later(1))
    await fill_plan(database, "plan-2", plan(stage(0, "b"), stage(1, "b"), mode=cut), later(2))
    await fill_plan(database, "plan-3", plan(stage(0, "c"), graph_id=OTHER_GRAPH, mode=cut), later(3))
    assert await listed(database) == ["plan-3", "plan-2", "plan-1"]
    assert await listed(database, graph_id=GRAPH_ID) == ["plan-2", "plan-1"]
    assert await listed(database, graph_id=OTHER_GRAPH) == ["plan-3"]
    assert await listed(database, mode="cut") == ["plan-3", "plan-2"]
    assert await listed(database, device_id="b") == ["plan-2", "plan-1"]
    assert await listed(database, device_id="b", mode="cut") == ["plan-2"]
    assert await listed(database, graph_id=GRAPH_ID, device_id="c") == []
    for nothing in ({"graph_id": "%"}, {"graph_id": "a_"}, {"graph_id": "b"}, {"mode": "%"}, {"device_id": "%"}):
        assert await listed(database, **nothing) == []


async def count_rows(database: Database) -> dict[str, int]:
    async with database.session() as session:
        return {
            table.name: int(await session.scalar(select(func.count()).select_from(table)) or 0)
            for table in Row.metadata.sorted_tables
        }


async def test_a_deleted_plan_leaves_no_row_and_takes_no_other(database: Database) -> None:
    await fill(database, graph(), inventory())
    edges = (StageEdge(source_stage=0, target_stage=1, value_ids=(3,), size_bytes=4),)
    ties = (TieGroup(id=1, members=(("wte", 0),), size_bytes=8),)
    await fill_plan(database, "plan-1", plan(edges=edges, tie_groups=ties))
    before = await count_rows(database)
    await fill_plan(database, "plan-2", plan(edges=edges, tie_groups=ties))
    async with database.session() as session:
        await delete_plan(session, "plan-2")
    assert await count_rows(database) == before
    async with database.session() as session:
        stored_plan, _ = await get_plan(session, "plan-1")
        assert stored_plan == plan(edges=edges, tie_groups=ties)
        for call in (get_plan, delete_plan):
            with pytest.raises(NotFound) as caught:
                await call(session, "plan-2")
            assert caught.value.metadata == {"plan_id": "plan-2"}


async def delete(database: Database, plan_id: str = "plan-1") -> None:
    async with database.session() as session:
        await delete_plan(session, plan_id)


async def test_a_plan_is_kept_while_a_deployment_of_it_has_not_ended(database: Database) -> None:
    await fill(database, graph(), inventory(), deployment(), deployment("dep-2", plan_id="plan-2"))
    await fill_plan(database, "plan-1", plan())
    for state in DeploymentState:
        if not state.ended:
            await append(database, "dep-1", event(state))
            with pytest.raises(Conflict, match="dep-1") as caught:
                await delete(database)
            assert caught.value.metadata == {"deployment": "dep-1"}
    await append(database, "dep-1", event(DeploymentState.FAILED))
    await delete(database)
    assert await listed(database) == []


async def test_a_plan_that_is_kept_outlives_a_deletion_that_comes_meanwhile(database: Database) -> None:
    await fill(database, graph(), inventory())
    await fill_plan(database, "plan-1", plan())
    async with database.session() as session:
        await get_plan(session, "plan-1", keep=True)
        deletion = asyncio.create_task(delete(database))
        await asyncio.wait({deletion}, timeout=0.2)
        assert not deletion.done()
        assert (await get_plan(session, "plan-1"))[0] == plan()
    await deletion
    assert await listed(database) == []
