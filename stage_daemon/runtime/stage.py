"""A loaded stage, as the runtime runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stage_daemon.transport.parcel import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`run` takes the values of `input_ids` and gives those of `output_ids`, both in order."""

    index: int
    device_id: str
    run: Callable[..., Sequence[Item]]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    # Some operator draws random numbers.
    draws_random: bool = False
