"""Measured times in the database: one profile of each graph, device kind and setting of dimensions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.cost.borrowed import named_rates, newest_rates
from planner.cost.calibration import Calibration
from planner.cost.device_kinds import DeviceKind
from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate
from planner.errors import NotFound
from planner.graph.saved import Saved
from planner.plan.options import RatesFrom
from planner.store.many_rows import add_rows
from planner.store.owners import forget_owners
from planner.store.paging import PageRequest
from planner.store.tables import ProfileNodeRow, ProfileRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """What a list shows of a profile. `total_seconds` is of all measured nodes, of `num_nodes` in the graph."""

    id: str
    graph_id: str
    device_kind: str
    symbol_values: tuple[tuple[str, int], ...]
    source: str
    num_nodes: int
    num_measured: int
    total_seconds: float
    calibration: Calibration | None
    created_at: datetime
    delivery: Delivery | None = None
    num_threads: int = 0
    update: StateUpdate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`unmeasured` holds (node index, why) of nodes that could not be run alone."""

    record: ProfileRecord
    times: MeasuredTimes
    unmeasured: tuple[tuple[int, str], ...]


async def save_profile(session: AsyncSession, profile: Profile) -> None:
    """Takes the place of the one that the graph, kind and setting had."""
    record = profile.record
    setting = _setting(record.symbol_values)
    same = (ProfileRow.graph_id == record.graph_id, ProfileRow.setting == setting)
    await session.execute(delete(ProfileRow).where(*same, ProfileRow.device_kind == record.device_kind))
    session.add(
        ProfileRow(
            id=record.id,
            graph_id=record.graph_id,
            device_kind=record.device_kind,
            setting=setting,
            symbol_values=[list(pair) for pair in record.symbol_values],
            source=record.source,
            num_nodes=record.num_nodes,
            num_measured=record.num_measured,
            total_seconds=record.total_seconds,
            input_seconds=record.delivery.input_seconds if record.delivery else None,
            output_seconds=record.delivery.output_seconds if record.delivery else None,
            num_threads=record.num_threads,
            norm_seconds=record.update.norm_seconds if record.update else None,
            optimizer_seconds=record.update.optimizer_seconds if record.update else None,
            created_at=record.created_at,
            **_calibration_columns(record.calibration),
        )
    )
    await session.flush()
    backward = dict(profile.times.backward_seconds)
    split = {node: (inputs, weights) for node, inputs, weights in profile.times.split_seconds}
    saved = {node: (one.inputs, one.outputs, one.within_bytes) for node, one in profile.times.saved}
    measured = [
        (node, None, seconds, backward.get(node), *split.get(node, (None,) * 2), *saved.get(node, (None,) * 3))
        for node, seconds in profile.times.seconds
    ]
    unmeasured = [(node, reason, *(None,) * 7) for node, reason in profile.unmeasured]
    columns = (
        "node",
        "unmeasured_reason",
        "seconds",
        "backward_seconds",
        "input_gradient_seconds",
        "weight_gradient_seconds",
        "saves_inputs",
        "saves_outputs",
        "saved_within_bytes",
    )
    await add_rows(
        session,
        (
            (ProfileNodeRow, {"profile_id": record.id, **dict(zip(columns, row, strict=True))})
            for row in (*measured, *unmeasured)
        ),
    )


async def get_profile(session: AsyncSession, profile_id: str) -> Profile:
    row = await _row(session, profile_id)
    query = select(ProfileNodeRow).where(ProfileNodeRow.profile_id == row.id).order_by(ProfileNodeRow.node)
    nodes = (await session.scalars(query)).all()
    return Profile(
        record=_record(row),
        times=_times(row, nodes),
        unmeasured=tuple((one.node, one.unmeasured_reason or "") for one in nodes if one.seconds is None),
    )


async def list_profiles(
    session: AsyncSession, page: PageRequest, *, graph_id: str = "", device_kind: str = ""
) -> tuple[tuple[ProfileRecord, ...], str]:
    """Newest first; empty filters let everything through."""
    query = select(ProfileRow)
    if graph_id:
        query = query.where(ProfileRow.graph_id == graph_id)
    if device_kind:
        query = query.where(ProfileRow.device_kind == device_kind.lower())
    rows = (await session.scalars(page.select(query, ProfileRow.created_at, ProfileRow.id))).all()
    return page.cut([_record(row) for row in rows])


async def delete_profile(session: AsyncSession, profile_id: str) -> None:
    row = await _row(session, profile_id)
    await session.execute(delete(ProfileRow).where(ProfileRow.id == row.id))
    await forget_owners(session, "profile", profile_id)


async def times_for(session: AsyncSession, graph_id: str, kinds: Sequence[str]) -> tuple[MeasuredTimes, ...]:
    """All that was measured of the graph on these kinds, newest first as in lists."""
    lower_kinds = sorted({kind.lower() for kind in kinds})
    query = select(ProfileRow.id).where(ProfileRow.graph_id == graph_id, ProfileRow.device_kind.in_(lower_kinds))
    ids = (await session.scalars(query.order_by(*_NEWEST_FIRST))).all()
    return tuple([replace((await get_profile(session, profile_id)).times, profile_id=profile_id) for profile_id in ids])


