"""A process that keeps its host as busy as another worker of a plan would, while a profile is taken beside it.

CPUs share caches, memory and often, as two threads of one core, their arithmetic. So a stage takes longer beside others
than alone, and a profile that finds the host idle promises what no pipeline keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.worker.profile.rehearsal import program_of
from stage_daemon.worker.profile.values import ValueTable

_STAND_IN_SIZE = 256


def keep_busy(
    graph: pb.Graph, values: ValueTable, device: torch.device, on_busy: Callable[[], None], *, trains: bool = False
) -> NoReturn:
    """The same graph over and over, until the process is ended. `on_busy` is called after the first run."""
    run = next(_works(graph, values, device, trains=trains))
    on_busy()
    while True:
        run()


def _works(
    graph: pb.Graph, values: ValueTable, device: torch.device, *, trains: bool
) -> Iterator[Callable[[], object]]:
    """What was run once: the graph forward and back, or forward alone; a product of matrices where it does not run on
    made-up values, or fits the host only once."""
    for backward in (True, False) if trains else (False,):
        try:
            program = program_of(graph, values, device, num_processes=2, trains=backward)
            run = program.train if backward else program.run
            run()
        except Exception:
            continue
        yield run
    square = torch.ones(_STAND_IN_SIZE, _STAND_IN_SIZE, device=device)
    yield lambda: square @ square
