"""Slots of shared memory that payloads cross in between two processes of one host, without a name anywhere.

The memory is a memfd, handed over on the connection of the two: when the last process that maps it is gone, so is it. A
byte per slot says whether it is taken: the sender sets it, and the receiver clears it once no tensor uses the slot any
more. Neither end believes the other: whatever stands in the memory, a slot lies within it.

A process that forks shares what it maps with its child, and cannot know how long the child uses it: slots that are lent
then are never free again.
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
_FREE_BYTE = bytes([_FREE])
# Neither end can take memory away from under the other.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

# Of this process, by their identity: no set, which threads cannot add to while it is gone through.
_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()
# To what is lent, by their own identity: a reference that goes before its referent calls nobody back. Slots outlive the
# ring that lent them where the next session goes on with the memory.
_references: dict[int, weakref.ref[ctypes.Array[ctypes.c_ubyte]]] = {}


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class _Mapping(mmap.mmap):
    """Calls back before the memory goes: whoever has told others where it lies."""

    callbacks: tuple[Callable[[], object], ...] = ()

    def __del__(self) -> None:
        for callback in self.callbacks:
            callback()


class Ring:
    """One end's mapping of the memory. Slots need not come free in the order that they were taken in."""

    def __init__(self, descriptor: int, num_slots: int, slot_bytes: int, *, keeps_descriptor: bool = False) -> None:
        """Takes the descriptor over, and closes it at once, or with the ring if that `keeps_descriptor` to hand it over
        again. Raises ValueError or OSError if it is not such memory."""
        is_such = False
        try:
            size_bytes = _size_bytes(num_slots, slot_bytes)
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("shared memory that could still change its size")
            if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
                raise ValueError("shared memory of huge pages, which a host can run out of while they are read")
            if os.fstat(descriptor).st_size != size_bytes:
                raise ValueError(f"shared memory of {os.fstat(descriptor).st_size} bytes, needs {size_bytes}")
            self._memory = _Mapping(descriptor, size_bytes)
            is_such = True
        finally:
            if not (is_such and keeps_descriptor):
                os.close(descriptor)
        self._descriptor = descriptor if keeps_descriptor else None
        if keeps_descriptor:
            weakref.finalize(self, os.close, descriptor).atexit = False
        # A fork has taken slots away.
        self.has_lost_slots = False
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        # Of the first slot.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + mmap.PAGESIZE
        self._slot_type = ctypes.c_ubyte * slot_bytes
        self._lent: dict[int, weakref.ref[ctypes.Array[ctypes.c_ubyte]]] = {}
        self._give_back = tuple(map(self._on_unused, range(num_slots)))
        _rings[id(self)] = self

    @property
    def descriptor(self) -> int:
        """Of a ring that keeps it."""
        assert self._descriptor is not None, "the ring has closed its descriptor"
        return self._descriptor

    @property
    def size_bytes(self) -> int:
        """Of all slots."""
        return self.num_slots * self.slot_bytes

    def take(self) -> int | None:
        """A slot to write to; None where the receiver still uses all."""
        slot = self._memory.find(_FREE_BYTE, 0, self.num_slots)
        if slot < 0:
            return None
        self._memory[slot] = _TAKEN
        return slot

    def has_taken(self) -> bool:
        """The receiver still uses some slot, by what it says."""
        return self._memory[: self.num_slots] != bytes(self.num_slots)

    def write(self, slot: int, offset: int, source: int | bytes, num_bytes: int) -> None:
        """Copies that many bytes, or what this process has at that address, into the slot."""
        ctypes.memmove(self.address_of(slot) + offset, source, num_bytes)

    def address_of(self, slot: int) -> int:
        """Of its first byte, in this process."""
        return self._address + slot * self.slot_bytes

    def memory_of(self, slot: int) -> memoryview:
        """A slot that is taken, to be written to."""
        start = mmap.PAGESIZE + slot * self.slot_bytes
        return memoryview(self._memory)[start : start + self.slot_bytes]

    def before_unmapping(self, callback: Callable[[], object]) -> None:
        """What is lent is gone by then, too."""
        self._memory.callbacks += (callback,)

    def lend(self, slot: int) -> memoryview:
        """The slot's bytes. The slot is free again once nothing refers to them, or to a part of them."""
        memory = self._slot_type.from_buffer(self._memory, mmap.PAGESIZE + slot * self.slot_bytes)
        reference = weakref.ref(memory, self._give_back[slot])
        self._lent[slot] = _references[id(reference)] = reference
        return memoryview(memory).cast("B")

    def has_lent(self) -> bool:
        """Something in this process refers to a slot."""
        return bool(self._lent)

    def keep_lent(self) -> None:
        """What is lent now is never free again."""
        self.has_lost_slots = self.has_lost_slots or self.has_lent()
        self._lent.clear()

    def _on_unused(self, slot: int) -> Callable[[weakref.ref[ctypes.Array[ctypes.c_ubyte]]], None]:
        memory, lent, process_id = self._memory, self._lent, os.getpid()

        def give_back(reference: weakref.ref[ctypes.Array[ctypes.c_ubyte]]) -> None:
            _references.pop(id(reference), None)
            if lent.get(slot) is reference and os.getpid() == process_id:
                del lent[slot]
                memory[slot] = _FREE

        return give_back


def _keep_lent_slots() -> None:
    for reference in _rings.valuerefs():
        if (ring := reference()) is not None:
            ring.keep_lent()


os.register_at_fork(before=_keep_lent_slots)


def create_ring(num_slots: int, payload_bytes: int, *, keeps_descriptor: bool = False) -> tuple[Ring, int]:
    """A ring whose slots hold at least that many bytes, and a descriptor of it for the other process."""
    slot_bytes = _round_up(payload_bytes)
    descriptor = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _size_bytes(num_slots, slot_bytes))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return Ring(os.dup(descriptor), num_slots, slot_bytes, keeps_descriptor=keeps_descriptor), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _size_bytes(num_slots: int, slot_bytes: int) -> int:
    """The first page holds the slots' states."""
    if not 0 < num_slots <= MAX_SLOTS or slot_bytes <= 0 or slot_bytes % ALIGNMENT_BYTES:
        raise ValueError(
            f"{num_slots} slots of {slot_bytes} bytes, needs 1 to {MAX_SLOTS} of a multiple of {ALIGNMENT_BYTES} bytes"
        )
    return mmap.PAGESIZE + num_slots * slot_bytes


def _round_up(payload_bytes: int) -> int:
    """To whole pages, and to an eighth of the next lower power of two: sizes that creep up need few new rings."""
    step = max(mmap.PAGESIZE, 1 << max(0, payload_bytes.bit_length() - 4))
    return max(1, -(-payload_bytes // step)) * step