async def calibrations_for(
    session: AsyncSession, kinds: Sequence[str], rates_from: RatesFrom, profile_ids: Sequence[str] = ()
) -> tuple[Calibration, ...]:
    """Rates beside those fitted to the graph's own times: of the profiles named, or as `rates_from` says.

    Raises NotFound for a profile that there is not, OptionsError for one that does not serve these kinds.
    """
    if profile_ids:
        return named_rates([_record(await _row(session, profile_id)) for profile_id in profile_ids], kinds)
    if rates_from is RatesFrom.OWN:
        return ()
    newest: list[ProfileRecord] = []
    for kind in sorted({kind.lower() for kind in kinds}):
        query = select(ProfileRow).where(ProfileRow.device_kind == kind, ProfileRow.num_fitted > 0)
        newest += [_record(row) for row in (await session.scalars(query.order_by(*_NEWEST_FIRST).limit(1))).all()]
    return newest_rates(newest)


async def serving_profiles(session: AsyncSession, profile_ids: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...]:
    """Those that are still there and are of one of the kinds, in their order."""
    query = select(ProfileRow.id).where(
        ProfileRow.id.in_(profile_ids), ProfileRow.device_kind.in_({kind.lower() for kind in kinds})
    )
    there = set(await session.scalars(query)) if profile_ids else set()
    return tuple(profile_id for profile_id in profile_ids if profile_id in there)


# The order of lists: of profiles of one moment, the last id.
_NEWEST_FIRST = (ProfileRow.created_at.desc(), ProfileRow.id.desc())


def _setting(symbol_values: Sequence[tuple[str, int]]) -> str:
    return json.dumps(sorted(symbol_values), separators=(",", ":"))


async def _row(session: AsyncSession, profile_id: str) -> ProfileRow:
    row = await session.get(ProfileRow, profile_id)
    if row is None:
        raise NotFound(f"no profile has the id {profile_id[:80]!r}; a newer one may have taken its place: list them")
    return row


def _times(row: ProfileRow, nodes: Sequence[ProfileNodeRow]) -> MeasuredTimes:
    return MeasuredTimes(
        graph_id=row.graph_id,
        device_kind=row.device_kind,
        symbol_values=_pairs(row.symbol_values),
        seconds=tuple((one.node, one.seconds) for one in nodes if one.seconds is not None),
        backward_seconds=tuple((one.node, one.backward_seconds) for one in nodes if one.backward_seconds is not None),
        split_seconds=tuple(
            (one.node, one.input_gradient_seconds, one.weight_gradient_seconds)
            for one in nodes
            if one.input_gradient_seconds is not None and one.weight_gradient_seconds is not None
        ),
        saved=tuple(
            (
                one.node,
                Saved(
                    inputs=bool(one.saves_inputs),
                    outputs=bool(one.saves_outputs),
                    within_bytes=one.saved_within_bytes,
                ),
            )
            for one in nodes
            if one.saved_within_bytes is not None
        ),
        delivery=_delivery(row),
        update=_update(row),
        source=row.source,
        num_threads=row.num_threads,
    )


def _record(row: ProfileRow) -> ProfileRecord:
    return ProfileRecord(
        id=row.id,
        graph_id=row.graph_id,
        device_kind=row.device_kind,
        symbol_values=_pairs(row.symbol_values),
        source=row.source,
        num_nodes=row.num_nodes,
        num_measured=row.num_measured,
        total_seconds=row.total_seconds,
        calibration=_calibration(row),
        created_at=row.created_at,
        delivery=_delivery(row),
        num_threads=row.num_threads,
        update=_update(row),
    )


def _delivery(row: ProfileRow) -> Delivery | None:
    if row.input_seconds is None or row.output_seconds is None:
        return None
    return Delivery(input_seconds=row.input_seconds, output_seconds=row.output_seconds)


def _update(row: ProfileRow) -> StateUpdate | None:
    if row.norm_seconds is None or row.optimizer_seconds is None:
        return None
    return StateUpdate(norm_seconds=row.norm_seconds, optimizer_seconds=row.optimizer_seconds)


def _pairs(content: list[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((name, value) for name, value in content)


_RATES = (
    "float64_flops_per_second",
    "float32_flops_per_second",
    "float16_flops_per_second",
    "float8_flops_per_second",
    "memory_bytes_per_second",
    "node_seconds",
)


def _calibration_columns(calibration: Calibration | None) -> dict[str, Any]:
    if calibration is None:
        return {"num_fitted": 0}
    rates = {name: getattr(calibration.rates, name) for name in _RATES}
    return {**rates, "num_fitted": calibration.num_nodes, "median_error": calibration.median_error}


def _calibration(row: ProfileRow) -> Calibration | None:
    rates = {name: getattr(row, name) for name in _RATES}
    if not row.num_fitted or row.median_error is None or None in rates.values():
        return None
    return Calibration(
        device_kind=row.device_kind,
        rates=DeviceKind(**rates),
        num_nodes=row.num_fitted,
        median_error=row.median_error,
    )
