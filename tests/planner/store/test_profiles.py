"""Measured times, on both databases: one profile of each graph, kind and setting."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from planner.cost.calibration import Calibration
from planner.cost.device_kinds import DeviceKind
from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate
from planner.errors import NotFound
from planner.graph.saved import Saved
from planner.store.database import Database
from planner.store.paging import parse_page
from planner.store.profiles import (
    Profile,
    ProfileRecord,
    delete_profile,
    get_profile,
    list_profiles,
    save_profile,
    times_for,
)
from tests.planner.store.records import GRAPH_ID, NOW, fill, graph, later

pytestmark = pytest.mark.services
OTHER_GRAPH = "cd" * 32
CALIBRATION = Calibration(
    device_kind="cpu",
    rates=DeviceKind(
        float64_flops_per_second=1e9 / 3,
        float32_flops_per_second=2e9,
        float16_flops_per_second=3e9,
        float8_flops_per_second=4e9,
        memory_bytes_per_second=5e9,
        node_seconds=0.0,
    ),
    num_nodes=9,
    median_error=1 / 7,
)


def profile(
    profile_id: str,
    *,
    graph_id: str = GRAPH_ID,
    kind: str = "cpu",
    values: tuple[tuple[str, int], ...] = (),
    seconds: tuple[tuple[int, float], ...] = ((0, 0.1 + 0.2), (2, 1e-7), (16, 0.0)),
    unmeasured: tuple[tuple[int, str], ...] = (),
    created_at: datetime = NOW,
    **changes: Any,
) -> Profile:
    fields: dict[str, Any] = {
        "calibration": None,
        "num_nodes": 17,
        "source": "a stopwatch",
        "delivery": None,
        "update": None,
    }
    fields |= changes
    record = ProfileRecord(
        id=profile_id,
        graph_id=graph_id,
        device_kind=kind,
        symbol_values=values,
        num_measured=len(seconds),
        total_seconds=sum(second for _, second in seconds),
        created_at=created_at,
        **fields,
    )
    times = MeasuredTimes(
        graph_id=graph_id,
        device_kind=kind,
        symbol_values=values,
        seconds=seconds,
        source=record.source,
        backward_seconds=tuple((node, 2.0 * second) for node, second in seconds[1:]),
        split_seconds=tuple((node, second, 3.0 * second) for node, second in seconds[2:]),
        saved=tuple((node, Saved(inputs=False, outputs=True, within_bytes=2**40 + node)) for node, _ in seconds[1:2]),
        delivery=record.delivery,
        update=record.update,
    )
    return Profile(record=record, times=times, unmeasured=unmeasured)


async def save(database: Database, *profiles: Profile) -> None:
    await fill(database, graph(), graph(OTHER_GRAPH))
    for one in profiles:
        async with database.session() as session:
            await save_profile(session, one)


async def get(database: Database, profile_id: str) -> Profile:
    async with database.session() as session:
        return await get_profile(session, profile_id)


async def listed(database: Database, **filters: str) -> list[str]:
    async with database.session() as session:
        records, _ = await list_profiles(session, parse_page("profiles", 0, ""), **filters)
    return [record.id for record in records]


@pytest.mark.parametrize("calibration", [None, CALIBRATION])
async def test_a_profile_is_kept_as_it_was_saved(database: Database, calibration: Calibration | None) -> None:
    unmeasured = ((1, "it reads a file – never alone"), (3, ""))
    delivery = Delivery(input_seconds=0.1 + 0.2, output_seconds=0.0)
    update = StateUpdate(norm_seconds=0.1 + 0.2, optimizer_seconds=1e-7)
    original = profile(
        "prof-1",
        values=(("batch", 2**40),),
        unmeasured=unmeasured,
        calibration=calibration,
        delivery=delivery,
        update=update,
    )
    await save(database, original)
    assert await get(database, "prof-1") == original
    async with database.session() as session:
        assert (await list_profiles(session, parse_page("profiles", 0, "")))[0] == (original.record,)


async def test_one_without_a_single_time_is_kept_too(database: Database) -> None:
    original = profile("prof-1", seconds=())
    await save(database, original)
    assert await get(database, "prof-1") == original


async def test_a_newer_one_takes_the_place_of_the_same_graph_kind_and_setting_only(database: Database) -> None:
    sizes = (("batch", 2), ("length", 3))
    await save(
        database,
        profile("old", values=sizes),
        profile("other-setting", values=(("batch", 3), ("length", 2))),
        profile("other-kind", kind="h200", values=sizes),
        profile("other-graph", graph_id=OTHER_GRAPH, values=sizes),
        profile("new", values=sizes[::-1], created_at=later(1)),
    )
    assert set(await listed(database)) == {"new", "other-setting", "other-kind", "other-graph"}
    with pytest.raises(NotFound, match="a newer one may have taken its place"):
        await get(database, "old")


async def test_filters(database: Database) -> None:
    await save(
        database,
        profile("prof-1", created_at=later(1)),
        profile("prof-2", kind="h200", created_at=later(2)),
        profile("prof-3", graph_id=OTHER_GRAPH, created_at=later(3)),
    )
    assert await listed(database) == ["prof-3", "prof-2", "prof-1"]
    assert await listed(database, graph_id=GRAPH_ID) == ["prof-2", "prof-1"]
    assert await listed(database, device_kind="CPU") == ["prof-3", "prof-1"]
    assert await listed(database, device_kind="cpu", graph_id=OTHER_GRAPH) == ["prof-3"]
    assert await listed(database, graph_id="%") == []


async def test_the_times_of_a_graph_are_those_of_the_kinds_asked_for(database: Database) -> None:
    saved = [
        profile("prof-1"),
        profile("prof-2", values=(("batch", 2),), seconds=((5, 0.5),)),
        profile("prof-3", kind="h200"),
        profile("prof-4", graph_id=OTHER_GRAPH),
    ]
    await save(database, *saved)
    async with database.session() as session:
        of_cpu = await times_for(session, GRAPH_ID, ["CPU", "cpu"])
        assert {one.seconds for one in of_cpu} == {saved[0].times.seconds, saved[1].times.seconds}
        assert [one.device_kind for one in await times_for(session, GRAPH_ID, ["H200", "t4"])] == ["h200"]
        assert len(await times_for(session, GRAPH_ID, ["h200", "cpu"])) == 3
        assert await times_for(session, GRAPH_ID, ["t4"]) == ()
        assert await times_for(session, GRAPH_ID[:12], ["cpu"]) == ()


async def test_a_deleted_profile_leaves_the_others(database: Database) -> None:
    await save(database, profile("prof-1"), profile("prof-2", kind="h200"))
    async with database.session() as session:
        await delete_profile(session, "prof-1")
    assert await listed(database) == ["prof-2"]
    assert (await get(database, "prof-2")).times.seconds
    async with database.session() as session:
        with pytest.raises(NotFound):
            await delete_profile(session, "prof-1")
