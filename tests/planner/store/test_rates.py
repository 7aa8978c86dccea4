"""Which stored profiles hand their times and rates to a plan, and in what order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from planner.cost.calibration import Calibration
from planner.cost.device_kinds import device_kind
from planner.cost.measured import MeasuredTimes
from planner.errors import NotFound, OptionsError
from planner.plan.options import RatesFrom
from planner.store.database import Database
from planner.store.graphs import add_graph
from planner.store.profiles import Profile, ProfileRecord, calibrations_for, save_profile, times_for
from tests.planner.store import records

pytestmark = pytest.mark.services

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
ONE, OTHER = "aa" * 32, "bb" * 32


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """With, from the oldest to the newest: a of one graph, then b and c at once of the other, d without rates."""
    opened = Database(f"sqlite:///{tmp_path / 'planner.db'}")
    await opened.migrate()
    async with opened.session() as session:
        for graph_id in (ONE, OTHER):
            await add_graph(session, records.graph(graph_id))
        await save_profile(session, profile("prof-a", ONE, "cpu", batch=16, age=3, fitted=50))
        await save_profile(session, profile("prof-b", OTHER, "cpu", batch=4, age=2, fitted=8))
        await save_profile(session, profile("prof-c", OTHER, "cpu", batch=16, age=2, fitted=9))
        await save_profile(session, profile("prof-d", ONE, "cpu", batch=4, age=1, fitted=0))
        await save_profile(session, profile("prof-e", OTHER, "h200", batch=4, age=9, fitted=9))
    yield opened
    await opened.close()


def profile(name: str, graph_id: str, kind: str, *, batch: int, age: int, fitted: int) -> Profile:
    symbol_values = (("batch", batch),)
    calibration = Calibration(device_kind=kind, rates=device_kind("t4"), num_nodes=fitted, median_error=0.1)
    record = ProfileRecord(
        id=name,
        graph_id=graph_id,
        device_kind=kind,
        symbol_values=symbol_values,
        source=name,
        num_nodes=60,
        num_measured=1,
        total_seconds=0.5,
        calibration=calibration if fitted else None,
        created_at=NOW - timedelta(seconds=age),
    )
    times = MeasuredTimes(
        graph_id=graph_id, device_kind=kind, symbol_values=symbol_values, source=name, seconds=((0, 0.5),)
    )
    return Profile(record=record, times=times, unmeasured=())


async def test_times_are_the_graphs_own_newest_first(database: Database) -> None:
    async with database.session() as session:
        assert [times.profile_id for times in await times_for(session, ONE, ["CPU", "t4"])] == ["prof-d", "prof-a"]
        assert [times.profile_id for times in await times_for(session, OTHER, ["cpu"])] == ["prof-c", "prof-b"]
        (times,) = await times_for(session, OTHER, ["h200"])
    assert (times.seconds, times.symbol_values, times.source) == (((0, 0.5),), (("batch", 4),), "prof-e")


async def test_rates_of_others_are_none_unless_asked_for(database: Database) -> None:
    async with database.session() as session:
        assert await calibrations_for(session, ["cpu", "h200"], RatesFrom.OWN) == ()


async def test_newest_rates_are_of_the_newest_profile_that_has_any(database: Database) -> None:
    """Of equals in time the last id, however many nodes the others were fitted to."""
    async with database.session() as session:
        calibrations = await calibrations_for(session, ["h200", "CPU", "cpu", "t4"], RatesFrom.NEWEST)
    assert [(one.profile_id, one.device_kind, one.num_nodes) for one in calibrations] == [
        ("prof-c", "cpu", 9),
        ("prof-e", "h200", 9),
    ]
    assert calibrations[0].rates == device_kind("t4")


async def test_named_rates_are_of_those_profiles_alone(database: Database) -> None:
    async with database.session() as session:
        calibrations = await calibrations_for(session, ["cpu", "h200"], RatesFrom.OWN, ["prof-a"])
        assert [(one.profile_id, one.num_nodes) for one in calibrations] == [("prof-a", 50)]
        with pytest.raises(NotFound, match="no profile has the id 'prof-z'"):
            await calibrations_for(session, ["cpu"], RatesFrom.OWN, ["prof-a", "prof-z"])
        with pytest.raises(OptionsError, match="'prof-d' has too few measured nodes"):
            await calibrations_for(session, ["cpu"], RatesFrom.OWN, ["prof-d"])
        with pytest.raises(OptionsError, match="'prof-e' is of kind 'h200'; the devices are 'cpu'"):
            await calibrations_for(session, ["cpu"], RatesFrom.OWN, ["prof-e"])
