"""An edge of the deployment, as both of its ends know it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from stage_daemon.errors import EdgeMismatch, EdgeTimeout, StageFailed, Unavailable
from stage_daemon.transport.declared import DeclaredValue, Symbol
from stage_daemon.transport.turn import EVERY, Turn


def stage_name(stage: int, copy: int | None) -> str:
    """What messages call a stage, or one of its copies."""
    return f"stage {stage}" if copy is None else f"copy {copy} of stage {stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Values from one stage to another. `values` in the order that they are sent; `label` is what errors call it.

    `in_flight` parcels may be sent and not received yet; 0 leaves that to all edges' setting. `turn` says which
    microbatches of a stream go over it, `source_copy` and `target_copy` which copies its ends are, None without copies.
    """

    id: int
    deployment_id: str
    generation: int
    source_stage: int
    target_stage: int
    source_device_id: str
    target_device_id: str
    values: tuple[DeclaredValue, ...]
    symbols: Mapping[int, Symbol] = field(default_factory=dict)
    label: str = ""
    in_flight: int = 0
    turn: Turn = EVERY
    source_copy: int | None = None
    target_copy: int | None = None
    value_ids: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_ids", tuple(value.value_id for value in self.values))

    def __str__(self) -> str:
        return f"{self.label or f'edge {self.id}'} ({self.source_name} to {self.target_name})"

    @property
    def source_name(self) -> str:
        return stage_name(self.source_stage, self.source_copy)

    @property
    def target_name(self) -> str:
        return stage_name(self.target_stage, self.target_copy)

    @property
    def deployment_hash(self) -> int:
        """63 bits of the deployment's name."""
        return int.from_bytes(hashlib.sha256(self.deployment_id.encode()).digest()[:8], "little") >> 1

    def signature(self) -> str:
        """Equal at both ends if they were told the same; what the fixed size of every header rests on."""
        stages = self.source_stage, self.target_stage
        identity = (self.id, self.deployment_id, self.generation, *stages, self.values, self.turn)
        return hashlib.sha256(repr(identity).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of an edge: builds the errors that name the edge, the peer and the action."""

    edge: Edge
    is_source: bool

    @property
    def peer_stage(self) -> int:
        return self.edge.target_stage if self.is_source else self.edge.source_stage

    @property
    def peer_name(self) -> str:
        return self.edge.target_name if self.is_source else self.edge.source_name

    @property
    def peer_copy(self) -> int | None:
        return self.edge.target_copy if self.is_source else self.edge.source_copy

    @property
    def peer_device_id(self) -> str:
        return self.edge.target_device_id if self.is_source else self.edge.source_device_id

    def timed_out(self, action: str, deadline_seconds: float) -> EdgeTimeout:
        return EdgeTimeout(
            f"{self.edge}: {action}: nothing from {self.peer_name} on device {self.peer_device_id!r} within"
            f" {deadline_seconds:g} s; its worker or the network hangs",
            stage=self.peer_stage,
            device_id=self.peer_device_id,
            **self._facts(action),
            deadline_seconds=deadline_seconds,
        )

    def lost(self, action: str, cause: str) -> Unavailable:
        return Unavailable(
            f"{self.edge}: {action}: the worker of {self.peer_name} on device {self.peer_device_id!r} is gone: {cause}",
            stage=self.peer_stage,
            device_id=self.peer_device_id,
            **self._facts(action),
        )

    def device_failed(self, action: str, cause: str) -> StageFailed:
        """This end's own device, which the peer has nothing to do with."""
        edge = self.edge
        stage, name, device_id = (
            (edge.source_stage, edge.source_name, edge.source_device_id)
            if self.is_source
            else (edge.target_stage, edge.target_name, edge.target_device_id)
        )
        return StageFailed(
            f"{name}: the device failed while {self.edge} was {action}: {cause}; it must be set up anew",
            stage=stage,
            device_id=device_id,
        )

    def mismatch(self, action: str, message: str) -> EdgeMismatch:
        return EdgeMismatch(
            f"{self.edge}: {action}: {message}",
            stage=self.peer_stage,
            device_id=self.peer_device_id,
            **self._facts(action),
        )

    def _facts(self, action: str) -> dict[str, object]:
        copy = {} if self.peer_copy is None else {"copy": self.peer_copy}
        return copy | {
            "edge": self.edge.id,
            "action": action,
            "peer_stage": self.peer_stage,
            "peer_device_id": self.peer_device_id,
        }
