"""A worker's door where the stage is on a GPU, made up: all that crosses is copied, large payloads by the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from access.door import INPUTS, OUTPUTS
from stage_daemon.runtime.egress import Egress, Result
from stage_daemon.transport.streams import PINNED_BYTES, Copies
from tests.stage_daemon.transport.made_up_device import MadeUpStreams
from tests.stage_daemon.worker import test_door_memory
from tests.stage_daemon.worker.test_door_memory import (
    INPUT_FORMAT,
    Worker,
    assert_same,
    is_in,
    result,
    send,
    tensors,
)

CPU = torch.device("cpu")
MANY = PINNED_BYTES // 4
SIZES = (3, MANY, 0, 5 * MANY, 7, MANY)


@pytest.fixture(params=[True, False], ids=["pins", "pins nothing"])
def streams(request: pytest.FixtureRequest) -> MadeUpStreams:
    return MadeUpStreams(can_pin=request.param)


@pytest.fixture
def worker(streams: MadeUpStreams, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(test_door_memory, "INPUT_FORMAT", replace(INPUT_FORMAT, copies=Copies(streams, CPU)))
    return Worker(frozenset())


def test_inputs_are_copied_once_and_no_client_can_change_them_then(worker: Worker, streams: MadeUpStreams) -> None:
    passage = worker.passage(INPUTS)
    for sequence, rows in enumerate(SIZES, start=1):
        sent = tensors(rows)
        send(passage, sequence, sent)
        streams.log.clear()
        received = worker.take()
        assert_same(received, sent)
        # The host waits where the device still reads what the client may write again.
        assert (("host waits for", "stream 1") in streams.log) == (rows >= MANY and streams.can_pin)
        if rows >= MANY:
            assert not any(is_in(passage.memory, one) for one in received)
    assert bool(streams.pinned) == streams.can_pin


@pytest.mark.parametrize("is_large", [True, False])
def test_results_leave_by_the_door(worker: Worker, streams: MadeUpStreams, is_large: bool) -> None:
    passage = worker.passage(OUTPUTS)
    egress = Egress(1, worker.door.give, copies=worker.door._copies)
    for sequence, rows in enumerate(SIZES, start=1):
        sent = tensors(rows if is_large else rows % 11)
        # Twice: the first of a shape is looked at, later ones go as they are. The third is not contiguous.
        odd = (*sent[:2], torch.stack([sent[2], sent[2] + 1], 1)[:, 1])
        for number, given in enumerate((sent, sent, odd)):
            egress.give(Result(session_id=7, sequence=3 * sequence + number, items=given))
            assert_same(result(passage), given)
    written = streams.log.count(("host waits for", "compute"))
    assert (written > 0) == (is_large and streams.can_pin)
    assert not worker.unread
