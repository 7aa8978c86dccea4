"""Graphs that the server knows. The bytes are blobs; a row says what is in them and which weights belong to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import Conflict, InvalidArgument, NotFound
from planner.graph.ir import WeightFile
from planner.store.deployments import ENDED
from planner.store.ids import MIN_DIGITS
from planner.store.operations import IS_OPEN, delete_ended
from planner.store.owners import forget_owners
from planner.store.paging import PageRequest
from planner.store.references import refuse_while_needed
from planner.store.tables import (
    CheckpointRow,
    DeploymentRow,
    GraphNameRow,
    GraphRow,
    GraphWeightFileRow,
    PlanOperationRow,
    PlanRow,
    ProfileRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRecord:
    """`id` is the blob's sha256 in hexadecimal. `weights` is empty where none were attached."""

    id: str
    name: str
    torch_version: str
    size_bytes: int
    num_nodes: int
    num_states: int
    state_bytes: int
    weights: tuple[WeightFile, ...]
    not_deployable_reason: str
    created_at: datetime

    @property
    def sha256(self) -> bytes:
        return bytes.fromhex(self.id)


async def add_graph(session: AsyncSession, record: GraphRecord, *, rename: bool = True) -> None:
    """The first record of a graph stays: adding it again changes nothing but its weights and, with `rename`, its name.

    It is found by its earlier names too.
    """
    row = await session.get(GraphRow, record.id)
    if row is None:
        session.add(
            GraphRow(
                id=record.id,
                name=record.name,
                torch_version=record.torch_version,
                size_bytes=record.size_bytes,
                num_nodes=record.num_nodes,
                num_states=record.num_states,
                state_bytes=record.state_bytes,
                not_deployable_reason=record.not_deployable_reason,
                created_at=record.created_at,
            )
        )
        await session.flush()
    elif rename:
        row.name = record.name
    if row is None or rename:
        await session.merge(GraphNameRow(graph_id=record.id, name=record.name))
    if record.weights:
        await attach_weights(session, record.id, record.weights, record.not_deployable_reason)


async def attach_weights(
    session: AsyncSession, graph_id: str, weights: tuple[WeightFile, ...], not_deployable_reason: str
) -> None:
    """Other weights replace those before, unless a deployment that has not ended runs on them: Conflict.

    Raises NotFound where the graph was deleted meanwhile.
    """
    row = await _row(session, graph_id, lock=True)
    before = await _weights(session, [graph_id])
    if before.get(graph_id) == weights:
        return
    if before and await _active_deployment(session, graph_id):
        raise Conflict(
            f"graph {graph_id[:12]} has other weights and is deployed; stop its deployments before replacing them"
        )
    await session.execute(delete(GraphWeightFileRow).where(GraphWeightFileRow.graph_id == graph_id))
    session.add_all(
        GraphWeightFileRow(graph_id=graph_id, position=position, sha256=file.sha256.hex(), size_bytes=file.size_bytes)
        for position, file in enumerate(weights)
    )
    row.not_deployable_reason = not_deployable_reason


async def get_graph(session: AsyncSession, graph_id: str) -> GraphRecord:
    """Raises NotFound, and InvalidArgument for what neither is an id nor the beginning of one."""
    if not re.fullmatch(f"[0-9a-f]{{{MIN_DIGITS},64}}", graph_id):
        raise InvalidArgument(f"graph id {graph_id[:80]!r}: needs {MIN_DIGITS} to 64 hexadecimal digits")
    return (await _records(session, [await _row(session, graph_id)]))[0]


async def delete_graph(session: AsyncSession, graph_id: str) -> None:
    """Its bytes and its weights' stay as blobs. Raises NotFound, and Conflict while anything is of it."""
    row = await _row(session, graph_id, lock=True)
    needed_by = {
        "plan": select(PlanRow.id).where(PlanRow.graph_id == graph_id),
        "plan operation": select(PlanOperationRow.id).where(PlanOperationRow.graph_id == graph_id, IS_OPEN),
        "profile": select(ProfileRow.id).where(ProfileRow.graph_id == graph_id),
        "deployment": select(DeploymentRow.id).where(DeploymentRow.graph_id == graph_id),
        "checkpoint": select(CheckpointRow.id).where(CheckpointRow.graph_id == graph_id),
    }
    await refuse_while_needed(session, f"graph {graph_id[:12]}", needed_by, "delete those first")
    await delete_ended(session, PlanOperationRow.graph_id == graph_id)
    await session.execute(delete(GraphRow).where(GraphRow.id == row.id))
    await forget_owners(session, "graph", graph_id)


async def list_graphs(
    session: AsyncSession, page: PageRequest, *, name: str = ""
) -> tuple[tuple[GraphRecord, ...], str]:
    """Newest first; with `name`, those that were ever submitted under it."""
    query = select(GraphRow)
    if name:
        query = query.where(exists().where(GraphNameRow.graph_id == GraphRow.id, GraphNameRow.name == name))
    rows = (await session.scalars(page.select(query, GraphRow.created_at, GraphRow.id))).all()
    return page.cut(await _records(session, rows))


async def _active_deployment(session: AsyncSession, graph_id: str) -> str | None:
    query = select(DeploymentRow.id).where(DeploymentRow.graph_id == graph_id, DeploymentRow.state.not_in(ENDED))
    return (await session.scalars(query.limit(1))).first()


async def _row(session: AsyncSession, graph_id: str, *, lock: bool = False) -> GraphRow:
    row = await session.get(GraphRow, graph_id, with_for_update=lock or None)
    if row is None:
        raise NotFound(f"no graph has the id {graph_id}; upload it and call CreateGraph", graph_id=graph_id)
    return row


async def _records(session: AsyncSession, rows: Sequence[GraphRow]) -> list[GraphRecord]:
    weights = await _weights(session, [row.id for row in rows])
    return [
        GraphRecord(
            id=row.id,
            name=row.name,
            torch_version=row.torch_version,
            size_bytes=row.size_bytes,
            num_nodes=row.num_nodes,
            num_states=row.num_states,
            state_bytes=row.state_bytes,
            weights=weights.get(row.id, ()),
            not_deployable_reason=row.not_deployable_reason,
            created_at=row.created_at,
        )
        for row in rows
    ]


async def _weights(session: AsyncSession, graph_ids: list[str]) -> dict[str, tuple[WeightFile, ...]]:
    query = select(GraphWeightFileRow).where(GraphWeightFileRow.graph_id.in_(graph_ids))
    files: dict[str, tuple[WeightFile, ...]] = {}
    for row in await session.scalars(query.order_by(GraphWeightFileRow.position)):
        file = WeightFile(sha256=bytes.fromhex(row.sha256), size_bytes=row.size_bytes)
        files[row.graph_id] = (*files.get(row.graph_id, ()), file)
    return files
