"""Shared memory: slots come back when nothing uses them, and nothing that could shrink is taken for one."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import sys
import threading
from collections import deque

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from access import ring as ring_module
from access.ring import MAX_SLOTS, Ring, aligned, create_ring
from tests.descriptors import open_rings
from tests.named_memory import named_memory
from tests.random_examples import random_examples


def both_ends(num_slots: int = 2, payload_bytes: int = 100) -> tuple[Ring, Ring]:
    writer, descriptor = create_ring(num_slots, payload_bytes)
    return writer, Ring(descriptor, writer.num_slots, writer.slot_bytes)


def test_what_is_written_is_read_in_the_same_memory() -> None:
    writer, reader = both_ends()
    slot = writer.take()
    assert slot is not None
    sent = torch.arange(6.0)
    writer.write(slot, 64, sent.data_ptr(), sent.nbytes)
    tensor = torch.frombuffer(reader.lend(slot), dtype=torch.float32, count=6, offset=64)
    assert torch.equal(tensor, sent)
    assert tensor.data_ptr() % 64 == 0
    zero = torch.zeros(1)
    writer.write(slot, 64, zero.data_ptr(), zero.nbytes)
    tensor[1] = 7
    assert tensor[:3].tolist() == [0, 7, 2]


def test_a_slot_is_free_once_no_tensor_uses_it() -> None:
    writer, reader = both_ends()
    slots = [writer.take(), writer.take()]
    assert slots == [0, 1]
    assert writer.take() is None
    first, second = (torch.frombuffer(reader.lend(slot), dtype=torch.uint8) for slot in slots)
    part_of_second = second[3:5]
    del second
    assert writer.take() is None
    del first
    assert writer.take() == 0
    del part_of_second
    assert writer.take() == 1


def test_memory_stays_while_a_tensor_uses_it_though_the_ring_is_gone() -> None:
    writer, reader = both_ends()
    sent = torch.full((4,), 3.0)
    writer.write(0, 0, sent.data_ptr(), sent.nbytes)
    tensor = torch.frombuffer(reader.lend(0), dtype=torch.float32, count=4)
    del writer, reader
    assert tensor.tolist() == [3.0] * 4


def test_no_descriptor_and_no_name_is_left() -> None:
    before = open_rings()
    names = named_memory()
    rings = both_ends()
    own = open_rings() - before
    # A mapping needs its memory, and mmap keeps a descriptor of it.
    assert len(own) == len(rings)
    assert len({inode for _, inode in own}) == 1
    assert named_memory() == names
    del rings
    assert not own & open_rings()


def test_a_slot_comes_free_though_its_ring_has_gone() -> None:
    writer, reader = both_ends()
    taken = writer.take()
    assert taken is not None
    tensor = torch.frombuffer(reader.lend(taken), dtype=torch.uint8)
    del reader
    gc.collect()
    assert writer.has_taken()
    del tensor
    assert not writer.has_taken()


def test_slots_that_tensors_would_not_be_aligned_in_are_refused() -> None:
    """Kernels take for granted that a float begins at a multiple of its size."""
    sealed = os.memfd_create("odd", os.MFD_ALLOW_SEALING)
    os.ftruncate(sealed, mmap.PAGESIZE + 2 * 4095)
    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with pytest.raises(ValueError, match="multiple of 64"):
        Ring(sealed, 2, 4095)


@pytest.mark.parametrize(("num_slots", "slot_bytes"), [(0, 4096), (MAX_SLOTS + 1, 4096), (1, 0), (3, 4096), (1, 8192)])
def test_memory_of_another_size_is_refused(num_slots: int, slot_bytes: int) -> None:
    _, descriptor = create_ring(1, 4096)
    with pytest.raises(ValueError, match="bytes, needs"):
        Ring(descriptor, num_slots, slot_bytes)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL])
def test_memory_that_its_owner_could_shrink_is_refused(seals: int) -> None:
    descriptor = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, mmap.PAGESIZE + 4096)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(ValueError, match="change its size"):
        Ring(descriptor, 1, 4096)


@random_examples(50)
@given(payload_bytes=st.integers(1, 1 << 22))
def test_a_slot_holds_what_it_is_made_for_and_wastes_little(payload_bytes: int) -> None:
    ring, descriptor = create_ring(1, payload_bytes)
    os.close(descriptor)
    assert payload_bytes <= ring.slot_bytes <= max(payload_bytes * 5 / 4, payload_bytes + mmap.PAGESIZE)
    assert ring.slot_bytes % mmap.PAGESIZE == 0


@pytest.mark.parametrize(("num_bytes", "needed"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_alignment(num_bytes: int, needed: int) -> None:
    assert aligned(num_bytes) == needed


@pytest.mark.services
def test_a_fork_keeps_what_is_lent_and_its_child_frees_nothing() -> None:
    writer, reader = both_ends()
    for _ in range(2):
        writer.take()
    kept = torch.frombuffer(reader.lend(0), dtype=torch.uint8)
    child = os.fork()
    if child == 0:
        del kept
        os._exit(0)
    os.waitpid(child, 0)
    assert writer.take() is None
    later = torch.frombuffer(reader.lend(1), dtype=torch.uint8)
    # The child might use it still.
    del kept
    assert writer.take() is None
    del later
    assert writer.take() == 1


def test_a_process_may_fork_while_rings_are_made() -> None:
    is_over = threading.Event()

    def make() -> None:
        rings: deque[Ring] = deque(maxlen=100)
        while not is_over.is_set():
            ring, descriptor = create_ring(1, 1)
            os.close(descriptor)
            rings.append(ring)

    _, reader = both_ends()
    interval = sys.getswitchinterval()
    makers = [threading.Thread(target=make) for _ in range(2)]
    # Threads take turns as often as they can.
    sys.setswitchinterval(1e-6)
    try:
        for maker in makers:
            maker.start()
        for _ in range(5000):
            lent = reader.lend(0)
            ring_module._keep_lent_slots()
            assert not reader.has_lent()
            del lent
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        for maker in makers:
            maker.join()


def test_a_part_of_a_lent_slot_keeps_it() -> None:
    writer, reader = both_ends(1)
    writer.take()
    part = reader.lend(0)[10:20][2:4]
    assert writer.take() is None
    del part
    assert writer.take() == 0


def test_whether_slots_are_in_use() -> None:
    writer, reader = both_ends()
    assert not writer.has_taken()
    slot = writer.take()
    assert slot is not None
    lent = reader.lend(slot)
    assert writer.has_taken()
    assert reader.has_lent()
    del lent
    assert not writer.has_taken()
    assert not reader.has_lent()
