"""In which order a GPU is asked for copies and passes, on a device that is made up."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from access.ring import Ring, create_ring
from stage_daemon.transport.streams import PINNED_BYTES, Copies, streams_of
from tests.stage_daemon.transport.made_up_device import MadeUpStreams

CPU = torch.device("cpu")


def test_inputs_are_copied_beside_the_stages_and_the_stages_wait_for_them() -> None:
    streams = MadeUpStreams()
    sent = [torch.ones(3), torch.arange(4)]
    copied = Copies(streams, CPU).to_device(sent)
    assert all(map(torch.equal, copied, sent))
    assert all(one.data_ptr() != other.data_ptr() for one, other in zip(copied, sent, strict=True))
    # The host does not wait.
    assert streams.log == [("waits for stream 1", "compute"), ("kept for", "compute"), ("kept for", "compute")]


def test_who_has_a_stream_of_its_own_copies_on_that() -> None:
    streams = MadeUpStreams()
    copies, ring = Copies(streams, CPU), ring_of(1, PINNED_BYTES)
    own = streams.new_stream()
    with streams.use(own):
        copies.to_device([torch.ones(3)])
        assert streams.log == []
        copies.pin(ring, 0, PINNED_BYTES)
        copies.to_device([torch.frombuffer(ring.memory_of(0), dtype=torch.uint8)])
        assert streams.log == [("host waits for", own)]


def test_outputs_are_there_when_it_returns() -> None:
    tensors = [torch.randn(2, 3)]
    assert torch.equal(Copies(MadeUpStreams(), CPU).to_host(tensors)[0], tensors[0])


def test_a_large_slot_is_pinned_once_and_the_host_waits_until_it_is_read_or_written() -> None:
    streams = MadeUpStreams()
    copies, ring = Copies(streams, CPU), ring_of(2, PINNED_BYTES)
    assert copies.pin(ring, 1, PINNED_BYTES)
    assert streams.pinned == {ring.address_of(1): ring.slot_bytes}
    assert copies.pin(ring, 1, PINNED_BYTES)
    tensors = [torch.randn(7), torch.arange(PINNED_BYTES // 8 - 24), torch.ones(0), torch.tensor(True)]
    copies.to_slot(tensors, ring, 1)
    assert streams.log == [("host waits for", "compute")]
    content = torch.frombuffer(ring.memory_of(1), dtype=torch.uint8)
    assert torch.equal(content[:28].view(torch.float32), tensors[0])
    last = 64 + tensors[1].nbytes
    assert torch.equal(content[64:last].view(torch.int64), tensors[1])
    assert content[last:][0] == 1
    streams.log.clear()
    sent = torch.frombuffer(ring.memory_of(1), dtype=torch.uint8, count=PINNED_BYTES)
    assert torch.equal(copies.to_device([sent])[0], sent)
    assert streams.log[-1] == ("host waits for", "stream 1")


def test_the_host_waits_for_small_payloads_too_where_their_slot_is_pinned() -> None:
    """Several in one slot, or one that comes after a large one: the device reads them by itself."""
    streams = MadeUpStreams()
    copies, ring = Copies(streams, CPU), ring_of(1, PINNED_BYTES)
    small = torch.frombuffer(ring.memory_of(0), dtype=torch.uint8, count=64)
    copies.to_device([small])
    assert ("host waits for", "stream 1") not in streams.log
    copies.pin(ring, 0, PINNED_BYTES)
    copies.to_device([torch.ones(3), small])
    assert streams.log[-1] == ("host waits for", "stream 1")


def test_memory_is_unpinned_before_it_goes() -> None:
    streams = MadeUpStreams()
    copies, ring = Copies(streams, CPU), ring_of(2, PINNED_BYTES)
    assert all(copies.pin(ring, slot, PINNED_BYTES) for slot in (0, 1))
    lent = ring.lend(1)
    del ring
    gc.collect()
    # What is lent is still to be copied from.
    assert len(streams.pinned) == 2
    del lent
    gc.collect()
    assert streams.pinned == {}


@pytest.mark.parametrize(("can_pin", "num_bytes"), [(False, PINNED_BYTES), (True, PINNED_BYTES - 1)])
def test_small_payloads_and_hosts_that_pin_nothing_are_copied_as_torch_does(can_pin: bool, num_bytes: int) -> None:
    streams = MadeUpStreams(can_pin=can_pin)
    copies, ring = Copies(streams, CPU), ring_of(1, PINNED_BYTES)
    assert not copies.pin(ring, 0, num_bytes)
    assert streams.pinned == {}


def ring_of(num_slots: int, payload_bytes: int) -> Ring:
    ring, descriptor = create_ring(num_slots, payload_bytes)
    os.close(descriptor)
    return ring


def test_a_cpu_has_no_streams() -> None:
    assert streams_of(CPU) is None
