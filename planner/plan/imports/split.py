"""A split of a graph's nodes over the ranks of another system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import OptionsError
from planner.plan.options import AotBasedMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """`rank_of_partition` numbers the other system's devices from 0, in its own order."""

    partition_of_node: tuple[int, ...]
    rank_of_partition: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        return max(self.rank_of_partition) + 1

    def mode(self, device_ids: Sequence[str]) -> AotBasedMode:
        """Rank 0 on the first of the devices, and so on. Raises OptionsError where they are too few."""
        if self.num_ranks > len(device_ids):
            raise OptionsError(
                f"the split is over {self.num_ranks} devices, and there are {len(device_ids)}: "
                f"{', '.join(device_ids)}; give as many, in the split's order"
            )
        return AotBasedMode(
            partition_of_node=self.partition_of_node,
            device_of_partition=tuple(device_ids[rank] for rank in self.rank_of_partition),
        )


def split_into_stages(stage_of_node: Sequence[int], num_stages: int) -> Split:
    """A partition for each stage. Raises OptionsError for a stage that runs nothing."""
    idle = sorted(set(range(num_stages)) - set(stage_of_node))
    if idle:
        raise OptionsError(f"stage {idle[0]} of the split runs nothing in this graph; leave it out", stage=idle[0])
    return Split(partition_of_node=tuple(stage_of_node), rank_of_partition=tuple(range(num_stages)))


def split_into_runs(rank_of_node: Sequence[int]) -> Split:
    """A partition for each stretch of the program that stays on one device: a device may come again."""
    partitions: list[int] = []
    ranks: list[int] = []
    for rank in rank_of_node:
        if not ranks or ranks[-1] != rank:
            ranks.append(rank)
        partitions.append(len(ranks) - 1)
    return Split(partition_of_node=tuple(partitions), rank_of_partition=tuple(ranks))
