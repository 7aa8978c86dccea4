"""What client and worker say to each other at a worker's door: see WorkerDoor in stage_daemon.proto.

Both directions are the same: frames on a Unix socket, and large payloads in shared memory that the sender makes and
hands over on that socket. The receiver takes nothing for granted that the sender says of it.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from access.ring import Ring, aligned, create_ring

# What a connection is for. The capital ones take payloads in shared memory too.
INPUTS, OUTPUTS = b"i", b"o"
INPUTS_SHARED, OUTPUTS_SHARED = b"I", b"O"
# As INPUTS_SHARED, and the worker answers each announcement of memory: with TAKEN, or with REFUSED where it cannot have
# it, for want of descriptors or of address space. Until then nothing may lie in any memory.
INPUTS_ANSWERED = b"A"
TAKEN, REFUSED = b"+", b"-"
# A training's requests and their answers.
TRAINING = b"T"
WELCOME = b"w"
# Sequence, bytes of the message, place of the tensors' bytes, number of these bytes. A place of 0 is behind the
# message, n is the slot n - 1 of the last memory that was announced. Sequence 0 announces memory, whose descriptor
# comes with the head's first byte: `place` slots of so many bytes.
HEAD = struct.Struct("<QIIQ")
BEHIND = 0
# After the token and the purpose, a client says which session it is.
SESSION = struct.Struct("<Q")
# Of either end's socket. The kernel gives at most net.core.wmem_max; its default takes a fifth of 1 MiB.
SEND_BUFFER_BYTES = 1 << 22

# Frames in slots fit into what is read at once.
READ_BYTES = 1 << 16
_MAX_SLOT_MESSAGE_BYTES = READ_BYTES // 2
# Smaller payloads are read several at a time from the socket: see docs/design/data_plane.md.
MIN_SLOT_BYTES = 3 << 14
# As many microbatches as an ordinary client has under way, and more of small ones. Slots that nobody writes to take no
# memory.
_MIN_SLOTS, _MAX_SLOTS = 8, 16
_USUAL_BYTES = 1 << 26
# Of all slots together.
MAX_MEMORY_BYTES = 1 << 30
# Of one request of a training; what is larger goes by its stream.
MOST_REQUEST_BYTES = MAX_MEMORY_BYTES // _MIN_SLOTS
# Memories that a larger one has taken the place of, and that the receiver still uses.
_MAX_OLDER = 2

_DESCRIPTOR_BYTES = array.array("i").itemsize
_DESCRIPTOR_SPACE = socket.CMSG_SPACE(_DESCRIPTOR_BYTES)
# Plain numbers: Python's flags take a microsecond to combine.
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_DESCRIPTOR_LOST = int(socket.MSG_CTRUNC)
# Of address space, or of a descriptor: a mapping has one of its own.
_NO_ROOM = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class SlotWriter:
    """The sender's end of the memory of one connection: what it writes there, the receiver reads in its place.

    `ring` is memory that the receiver has been told of already. Where it `is_answered`, memory is used once the
    receiver has said that it took it, and so is `ring`.
    """

    def __init__(self, ring: Ring | None = None, *, keeps_descriptors: bool = False, is_answered: bool = False) -> None:
        self._ring = None if is_answered else ring
        self._unanswered = ring if is_answered else None
        self._is_answered = is_answered
        self._keeps_descriptors = keeps_descriptors
        self._older: list[Ring] = []
        self._can_create = True

    def take(self, num_bytes: int, announce: Callable[[Ring, int], bool]) -> int | None:
        """A slot; None where the payload has to follow its message: nobody waits for memory. `announce` sends new
        memory's descriptor, and is false where that cannot be now."""
        if num_bytes < MIN_SLOT_BYTES:
            return None
        if self._unanswered is None and (self._ring is None or num_bytes > self._ring.slot_bytes):
            self._larger(num_bytes, announce)
        if self._unanswered is not None or self._ring is None or num_bytes > self._ring.slot_bytes:
            return None
        return self._ring.take()

    def frame(
        self, sequence: int, message: bytes, payloads: Sequence[memoryview], announce: Callable[[Ring, int], bool]
    ) -> list[bytes | memoryview]:
        """To be sent next. Its payloads lie in a slot, if there is one for them, and follow the message otherwise."""
        num_bytes = bytes_together(map(len, payloads))
        slot = self.take(num_bytes, announce) if fits_beside_slot(len(message)) else None
        if slot is None:
            return framed(sequence, message, payloads)
        self.write(slot, payloads)
        return framed_beside_slot(sequence, message, slot, num_bytes)

    def write(self, slot: int, payloads: Sequence[memoryview]) -> None:
        """One after the other, each from a multiple of 64 bytes on."""
        assert self._ring is not None
        offset = 0
        for payload in payloads:
            offset = aligned(offset)
            if len(payload):
                self._ring.write(slot, offset, _source(payload), len(payload))
            offset += len(payload)

    @property
    def ring(self) -> Ring | None:
        """What payloads go to now."""
        return self._ring

    @property
    def awaits_answer(self) -> bool:
        return self._unanswered is not None

    def answered(self, answer: bytes) -> None:
        """By the receiver. After a refusal all goes to the memory that is there, or follows its message."""
        if self._unanswered is None or answer not in (TAKEN, REFUSED):
            raise ConnectionError(f"{answer!r} came, where nothing was asked")
        if answer == TAKEN:
            self._use(self._unanswered)
        else:
            self._can_create = False
        self._unanswered = None

    def close(self) -> None:
        """The memory goes once the receiver, too, has let go of it."""
        self._can_create = False
        self._ring = self._unanswered = None
        self._older.clear()

    def _larger(self, num_bytes: int, announce: Callable[[Ring, int], bool]) -> None:
        """Memory with slots that large, where there may be some."""
        self._older = [ring for ring in self._older if ring.has_taken()]
        if not self._can_create or num_bytes > MAX_MEMORY_BYTES // _MIN_SLOTS or len(self._older) == _MAX_OLDER:
            return
        try:
            ring, descriptor = create_ring(
                min(_MAX_SLOTS, max(_MIN_SLOTS, _USUAL_BYTES // num_bytes)),
                num_bytes,
                keeps_descriptor=self._keeps_descriptors,
            )
        except OSError:
            # This host gives no such memory.
            self._can_create = False
            return
        try:
            if not announce(ring, descriptor):
                return
        finally:
            os.close(descriptor)
        if self._is_answered:
            self._unanswered = ring
        else:
            self._use(ring)

    def _use(self, ring: Ring) -> None:
        if self._ring is not None:
            self._older.append(self._ring)
        self._ring = ring


class SlotReader:
    """The receiver's end. What the sender should not have said is a ConnectionError.

    `ring` is memory that the sender has been told of already.
    """

    def __init__(self, ring: Ring | None = None, *, keeps_descriptors: bool = False) -> None:
        self._descriptors: deque[int] = deque()
        # One has come for which this process had no number to spare.
        self._has_lost_one = False
        self._ring = ring
        self._keeps_descriptors = keeps_descriptors
        self._older: list[Ring] = []

    def receive(self, connection: socket.socket, view: memoryview) -> int:
        """As recv_into, without waiting, and keeps descriptors that come along."""
        num_read, ancillary, flags, _ = connection.recvmsg_into((view,), _DESCRIPTOR_SPACE, _AT_ONCE)
        if ancillary:
            self._keep(ancillary)
        elif flags & _DESCRIPTOR_LOST:
            self._has_lost_one = True
        return num_read

    def announced(self, num_slots: int, slot_bytes: int) -> bool:
        """The memory that places speak of from now on; false where this process cannot have it."""
        if not self._descriptors and self._has_lost_one:
            self._has_lost_one = False
            return False
        if not self._descriptors:
            raise ConnectionError("memory was announced without its descriptor")
        descriptor = self._descriptors.popleft()
        older = [ring for ring in (*self._older, *((self._ring,) if self._ring else ())) if ring.has_lent()]
        if num_slots * slot_bytes > MAX_MEMORY_BYTES or len(older) > _MAX_OLDER:
            os.close(descriptor)
            raise ConnectionError(f"{num_slots} slots of {slot_bytes} bytes, beside {len(older)} memories in use")
        try:
            self._ring = Ring(descriptor, num_slots, slot_bytes, keeps_descriptor=self._keeps_descriptors)
            self._older = older
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                return False
            raise ConnectionError(str(error)) from None
        return True

    @property
    def ring(self) -> Ring | None:
        """What was announced last."""
        return self._ring

    def payload(self, place: int, num_bytes: int) -> memoryview:
        """Of the slot. The sender can still write there."""
        ring = self._ring
        if ring is None or not 0 < place <= ring.num_slots or num_bytes > ring.slot_bytes:
            raise ConnectionError(f"{num_bytes} bytes at place {place}, which no memory has")
        return ring.lend(place - 1)[:num_bytes]

    def close(self) -> None:
        """Who has a payload keeps its memory."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._ring = None
        self._older.clear()

    def _keep(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
                self._descriptors.extend(descriptors)
        if len(self._descriptors) > 1:
            self.close()
            raise ConnectionError("descriptors that nothing announces")


def announcement(ring: Ring | None) -> bytes:
    """Goes before whatever lies in that memory. None announces no memory, where a place is kept for it."""
    return HEAD.pack(0, 0, ring.num_slots, ring.slot_bytes) if ring is not None else HEAD.pack(0, 0, 0, 0)


def rights(descriptor: int) -> tuple[tuple[int, int, array.array[int]]]:
    """The ancillary data that hands a descriptor over."""
    return ((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])),)


def send_announcement(connection: socket.socket, ring: Ring, descriptor: int) -> None:
    """Without waiting: raises BlockingIOError where the connection is full."""
    num_sent = connection.sendmsg([announcement(ring)], rights(descriptor), socket.MSG_DONTWAIT)
    assert num_sent == HEAD.size, "a Unix socket takes a few bytes whole or not at all"


def framed(sequence: int, message: bytes, payloads: Sequence[memoryview]) -> list[bytes | memoryview]:
    """A frame whose payloads follow the message."""
    if len(payloads) == 1:
        return [HEAD.pack(sequence, len(message), BEHIND, len(payloads[0])) + message, payloads[0]]
    buffers: list[bytes | memoryview] = [b""]
    num_bytes = 0
    for payload in payloads:
        if padding := aligned(num_bytes) - num_bytes:
            buffers.append(bytes(padding))
        buffers.append(payload)
        num_bytes += padding + len(payload)
    buffers[0] = HEAD.pack(sequence, len(message), BEHIND, num_bytes) + message
    return buffers


def framed_beside_slot(sequence: int, message: bytes, slot: int, num_bytes: int) -> list[bytes | memoryview]:
    """A frame whose payloads lie in a slot, so many bytes together."""
    return [HEAD.pack(sequence, len(message), slot + 1, num_bytes) + message]


def fits_beside_slot(message_bytes: int) -> bool:
    """A longer message goes with its payload behind it."""
    return message_bytes <= _MAX_SLOT_MESSAGE_BYTES


def bytes_together(sizes: Iterable[int]) -> int:
    """Of payloads of those sizes, each from a multiple of 64 bytes on."""
    num_bytes = 0
    for size in sizes:
        num_bytes = aligned(num_bytes) + size
    return num_bytes


def _source(payload: memoryview) -> int | bytes:
    """What can be copied from; of read-only memory nothing but bytes tells its address."""
    if not payload.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(payload))
    whole = payload.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(payload) else bytes(payload)
