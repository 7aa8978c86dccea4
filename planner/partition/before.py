"""What ran before devices were lost. The server reads it too, and loads no search for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.partition.assignment import Assignment
from planner.partition.problem import Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Before:
    """`device_of_node` [n] is where each node ran, FREE if that device is gone; `other_copies` where other copies did.

    `remainder` is what there was without the devices that are gone, if each stage has one left. With `may_copy`, idle
    devices may run copies of stages.
    """

    device_of_node: Integers
    other_copies: Sequence[Integers] = ()
    remainder: Assignment | None = None
    may_copy: bool = False
