"""A process that keeps its host as busy as another worker of a plan would, while a profile is taken beside it.

CPUs share caches, memory and often, as two threads of one core, their arithmetic. So a stage takes longer beside others
than alone, and a profile that finds the host idle promises what no pipeline keeps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.worker.profile.rehearsal import program_of, trained_program
from stage_daemon.worker.profile.values import ValueTable

_STAND_IN_SIZE = 256


def keep_busy(
    graph: pb.Graph, values: ValueTable, device: torch.device, on_busy: Callable[[], None], *, trains: bool = False
) -> NoReturn:
    """The same graph over and over, forward and back where it `trains`, until the process is ended.

    `on_busy` is called before the first run: nobody waits for a long one.
    """
    is_told = False
    while True:
        for run in _runs(graph, values, device, trains=trains):
            if not is_told:
                on_busy()
                is_told = True
            # What does not run on made-up values makes room for the next.
            with contextlib.suppress(Exception):
                while True:
                    run()


def _runs(graph: pb.Graph, values: ValueTable, device: torch.device, *, trains: bool) -> Iterator[Callable[[], object]]:
    """The graph forward and back, or forward alone, where it fits the host twice; a product of matrices."""
    for backward in (True, False) if trains else (False,):
        with contextlib.suppress(Exception):
            make = trained_program if backward else program_of
            program = make(graph, values, device, num_processes=2)
            yield program.train if backward else program.run
    square = torch.ones(_STAND_IN_SIZE, _STAND_IN_SIZE, device=device)
    yield lambda: square @ square
