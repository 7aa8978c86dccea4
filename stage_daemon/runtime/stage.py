"""A loaded stage, as the runtime runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from stage_daemon.transport.edge import stage_name
from stage_daemon.transport.parcel import Item


class Program(Protocol):
    """What training needs of a stage's program beside running it. `written_names`: states that a run writes over."""

    written_names: frozenset[str]

    def states(self) -> Mapping[str, torch.Tensor]:
        """Every state under its own name."""
        ...

    def share(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Makes a parameter of another stage, that is tied to this one, this one too."""
        ...

    def written_states(self) -> dict[str, torch.Tensor]:
        """Copies of what the next run will write over."""
        ...

    def standing_in(self, tensors: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
        """Runs inside read and write these where the states of those names are; those stay as they are."""
        ...

    def accumulating(self) -> Program:
        """The same program on the same states, for backward passes that are whole: adds gradients of weights up in
        fewer passes over memory, to the same bits."""
        ...

    def __call__(self, *inputs: Item) -> Sequence[Item]: ...

    def evaluating(self) -> Callable[..., Sequence[Item]]:
        """The same program on the same states, without what is done in training only."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`run` takes the values of `input_ids` and gives those of `output_ids`, both in order.

    `copy` says which of the stage's copies it is; None where it has none. `foreign_input_ids` are the inputs whose
    floats it can read from memory that another process may write to.
    """

    index: int
    device_id: str
    run: Callable[..., Sequence[Item]]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    # Some operator draws random numbers.
    draws_random: bool = False
    module: Program | None = None
    copy: int | None = None
    foreign_input_ids: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return stage_name(self.index, self.copy)
