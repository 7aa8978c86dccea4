"""What crosses an edge: one microbatch's values, or word that it failed, or that nothing comes, or that all is over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

Item = torch.Tensor | int | float | bool


class ParcelKind(IntEnum):
    DATA = 1
    # The microbatch failed in an earlier stage; it keeps its place in the order.
    ERROR = 2
    # Nothing follows.
    END = 3
    # No parcel: the shared memory that payloads cross in from now on. Channels deal with it among themselves.
    RING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchFailure:
    """Why one microbatch has no result, while the deployment goes on."""

    reason: str
    message: str
    stage: int | None = None
    device_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """`microbatch` counts from 1 over the deployment; session and sequence say whose it is.

    DATA has `items` in the order that the edge declares; ERROR has `failure`.
    """

    kind: ParcelKind
    microbatch: int = 0
    session_id: int = 0
    sequence: int = 0
    items: tuple[Item, ...] = ()
    failure: MicrobatchFailure | None = None

    def __post_init__(self) -> None:
        if (self.kind is ParcelKind.ERROR) != (self.failure is not None):
            raise ValueError(f"parcel {self.microbatch} is {self.kind.name} with failure {self.failure}")
