"""Slots of shared memory that payloads cross in between two processes of one host, without a name anywhere.

The memory is a memfd, handed over on the edge's connection: when the last process that maps it is gone, so is it. A
byte per slot says whether it is taken: the sender sets it, and the receiver clears it once no tensor uses the slot any
more.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable

# What torch's own CPU memory is aligned to: a kernel takes the same path for a tensor in a slot.
ALIGNMENT_BYTES = 64
MAX_SLOTS = mmap.PAGESIZE
_FREE, _TAKEN = 0, 1
# Neither end can take memory away from under the other.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Ring:
    """One end's mapping of the memory. Slots need not come free in the order that they were taken in."""

    def __init__(self, descriptor: int, num_slots: int, slot_bytes: int) -> None:
        """Takes the descriptor over, and closes it. Raises ValueError if it is not such memory."""
        try:
            size_bytes = _size_bytes(num_slots, slot_bytes)
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("shared memory that could still change its size")
            if os.fstat(descriptor).st_size != size_bytes:
                raise ValueError(f"shared memory of {os.fstat(descriptor).st_size} bytes, needs {size_bytes}")
            self._memory = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._view = memoryview(self._memory)
        self._lent: dict[int, weakref.ref[memoryview]] = {}
        self._give_back = tuple(map(self._on_unused, range(num_slots)))

    def take(self) -> int | None:
        """A slot to write to; None where the receiver still uses all."""
        slot = self._memory.find(_FREE.to_bytes(1, "little"), 0, self.num_slots)
        if slot < 0:
            return None
        self._memory[slot] = _TAKEN
        return slot

    def write(self, slot: int, offset: int, source_address: int, num_bytes: int) -> None:
        """Copies that many bytes of this process's memory into the slot."""
        ctypes.memmove(self._address + self._start(slot) + offset, source_address, num_bytes)

    def lend(self, slot: int) -> memoryview:
        """The slot's bytes. The slot is free again once nothing refers to them."""
        start = self._start(slot)
        view = self._view[start : start + self.slot_bytes]
        self._lent[slot] = weakref.ref(view, self._give_back[slot])
        return view

    def _start(self, slot: int) -> int:
        return mmap.PAGESIZE + slot * self.slot_bytes

    def _on_unused(self, slot: int) -> Callable[[weakref.ref[memoryview]], None]:
        memory = self._memory

        def give_back(_: weakref.ref[memoryview]) -> None:
            memory[slot] = _FREE

        return give_back


def create_ring(num_slots: int, payload_bytes: int) -> tuple[Ring, int]:
    """A ring whose slots hold at least that many bytes, and a descriptor of it for the other process."""
    slot_bytes = _round_up(payload_bytes)
    descriptor = os.memfd_create("edge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _size_bytes(num_slots, slot_bytes))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return Ring(os.dup(descriptor), num_slots, slot_bytes), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _size_bytes(num_slots: int, slot_bytes: int) -> int:
    """The first page holds the slots' states."""
    if not 0 < num_slots <= MAX_SLOTS or slot_bytes <= 0:
        raise ValueError(f"{num_slots} slots of {slot_bytes} bytes, needs 1 to {MAX_SLOTS} of at least one byte")
    return mmap.PAGESIZE + num_slots * slot_bytes


def _round_up(payload_bytes: int) -> int:
    """To whole pages, and to an eighth of the next lower power of two: sizes that creep up need few new rings."""
    step = max(mmap.PAGESIZE, 1 << max(0, payload_bytes.bit_length() - 4))
    return max(1, -(-payload_bytes // step)) * step
