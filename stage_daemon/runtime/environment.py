"""The values of one microbatch in one lane, from the first action to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stage_daemon.errors import EdgeMismatch
from stage_daemon.runtime.actions import Action, Kind, Lane
from stage_daemon.runtime.stage import Stage
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Item, MicrobatchFailure, Parcel, ParcelKind


@dataclass(slots=True, kw_only=True)
class Environment:
    """Values by id. A failed microbatch has none, and goes on only to keep its place in the order.

    `position` is its place among those of its lane.
    """

    microbatch: int
    position: int = 0
    session_id: int = 0
    sequence: int = 0
    values: dict[int, Item] = field(default_factory=dict)
    failure: MicrobatchFailure | None = None
    ended: bool = False

    @property
    def is_void(self) -> bool:
        return self.ended or self.failure is not None

    def admit(self, parcel: Parcel, edge: Edge) -> None:
        """Adds what came on an edge. Raises EdgeMismatch if it belongs to another microbatch."""
        if parcel.kind is ParcelKind.END:
            self.ended = True
            return
        if parcel.microbatch != self.microbatch:
            raise EdgeMismatch(
                f"{edge}: microbatch {parcel.microbatch} came where {self.microbatch} is needed",
                stage=edge.source_stage,
                device_id=edge.source_device_id,
                edge=edge.id,
            )
        # A stage that depends on no input knows no session.
        if parcel.session_id:
            self.session_id, self.sequence = parcel.session_id, parcel.sequence
        if parcel.failure is not None:
            self.fail(parcel.failure)
        elif not self.is_void:
            self.add(edge.value_ids, parcel.items)

    def add(self, value_ids: Iterable[int], items: Sequence[Item]) -> None:
        self.values.update(zip(value_ids, items, strict=True))

    def fail(self, failure: MicrobatchFailure) -> None:
        """The first failure stays."""
        self.failure = self.failure or failure
        self.values.clear()

    def parcel(self, edge: Edge) -> Parcel:
        """What goes out on an edge."""
        if self.ended:
            return Parcel(kind=ParcelKind.END)
        return Parcel(
            kind=ParcelKind.ERROR if self.failure else ParcelKind.DATA,
            microbatch=self.microbatch,
            session_id=self.session_id,
            sequence=self.sequence,
            items=() if self.failure else self.read(edge.value_ids),
            failure=self.failure,
        )

    def read(self, value_ids: Iterable[int]) -> tuple[Item, ...]:
        return tuple(map(self.values.__getitem__, value_ids))

    def drop(self, value_ids: Iterable[int]) -> None:
        for value_id in value_ids:
            self.values.pop(value_id, None)


def dead_after(
    lane: Lane, places: Sequence[int], reads: Callable[[Action], Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """For each action of a lane, the ids that no later action on the same environment reads: memory that can go.

    `places` says which environment each action is on, `reads` which ids it reads there.
    """
    last_reader: dict[tuple[int, int], int] = {}
    for position, (action, place) in enumerate(zip(lane, places, strict=True)):
        for value_id in reads(action):
            last_reader[place, value_id] = position
    dead: list[list[int]] = [[] for _ in lane]
    for (_, value_id), position in last_reader.items():
        dead[position].append(value_id)
    return tuple(map(tuple, dead))


def reading(
    stages: Mapping[int, Stage], edges: Mapping[int, Edge], output_ids: Sequence[int]
) -> Callable[[Action], Sequence[int]]:
    """The ids that an action reads of what its environment holds."""

    def reads(action: Action) -> Sequence[int]:
        if action.kind is Kind.FORWARD:
            return stages[action.index].input_ids
        if action.kind is Kind.SEND:
            return edges[action.index].value_ids
        return output_ids if action.kind is Kind.GIVE_OUTPUT else ()

    return reads
