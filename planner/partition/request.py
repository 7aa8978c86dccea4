"""What a mode may be told besides the problem."""

from __future__ import annotations

from dataclasses import dataclass

from planner.partition.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`num_stages` 0 leaves it to the mode. A mode reads the fields that are its own.

    - cut: `module_paths`. aot_based: `partition_of_node` [n] and `device_of_partition`, as device indexes.
    - optimal: `objective`; `free` lets a device hold nodes from anywhere in the program, in several stages; `replicate`
      lets idle devices run copies of a stage; `recompute` lets a stage run cheap parameter-free nodes again rather
      than receive what they make. `effort` scales how many steps a search may take; 1 is the usual.
    - any: `saturate_host` gives every stage copies on idle devices while they suffice.
    """

    mode: str
    num_stages: int = 0
    module_paths: tuple[str, ...] = ()
    partition_of_node: tuple[int, ...] = ()
    device_of_partition: tuple[int, ...] = ()
    objective: Objective = Objective.THROUGHPUT
    free: bool = False
    replicate: bool = False
    recompute: bool = False
    effort: float = 1.0
    saturate_host: bool = False
