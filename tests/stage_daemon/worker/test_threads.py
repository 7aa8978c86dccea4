"""How many threads a worker takes, and that threads which start later take them over."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from stage_daemon.errors import InvalidRequest
from stage_daemon.worker import shared_cores
from stage_daemon.worker.shared_cores import SHARED_OUT_BY, room_for_neighbours
from stage_daemon.worker.threads import use_threads

CPU = torch.device("cpu")
OF_HOST = 6


@pytest.fixture(autouse=True)
def six_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As torch would take on a host of six cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(OF_HOST)
    for name in SHARED_OUT_BY:
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("setting", "workers_on_host", "used"),
    [(0, 0, OF_HOST), (0, 1, OF_HOST), (0, 2, 3), (0, 4, 1), (0, 12, 1), (5, 1, 5), (5, 6, 5)],
)
def test_workers_of_a_host_share_its_cores_unless_told_otherwise(setting: int, workers_on_host: int, used: int) -> None:
    use_threads(CPU, setting, workers_on_host)
    assert torch.get_num_threads() == used
    counts: list[int] = []
    lane = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    lane.start()
    lane.join()
    assert counts == [used]


@pytest.mark.parametrize(
    ("quota", "workers_on_host", "used"),
    [(4.0, 1, 4), (4.9, 0, 4), (4.0, 2, 2), (0.5, 1, 1), (8.0, 1, OF_HOST), (8.0, 3, 2), (2.0, 4, 1)],
)
def test_a_container_keeps_no_more_cores_busy_than_its_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float, workers_on_host: int, used: int
) -> None:
    monkeypatch.setattr(shared_cores, "cpu_quota", lambda: quota)
    use_threads(CPU, 0, workers_on_host)
    assert torch.get_num_threads() == used
    use_threads(CPU, 5, workers_on_host)
    assert torch.get_num_threads() == 5


def test_more_threads_than_torch_takes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="num_threads is 2147483648, needs at most 4096"):
        use_threads(CPU, 2**31, 1)
    assert torch.get_num_threads() == OF_HOST


def test_a_quota_leaves_neighbours_less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(OF_HOST))
    for quota, room in ((6.0, 2), (4.0, 1), (2.5, 0)):
        monkeypatch.setattr(shared_cores, "cpu_quota", lambda quota=quota: quota)
        assert room_for_neighbours(2) == room


@pytest.mark.parametrize("name", SHARED_OUT_BY)
def test_who_has_shared_the_cores_out_is_not_overruled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(OF_HOST))
    use_threads(CPU, 0, 3)
    assert torch.get_num_threads() == OF_HOST
    use_threads(CPU, 2, 3)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("set_for_all", "setting", "room"),
    [(None, 0, 0), (None, 2, 2), ("1", 0, 5), ("4", 0, 0), ("4", 3, 1), ("many", 0, 0)],
)
def test_neighbours_are_as_many_as_there_are_cores_for(
    monkeypatch: pytest.MonkeyPatch, set_for_all: str | None, setting: int, room: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(OF_HOST))
    if set_for_all is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", set_for_all)
    assert room_for_neighbours(setting) == room


def test_what_runs_on_a_gpu_needs_no_share() -> None:
    use_threads(torch.device("cuda:0"), 0, 3)
    assert torch.get_num_threads() == OF_HOST
