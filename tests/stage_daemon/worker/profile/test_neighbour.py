"""What keeps a host busy beside a profile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2
from stage_daemon.worker.profile.neighbour import keep_busy
from stage_daemon.worker.profile.values import ValueTable
from tests.stage_daemon.worker.profile.test_rehearsal import Calls

CPU = torch.device("cpu")


class EnoughError(BaseException):
    """What ends a process ends it whatever the graph does."""


def keep_busy_with(module: nn.Module, *args: torch.Tensor, on_busy: Callable[[], None], trains: bool = False) -> None:
    graph = graph_pb2.Graph.FromString(graph_to_bytes(export(module, args).graph))
    keep_busy(graph, ValueTable(graph, {}), CPU, on_busy, trains=trains)


def test_runs_the_graph_over_and_over_and_says_so_before_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    num_runs = 0

    def counted(*_: object) -> object:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 5:
            raise EnoughError
        return torch.ones(2)

    monkeypatch.setattr("stage_daemon.worker.profile.rehearsal.StageModule.forward", counted)
    with pytest.raises(EnoughError):
        keep_busy_with(nn.ReLU(), torch.ones(2), on_busy=lambda: counts.append(num_runs))
    assert counts == [0]
    assert num_runs == 5


def test_beside_a_training_profile_it_runs_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    num_runs = 0

    def counted(_: object) -> None:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 3:
            raise EnoughError

    monkeypatch.setattr("stage_daemon.worker.profile.rehearsal.Program.train", counted)
    with pytest.raises(EnoughError):
        keep_busy_with(nn.Linear(2, 2), torch.ones(2), on_busy=lambda: None, trains=True)
    assert num_runs == 3


def test_graph_that_does_not_run_is_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    products = 0
    multiply = torch.Tensor.__matmul__

    def counted(square: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        nonlocal products
        products += 1
        if products == 3:
            raise EnoughError
        return multiply(square, other)

    def beyond_the_table(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return functional.embedding(tokens + 4, table)

    counts: list[int] = []
    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    with pytest.raises(EnoughError):
        keep_busy_with(
            Calls(beyond_the_table),
            torch.zeros(3, dtype=torch.int64),
            torch.ones(5, 2),
            on_busy=lambda: counts.append(products),
            trains=True,
        )
    assert counts == [0]
