"""Where clients of this host hand microbatches to the worker and get its results, past the supervisor.

The protocol stands at WorkerDoor in stage_daemon.proto. The lane itself reads inputs and writes results; a thread of
the door lets clients in and notices that they leave, and none of that happens per microbatch.
"""

from __future__ import annotations

import contextlib
import ctypes
import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence, Set
from functools import partial

import torch

from access.buffers import MAX_BUFFERS, drop_sent
from access.door import (
    BEHIND,
    HEAD,
    INPUTS,
    INPUTS_ANSWERED,
    INPUTS_SHARED,
    OUTPUTS,
    OUTPUTS_SHARED,
    READ_BYTES,
    REFUSED,
    SEND_BUFFER_BYTES,
    SESSION,
    TAKEN,
    TRAINING,
    WELCOME,
    SlotReader,
    SlotWriter,
    bytes_together,
    fits_beside_slot,
    framed,
    framed_beside_slot,
    send_announcement,
)
from access.host import host_identity
from access.ring import Ring
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import Ingress, InputFormat, Submission
from stage_daemon.transport.layout import memory_of
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.streams import PINNED_BYTES, Copies
from stage_daemon.worker.frames import MAX_WAITING_BYTES, MAX_WAITING_RESULTS
from stage_daemon.worker.framing import InputReader, ResultWriter

_OF_INPUTS = (INPUTS, INPUTS_SHARED, INPUTS_ANSWERED)
_PURPOSES = (*_OF_INPUTS, OUTPUTS, OUTPUTS_SHARED, TRAINING)
_TOKEN_BYTES = 16
# Who has connected and said nothing yet: past so many, the oldest is let go. A client says who it is at once.
_MAX_NEWCOMERS = 64
# Who comes while the worker has no descriptor to spare waits for so long.
_FULL_MILLISECONDS = 100
# A message says what the tensors are, and no more.
_MAX_MESSAGE_BYTES = 1 << 24
_MAX_PAYLOAD_BYTES = 1 << 40


