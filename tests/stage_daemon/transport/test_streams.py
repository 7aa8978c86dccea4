"""In which order a GPU is asked for copies and passes, on a device that is made up."""

from __future__ import annotations

import pytest
import torch

from stage_daemon.transport.streams import Copies, streams_of, waiting_until_computed
from tests.stage_daemon.transport.made_up_device import MadeUpStreams

CPU = torch.device("cpu")


def test_inputs_are_copied_beside_the_stages_and_the_stages_wait_for_them() -> None:
    streams = MadeUpStreams()
    sent = [torch.ones(3), torch.arange(4)]
    copied = Copies(streams, CPU).to_device(sent)
    assert all(map(torch.equal, copied, sent))
    # The host does not wait.
    assert streams.log == [
        ("pinned", "compute"),
        ("pinned", "compute"),
        ("waits for stream 1", "compute"),
        ("kept for", "compute"),
        ("kept for", "compute"),
    ]


def test_outputs_are_copied_once_they_are_computed_and_are_there_when_it_returns() -> None:
    streams = MadeUpStreams()
    tensors = [torch.randn(2, 3)]
    copied = Copies(streams, CPU).to_host(tensors)
    assert torch.equal(copied[0], tensors[0])
    assert streams.log == [
        ("waits for compute", "stream 1"),
        ("pinned", "stream 1"),
        ("host waits for", "stream 1"),
    ]


def test_end_of_a_pass_is_waited_for_and_raises_what_the_device_failed_at() -> None:
    streams = MadeUpStreams()
    until_computed = waiting_until_computed(streams)
    until_computed()
    assert streams.log == [("host waits for", "compute")]
    streams.failure = torch.AcceleratorError("assertion")
    with pytest.raises(torch.AcceleratorError):
        until_computed()


def test_a_cpu_has_no_streams_and_waits_for_nothing() -> None:
    assert streams_of(CPU) is None
    waiting_until_computed(None)()
