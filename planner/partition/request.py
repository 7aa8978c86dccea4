"""What a mode may be told besides the problem."""

from __future__ import annotations

from dataclasses import dataclass, fields

from planner.partition.modes.table import Mode
from planner.partition.objective import Objective
from planner.partition.out_of_time import OutOfTime, never


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What searches read, whatever the mode, and the mode's own options. `num_stages` 0 leaves it to the mode.

    - `objective`; `free` lets a device hold nodes from anywhere in the program, in several stages; `replicate` lets
      idle devices run copies of a stage; `recompute` lets a stage run cheap parameter-free nodes again rather than
      receive what they make. `effort` scales how many steps a search may take; 1 is the usual.
    - `out_of_time` ends the searches with the best so far; as long as it says no, the answer does not depend on time.
    - `saturate_host` gives every stage copies on idle devices while they suffice.
    - `options`: of the mode `mode`; None are its usual ones. Fields of the same name here come before them, since
      modes build on each other with other values.
    """

    mode: str
    options: Mode | None = None
    num_stages: int = 0
    objective: Objective = Objective.THROUGHPUT
    free: bool = False
    replicate: bool = False
    recompute: bool = False
    effort: float = 1.0
    out_of_time: OutOfTime = never
    saturate_host: bool = False


def request_for(
    mode: Mode,
    objective: Objective = Objective.THROUGHPUT,
    saturate_host: bool = False,
    out_of_time: OutOfTime = never,
) -> Request:
    shared = {field.name for field in fields(mode)} & {field.name for field in fields(Request)}
    values = {name: getattr(mode, name) for name in shared}
    return Request(
        mode=mode.name,
        options=mode,
        objective=objective,
        saturate_host=saturate_host,
        out_of_time=out_of_time,
        **values,
    )