class Door:
    """`on_unread` is called with the session whose client leaves too many results unread; the client is then let go.

    `on_trainer` is given the connection of a training's session, and takes it if there is such a session.
    """

    def __init__(
        self,
        ingress: Ingress,
        input_format: InputFormat,
        on_unread: Callable[[int], None],
        foreign_inputs: Set[int] = frozenset(),
        on_trainer: Callable[[int, socket.socket], bool] = lambda session_id, connection: False,
    ) -> None:
        self._on_trainer = on_trainer
        self._ingress = ingress
        self._reader = InputReader(input_format, foreign_inputs)
        self._copies = input_format.copies
        self._writer = ResultWriter(self._copies)
        self._on_unread = on_unread
        self._token = secrets.token_hex(_TOKEN_BYTES).encode()
        self._outlets: dict[int, Outlet] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The kernel picks a free abstract name, which leaves nothing behind.
        self._listener.bind("")
        self._listener.listen()
        threading.Thread(target=self._serve, name="door", daemon=True).start()

    def address(self) -> stage_daemon_pb2.WorkerDoor:
        name = self._listener.getsockname()[1:].decode()
        return stage_daemon_pb2.WorkerDoor(
            host=host_identity(),
            socket_name=name,
            token=self._token.decode(),
            shares_memory=True,
            answers_memory=True,
            takes_tensors_beside=True,
        )

    def give(self, result: Result) -> bool:
        """False for a session that has not come through this door. Never waits for a client."""
        outlet = self._outlets.get(result.session_id)
        if outlet is None:
            return False
        if not outlet.give(result.sequence, *self._writer.content(result)):
            self._on_unread(result.session_id)
            outlet.end()
        return True

    def flush(self) -> None:
        """Returns once every client has been given, or has left, all that is there for it."""
        for outlet in tuple(self._outlets.values()):
            outlet.flush()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        newcomers: dict[int, socket.socket] = {}
        sessions: dict[int, int] = {}
        is_full = False
        while True:
            events = poller.poll(_FULL_MILLISECONDS if is_full else None)
            if is_full:
                poller.modify(self._listener, select.POLLIN)
                is_full = False
            for number, _ in events:
                if number == self._listener.fileno():
                    try:
                        connection, _ = self._listener.accept()
                    except OSError:
                        # Whoever waits there would be told of again at once.
                        poller.modify(self._listener, 0)
                        is_full = True
                        continue
                    newcomers[connection.fileno()] = connection
                    poller.register(connection, select.POLLIN)
                elif number in newcomers:
                    poller.unregister(number)
                    opened = self._let_in(newcomers.pop(number))
                    if opened is not None:
                        session_id, outlet = opened
                        sessions[outlet] = session_id
                        poller.register(outlet, select.POLLIN)
                elif number in sessions:
                    # A client says nothing here: it has left, or was let go.
                    poller.unregister(number)
                    self._outlets.pop(sessions.pop(number)).close()
            while len(newcomers) > _MAX_NEWCOMERS:
                oldest = next(iter(newcomers))
                poller.unregister(oldest)
                newcomers.pop(oldest).close()

    def _let_in(self, connection: socket.socket) -> tuple[int, int] | None:
        """The session and descriptor of a new outlet, if it is one. What it says, it has said in one piece."""
        said, num_said, slots = bytearray(len(self._token) + 1 + SESSION.size + HEAD.size), 0, SlotReader()
        with contextlib.suppress(OSError):
            num_said = slots.receive(connection, memoryview(said))
        token, purpose = said[: len(self._token)], bytes(said[len(self._token) : len(self._token) + 1])
        needed = len(said) if purpose == OUTPUTS_SHARED else len(said) - HEAD.size
        ring: Ring | None = None
        try:
            if num_said != needed or not secrets.compare_digest(token, self._token) or purpose not in _PURPOSES:
                raise ConnectionError("somebody else")
            (session_id,) = SESSION.unpack_from(said, len(self._token) + 1)
            if purpose == OUTPUTS_SHARED:
                ring = _memory_for_results(slots, bytes(said[-HEAD.size :]))
        except OSError:
            connection.close()
            return None
        finally:
            slots.close()
        keeps_no_results = purpose in (*_OF_INPUTS, TRAINING)
        if purpose == TRAINING:
            if not self._on_trainer(session_id, connection):
                connection.close()
                return None
        elif keeps_no_results:
            inlet = Inlet(
                connection,
                session_id,
                self._reader,
                shares_memory=purpose != INPUTS,
                answers_memory=purpose == INPUTS_ANSWERED,
            )
            self._ingress.add(inlet)
        elif session_id not in self._outlets:
            self._outlets[session_id] = Outlet(connection, purpose == OUTPUTS_SHARED, ring, self._copies)
        else:
            connection.close()
            return None
        with contextlib.suppress(OSError):
            connection.send(WELCOME)
        return None if keeps_no_results else (session_id, connection.fileno())


def _memory_for_results(slots: SlotReader, announcement: bytes) -> Ring | None:
    """What a client hands over when it comes. None where it has none."""
    _, _, num_slots, slot_bytes = HEAD.unpack(announcement)
    if num_slots and not slots.announced(num_slots, slot_bytes):
        raise ConnectionError("no descriptor or no address space is free for the client's memory")
    return slots.ring


