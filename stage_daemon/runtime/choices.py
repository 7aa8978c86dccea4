"""Which outputs each session wants, and which part of each: taken before anything leaves the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.failures import ruins_device
from stage_daemon.transport.parcel import Item, MicrobatchFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A part of the output of that position; `dims` are of its first dimensions, `argmax_dim` is of the part."""

    index: int
    dims: tuple[int | slice, ...] = ()
    argmax_dim: int | None = None

    def of(self, items: Sequence[Item]) -> Item:
        """A view where it can be one. Raises IndexError for an index that this microbatch's tensor does not have."""
        item = items[self.index]
        if not isinstance(item, torch.Tensor):
            if self.dims or self.argmax_dim is not None:
                raise IndexError("a number has no parts")
            return item
        part = item[self.dims] if self.dims else item
        return part if self.argmax_dim is None else part.argmax(self.argmax_dim)


def parts_of(items: Sequence[Item], choices: Sequence[Choice]) -> tuple[Item, ...] | MicrobatchFailure:
    """A part that the items do not have makes it a failure."""
    try:
        return tuple(choice.of(items) for choice in choices)
    except (IndexError, RuntimeError) as error:
        if ruins_device(error):
            raise
        return MicrobatchFailure(reason=InvalidRequest.reason, message=f"the chosen part of an output: {error}")


class Choices:
    """By session. One that has chosen nothing is given everything."""

    def __init__(self) -> None:
        self._choices: Mapping[int, tuple[Choice, ...]] = {}

    def choose(self, session_id: int, choices: tuple[Choice, ...]) -> None:
        """Before the session's first input is sent; none: no longer. From one thread."""
        others = {other: their_choices for other, their_choices in self._choices.items() if other != session_id}
        # Replaced whole: lanes read it without a lock.
        self._choices = {**others, session_id: choices} if choices else others

    def apply(self, result: Result) -> Result:
        choices = self._choices.get(result.session_id)
        if choices is None or result.failure is not None:
            return result
        parts = parts_of(result.items, choices)
        if isinstance(parts, MicrobatchFailure):
            return dataclasses.replace(result, items=(), failure=parts)
        return dataclasses.replace(result, items=parts)
