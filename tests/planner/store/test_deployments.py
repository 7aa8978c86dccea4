"""Deployments and their events, on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from planner.errors import NotFound
from planner.store.database import Database
from planner.store.deployment_records import Deployment, DeploymentEvent, DeploymentState, Failure, LoadedStage
from planner.store.deployments import (
    begin_generation,
    get_deployment,
    list_active_deployments,
    list_deployments,
    list_events,
    promised_bytes,
    set_loaded,
)
from planner.store.paging import parse_page
from planner.store.tables import DeploymentRow
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
    placement,
    plan,
    stage,
)

pytestmark = pytest.mark.services
FAILURE = Failure(reason="WORKER_DIED", message="killed – 9", stage=1, device_id="a", metadata={"edge": "0"})


async def get(database: Database, deployment_id: str = "dep-1") -> Deployment:
    async with database.session() as session:
        return await get_deployment(session, deployment_id)


async def events(database: Database, deployment_id: str = "dep-1", after: int = 0) -> tuple[DeploymentEvent, ...]:
    async with database.session() as session:
        return await list_events(session, deployment_id, after)


async def test_a_deployment_is_kept_as_it_was_added(database: Database) -> None:
    record = deployment(generation=2**40)
    await fill(database, graph(), record)
    assert await get(database) == record
    async with database.session() as session:
        row = await session.get_one(DeploymentRow, "dep-1")
        assert (row.input_address, row.output_address) == ("b:1", "b:1")


async def test_copies_of_a_stage_are_kept_in_their_order_and_the_first_is_where_results_leave(
    database: Database,
) -> None:
    stages = (placement(0, "b"), placement(0, "a"), placement(1, "d"), placement(1, "c"))
    await fill(database, graph(), deployment(stages=stages))
    record = await get(database)
    assert record.stages == stages
    assert (record.input_address, record.output_address) == ("b:1", "d:1")
    async with database.session() as session:
        await begin_generation(session, replace(record, stages=stages[::2], generation=2))
    assert (await get(database)).stages == stages[::2]


async def test_what_a_copy_of_a_stage_says_is_said_of_that_copy_alone(database: Database) -> None:
    await fill(database, graph(), deployment(stages=(placement(0, "b"), placement(0, "a"))))
    async with database.session() as session:
        await set_loaded(session, "dep-1", "a", [LoadedStage(stage=0, num_threads=3, compiled_difference=1e-6)])
    stages = [(one.num_threads, one.compiled_difference) for one in (await get(database)).stages]
    assert stages == [(0, None), (3, 1e-6)]


async def test_stages_keep_the_plans_order_and_devices_that_of_their_first_stage() -> None:
    record = deployment()
    assert record.device_ids() == ("b", "a")
    assert [one.stage for one in record.stages_on("b")] == [0, 2]
    assert record.stages_on("z") == ()


async def test_an_unknown_id_is_told_in_short(database: Database) -> None:
    with pytest.raises(NotFound, match="'xxx") as caught:
        await get(database, "x" * 1000)
    assert caught.value.metadata == {"deployment_id": "x" * 80}


async def test_a_deployment_of_no_graph_is_refused(database: Database) -> None:
    with pytest.raises(IntegrityError):
        await fill(database, deployment())


async def test_events_are_counted_from_one_in_each_deployment(database: Database) -> None:
    await fill(database, graph(), deployment(), deployment("dep-2"))
    loading = event(DeploymentState.LOADING, stage=1, device_id="a", loaded_bytes=2**62, total_bytes=2**63 - 1)
    first = await append(database, "dep-1", replace(loading, sequence=77))
    second = await append(database, "dep-1", event(DeploymentState.CONNECTING))
    other = await append(database, "dep-2", loading)
    assert (first, second.sequence, other.sequence) == (replace(loading, sequence=1), 2, 1)
    assert await events(database) == (first, second)
    assert await events(database, after=1) == (second,)
    assert await events(database, after=2) == ()
    assert (await get(database)).state is DeploymentState.CONNECTING
    assert (await get(database, "dep-2")).state is DeploymentState.LOADING


async def test_writers_at_the_same_time_leave_no_gap_and_no_double(database: Database) -> None:
    await fill(database, graph(), deployment())
    written = await asyncio.gather(
        *(append(database, "dep-1", event(DeploymentState.LOADING, message=f"m{index}")) for index in range(12))
    )
    assert sorted(one.sequence for one in written) == list(range(1, 13))
    assert await events(database) == tuple(sorted(written, key=lambda one: one.sequence))


async def test_only_the_event_that_ends_it_gives_the_deployment_its_end_and_failure(database: Database) -> None:
    await fill(database, graph(), deployment())
    await append(database, "dep-1", event(DeploymentState.DRAINING, failure=FAILURE, occurred_at=later(2)))
    draining = await get(database)
    assert (draining.state, draining.ended_at, draining.failure) == (DeploymentState.DRAINING, None, None)
    await append(database, "dep-1", event(DeploymentState.FAILED, failure=FAILURE, occurred_at=later(3)))
    failed = await get(database)
    assert (failed.state, failed.ended_at, failed.failure) == (DeploymentState.FAILED, later(3), FAILURE)
    assert [one.failure for one in await events(database)] == [FAILURE, FAILURE]


async def test_lists(database: Database) -> None:
    states = dict(zip("abcdefgh", DeploymentState, strict=True))
    await fill(
        database,
        graph(),
        *(
            deployment(f"dep-{name}", created_at=later(-index), plan_id="plan-1" if index % 2 else "plan-2")
            for index, name in enumerate(states)
        ),
    )
    for name, state in states.items():
        await append(database, f"dep-{name}", event(state))

    async def listed(**filters: object) -> list[str]:
        async with database.session() as session:
            records, token = await list_deployments(session, parse_page("d", 0, ""), **filters)
        assert token == ""
        return [record.id.removeprefix("dep-") for record in records]

    assert await listed() == list("abcdefgh")
    assert await listed(active_only=True) == list("abcdeh")
    assert await listed(plan_id="plan-1") == list("bdfh")
    assert await listed(plan_id="plan-1", active_only=True) == list("bdh")
    assert await listed(plan_id="plan-") == []
    assert await listed(graph_id=GRAPH_ID) == list("abcdefgh")
    assert await listed(graph_id="0" * 64) == []
    for name, state in states.items():
        assert await listed(state=state) == [name]
    async with database.session() as session:
        active = await list_active_deployments(session)
        page, token = await list_deployments(session, parse_page("d", 2, ""))
        rest, _ = await list_deployments(session, parse_page("d", 9, token))
    assert [record.id for record in active] == [f"dep-{name}" for name in "hedcba"]
    assert [record.id for record in (*page, *rest)] == [f"dep-{name}" for name in "abcdefgh"]
    assert all(record.stages == deployment().stages for record in active)


async def test_promises_are_the_peaks_of_what_has_not_ended_on_each_device(database: Database) -> None:
    await fill(database, graph(), inventory())
    await fill_plan(
        database,
        "plan-1",
        plan(stage(0, "b", peak_bytes=2**61), stage(1, "a", peak_bytes=10**12), stage(2, "b", peak_bytes=2**60 + 1)),
    )
    await fill_plan(database, "plan-2", plan(stage(0, "a", peak_bytes=50)))
    single = (placement(0, "a"),)
    await fill(
        database,
        deployment("dep-1"),
        deployment("dep-2", plan_id="plan-2", stages=single),
        deployment("dep-3", plan_id="plan-2", stages=single),
        deployment("dep-4", plan_id="plan-2", stages=single),
    )
    await append(database, "dep-2", event(DeploymentState.READY))
    await append(database, "dep-3", event(DeploymentState.STOPPED))
    await append(database, "dep-4", event(DeploymentState.FAILED))
    async with database.session() as session:
        assert await promised_bytes(session, ["a", "b", "c"]) == {
            "a": {"dep-1": 10**12, "dep-2": 50},
            "b": {"dep-1": 2**61 + 2**60 + 1},
        }
        assert await promised_bytes(session, ["c"]) == {}
        assert list(await promised_bytes(session, ["b"])) == ["b"]