class Inlet:
    """One client's microbatches; see `ingress.Source`. Never waits for what has not come yet.

    Small ones are read several at a time, and copied from there; what a large one holds is read into its own memory, or
    lies in the client's where both share it.
    """

    def __init__(
        self,
        connection: socket.socket,
        session_id: int,
        reader: InputReader,
        shares_memory: bool = False,
        answers_memory: bool = False,
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self._reader = reader
        self._slots = SlotReader() if shares_memory else None
        self._answers_memory = answers_memory
        self._num_taken = 0
        self._memory = bytearray(READ_BYTES)
        self._view = memoryview(self._memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # So many of those bytes are read, and of no microbatch that is complete.
        self._num_read = 0
        self._large: tuple[bytearray, torch.Tensor] | None = None
        # Of a large one: what is still to be read.
        self._unread: list[memoryview] = []

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()
        if self._slots is not None:
            self._slots.close()

    def advance(self) -> list[Submission]:
        """Raises ConnectionError for what no client sends."""
        if self._large is None:
            self._num_read += self._receive(self._view[self._num_read :], self._slots)
            complete = self._small_ones()
            if complete or self._large is None:
                return complete
        while self._unread:
            num_read = self._receive(self._unread[0])
            if not num_read:
                return []
            drop_sent(self._unread, num_read)
        message, payload = self._large
        self._large = None
        return [self._submission(partial(self._reader.read, bytes(message), payload))]

    def _receive(self, view: memoryview, slots: SlotReader | None = None) -> int:
        """0 where nothing is there."""
        try:
            if slots is not None:
                num_read = slots.receive(self._connection, view)
            else:
                num_read = self._connection.recv_into(view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        if num_read == 0:
            raise ConnectionError("the client has left")
        return num_read

    def _small_ones(self) -> list[Submission]:
        """All that is complete; what comes after it moves to the front, or to memory of its own."""
        complete: list[Submission] = []
        begin, end = 0, self._num_read
        while end - begin >= HEAD.size:
            sequence, message_bytes, place, payload_bytes = HEAD.unpack_from(self._memory, begin)
            if self._slots is not None and sequence == 0:
                self._answer(self._slots.announced(place, payload_bytes))
                begin += HEAD.size
                continue
            if (
                sequence != self._num_taken + 1
                or message_bytes > _MAX_MESSAGE_BYTES
                or payload_bytes > _MAX_PAYLOAD_BYTES
                or (place != BEHIND and not fits_beside_slot(message_bytes))
            ):
                raise ConnectionError(f"microbatch {sequence} of {message_bytes} and {payload_bytes} bytes at {place}")
            payload_begin = begin + HEAD.size + message_bytes
            if place != BEHIND:
                if payload_begin > end:
                    break
                complete.append(self._in_slot(begin + HEAD.size, payload_begin, place, payload_bytes))
                begin = payload_begin
                continue
            if payload_begin + payload_bytes > end:
                if payload_begin + payload_bytes - begin > READ_BYTES:
                    self._begin_large(message_bytes, payload_bytes, self._view[begin + HEAD.size : end])
                    begin = end
                break
            message = self._view[begin + HEAD.size : payload_begin].tobytes()
            complete.append(self._small_one(message, payload_begin, payload_bytes))
            begin = payload_begin + payload_bytes
        self._num_read = end - begin
        if begin and self._num_read:
            self._memory[: self._num_read] = self._memory[begin:end]
        return complete

    def _answer(self, is_taken: bool) -> None:
        """Whether memory was taken. A client that does not ask would go on to use what was not."""
        if self._answers_memory:
            # One that does not read loses what it was told.
            with contextlib.suppress(BlockingIOError):
                self._connection.send(TAKEN if is_taken else REFUSED, socket.MSG_DONTWAIT)
        elif not is_taken:
            raise ConnectionError("no descriptor or no address space is free for the client's memory")

    def _in_slot(self, begin: int, end: int, place: int, payload_bytes: int) -> Submission:
        if self._slots is None:
            raise ConnectionError("a payload in memory that is not shared")
        payload = self._slots.payload(place, payload_bytes)
        if self._slots.ring is not None:
            self._reader.pin(self._slots.ring, place - 1, payload_bytes)
        return self._submission(partial(self._reader.read_foreign, self._view[begin:end].tobytes(), payload))

    def _small_one(self, message: bytes, begin: int, num_bytes: int) -> Submission:
        read = self._reader.copy(message, self._address + begin, num_bytes)
        if read is not None:
            return self._submission(read)
        payload = _memory_for(num_bytes)
        ctypes.memmove(payload.data_ptr(), self._address + begin, num_bytes)
        return self._submission(partial(self._reader.read, message, payload))

    def _begin_large(self, message_bytes: int, payload_bytes: int, begun: memoryview) -> None:
        message, payload = bytearray(message_bytes), _memory_for(payload_bytes)
        self._large = message, payload
        self._unread = [part for part in (memoryview(message), memory_of(payload, payload_bytes)) if len(part)]
        while begun:
            part = self._unread[0][: len(begun)]
            part[:] = begun[: len(part)]
            begun = begun[len(part) :]
            drop_sent(self._unread, len(part))

    def _submission(self, read: Callable[[], tuple[Item, ...]]) -> Submission:
        self._num_taken += 1
        return Submission(session_id=self._session_id, sequence=self._num_taken, read=read, acknowledged=False)


def _memory_for(num_bytes: int) -> torch.Tensor:
    try:
        return torch.empty(num_bytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise ConnectionError(str(error)) from None


def _memories_of(payloads: Sequence[torch.Tensor]) -> list[memoryview]:
    return [memory_of(payload, payload.nbytes) for payload in payloads]


class Outlet:
    """One client's results. What the connection does not take at once waits here, within bounds; what lies in shared
    memory is bounded by that."""

    def __init__(
        self,
        connection: socket.socket,
        shares_memory: bool = False,
        ring: Ring | None = None,
        copies: Copies | None = None,
    ) -> None:
        """`ring`: memory that the client has handed over for results. `copies`: of the GPU that results are on."""
        self._connection = connection
        self._copies = copies
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._slots = SlotWriter(ring) if shares_memory else None

    def give(self, sequence: int, message: bytes, payloads: Sequence[torch.Tensor]) -> bool:
        """False where too much waits already. To a client that has left, anything can be given."""
        with self._lock:
            if self._closed:
                return True
            buffers = self._frame(sequence, message, payloads)
            num_bytes = sum(map(len, buffers))
            if self._waiting and (
                len(self._waiting) >= MAX_WAITING_RESULTS or self._waiting_bytes + num_bytes > MAX_WAITING_BYTES
            ):
                return False
            rest = b"".join(buffers) if self._waiting else self._write(buffers, num_bytes)
            if rest:
                if not self._waiting:
                    threading.Thread(target=self._write_waiting, name="unread-results", daemon=True).start()
                self._waiting.append(rest)
                self._waiting_bytes += len(rest)
            return True

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._waiting)

    def end(self) -> None:
        """What waits is dropped; whoever polls the connection sees its end."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            if self._slots is not None:
                self._slots.close()
            self._changed.notify_all()
        # Also ends a write that waits.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._connection.close()

    def _frame(self, sequence: int, message: bytes, payloads: Sequence[torch.Tensor]) -> list[bytes | memoryview]:
        slots, copies = self._slots, self._copies
        if copies is None:
            return self._framed(sequence, message, payloads)
        num_bytes = bytes_together([payload.nbytes for payload in payloads])
        if slots is None or num_bytes < PINNED_BYTES or not fits_beside_slot(len(message)):
            return self._framed(sequence, message, copies.to_host(payloads))
        slot = slots.take(num_bytes, self._announce)
        if slot is None:
            return framed(sequence, message, _memories_of(copies.to_host(payloads)))
        assert slots.ring is not None, "a slot of no memory"
        if copies.pin(slots.ring, slot, num_bytes):
            copies.to_slot(payloads, slots.ring, slot)
        else:
            slots.write(slot, _memories_of(copies.to_host(payloads)))
        return framed_beside_slot(sequence, message, slot, num_bytes)

    def _framed(self, sequence: int, message: bytes, payloads: Sequence[torch.Tensor]) -> list[bytes | memoryview]:
        memories = _memories_of(payloads)
        if self._slots is None:
            return framed(sequence, message, memories)
        return self._slots.frame(sequence, message, memories, self._announce)

    def _announce(self, ring: Ring, descriptor: int) -> bool:
        """False where it would have to wait: a descriptor cannot."""
        if self._waiting:
            return False
        try:
            send_announcement(self._connection, ring, descriptor)
        except OSError:
            # Full; or the client has left, as the door's thread will find out.
            return False
        return True

    def _write(self, buffers: Sequence[bytes | memoryview], num_bytes: int) -> bytes:
        """What the connection does not take at once."""
        views: list[memoryview] = []
        try:
            num_sent = self._connection.sendmsg(buffers[:MAX_BUFFERS], (), socket.MSG_DONTWAIT)
            if num_sent == num_bytes:
                return b""
            views = [memoryview(buffer) for buffer in buffers]
            drop_sent(views, num_sent)
            while views:
                drop_sent(views, self._connection.sendmsg(views[:MAX_BUFFERS], (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return b"".join(views or buffers)
        except OSError:
            # It has left; the door's thread will find out.
            pass
        return b""

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._closed:
                    self._changed.notify_all()
                    return
                oldest = self._waiting[0]
            with contextlib.suppress(OSError):
                self._connection.sendall(oldest)
            with self._changed:
                if self._waiting and self._waiting[0] is oldest:
                    self._waiting.popleft()
                    self._waiting_bytes -= len(oldest)
