"""Files of measured times: whose graph they are of, and what is said of one that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.times import read_times_file
from planner.cost.measured import MeasuredTimes
from planner.cost.times_file import write_times
from planner.errors import InvalidArgument

GRAPH = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "times.json"


@pytest.mark.parametrize("theirs", ["", GRAPH, GRAPH[:12]])
@pytest.mark.parametrize("ours", ["", GRAPH])
def test_times_of_the_graph_or_of_none_are_taken(path: Path, theirs: str, ours: str) -> None:
    times = MeasuredTimes(graph_id=theirs, device_kind="cpu", seconds=((0, 0.5), (3, 1.0)))
    path.write_text(write_times([times]))
    assert read_times_file(path, ours) == (times,)


def test_times_of_another_graph_are_refused(path: Path) -> None:
    path.write_text(write_times([MeasuredTimes(graph_id="cd" * 32, device_kind="cpu", seconds=((0, 0.5),))]))
    with pytest.raises(InvalidArgument) as raised:
        read_times_file(path, GRAPH)
    assert raised.value.message == f"{path}: the times are of graph cdcdcdcdcdcd, not of abababababab"


def test_a_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"times\.json cannot be read: No such file"):
        read_times_file(path)
    path.write_text('{"device_kind": 3}')
    with pytest.raises(InvalidArgument, match=r"times\.json: "):
        read_times_file(path)
