"""How the times of a profile's parts become those that it tells."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from protos.v1 import stage_daemon_pb2
from stage_daemon.worker.frames import read_frame
from stage_daemon.worker.profile.bench import Unmeasured
from stage_daemon.worker.profile.distinct import DistinctNode
from stage_daemon.worker.profile.gradients import BackwardSeconds, Saved, SplitGraph
from stage_daemon.worker.profile.rehearsal import PassSeconds, Rehearsed
from stage_daemon.worker.profile.session import Session
from stage_daemon.worker.profile.split_rehearsal import SplitSeconds
from stage_daemon.worker.profile.update import UpdateSeconds

LAYERS = DistinctNode(nodes=(0, 1), operator="layer")
LOSS = DistinctNode(nodes=(2,), operator="loss")
ALONE = BackwardSeconds(whole=1.0, input_gradients=0.75, weight_gradients=0.5)
KEPT = Saved(inputs=False, outputs=True, within_bytes=7)


class Rehearsing:
    """A bench that gives what it is told. The first layer stands before the cut."""

    distinct = (LAYERS, LOSS)
    split_graph = SplitGraph(given=frozenset({7}), nodes=frozenset({1, 2}))

    def __init__(self, passes: PassSeconds | None, split: SplitSeconds | None = None) -> None:
        self._passes, self._split = passes, split

    def rehearse(self, _: Callable[[], None]) -> Rehearsed:
        return Rehearsed(nodes=(0.5, 0.5, 0.25), input_seconds=0.5, output_seconds=None)

    def rehearse_training(self, _: Callable[[], None]) -> PassSeconds:
        if self._passes is None:
            raise Unmeasured("it cannot be run")
        return self._passes

    def rehearse_update(self, _: Callable[[], None]) -> UpdateSeconds:
        if self._split is None:
            raise Unmeasured("it cannot be stepped")
        return UpdateSeconds(norms=0.125, optimizer=0.25)

    def rehearse_split(self, _: Callable[[], None]) -> SplitSeconds:
        if self._split is None:
            raise Unmeasured("it cannot be run so")
        return self._split


@pytest.mark.parametrize(
    ("whole", "split", "forward", "backward"),
    [
        (PassSeconds(forward=2.5, backward=6.0, input_seconds=0.75), None, (1.0, 0.5), (2.0, 1.5, 1.0)),
        # Behind the cut are two nodes of 0.75 and 0.5 s alone.
        (
            PassSeconds(forward=2.5, backward=6.0),
            SplitSeconds(input_gradients=4.5, weight_gradients=4.0),
            (1.0, 0.5),
            (2.0, 3 * 0.75, 4 * 0.5),
        ),
        (None, SplitSeconds(input_gradients=4.5, weight_gradients=4.0), (0.5, 0.25), (0.0, 0.0, 0.0)),
    ],
)
def test_passes_of_nodes_add_up_to_the_graphs(
    whole: PassSeconds | None, split: SplitSeconds | None, forward: tuple[float, ...], backward: tuple[float, ...]
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = Session(ours, "cpu")
        session._seconds_alone.update({0: 1.0, 1: 1.0})
        session._backward_alone.update({0: ALONE, 1: ALONE})
        session._saved.update({0: KEPT, 1: KEPT})
        bench: Any = Rehearsing(whole, split)
        rehearsed = session._rehearse(bench)
        frame = read_frame(theirs)
    assert frame is not None
    response = stage_daemon_pb2.ProfileResponse.FromString(frame.body)
    assert response.HasField("update") is (whole is not None and split is not None)
    if response.HasField("update"):
        assert (response.update.norm_seconds, response.update.optimizer_seconds) == (0.125, 0.25)
    assert rehearsed is not None
    # Deliveries of training count where it is run.
    assert rehearsed.input_seconds == (0.5 if whole is None else whole.input_seconds)
    layers, loss = response.measured
    assert (layers.seconds, loss.seconds) == forward
    for one in (layers, loss):
        seconds = (one.backward_seconds, one.input_gradient_seconds, one.weight_gradient_seconds)
        # What is not told again stays as it was told of each node alone: the response has none.
        assert seconds == backward
        assert (one.saved.outputs, one.saved.within_bytes) == ((False, 0) if whole is None else (True, 7))


def test_nothing_is_run_back_where_nothing_was_asked_for_that() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = Session(ours, "cpu")
        session._seconds_alone.update({0: 1.0})
        unasked: Any = SimpleNamespace(distinct=(LAYERS,), rehearse=Rehearsing(None).rehearse)
        assert session._rehearse(unasked) is not None
