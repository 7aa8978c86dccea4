"""How a supervisor and its worker speak over a socketpair: a fixed head, then a protobuf message's bytes.

Nothing is pickled: what a client sent stays bytes until the worker has checked it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class FrameKind(IntEnum):
    """What the body holds; frames without a named message have an empty body."""

    # Supervisor to worker.
    LOAD = 1  # LoadStagesRequest
    CONNECT = 2  # ConnectStagesRequest
    INPUT = 3  # Microbatch
    OUTPUT_TAKEN = 4
    METRICS = 5
    DRAIN = 6
    PROFILE = 7  # ProfileRequest; `sequence` is the distinct node to start from
    TRAIN = 8  # TrainRequest
    TIMELINE = 9  # GetTimelineRequest
    CHOOSE = 10  # OpenSession; without outputs the session is over
    SAVE_SNAPSHOT = 11
    KEEP_BUSY = 12  # ProfileRequest
    # Worker to supervisor.
    LOAD_PROGRESS = 32  # LoadStagesResponse
    LOADED = 33
    CONNECTED = 34  # WorkerDoor
    INPUT_TAKEN = 35
    OUTPUT = 36  # ReceiveOutputsResponse
    METRICS_REPLY = 37  # GetDaemonStatusResponse, only its stages
    DRAINED = 38
    FAILED = 39  # Failure
    INPUT_REFUSED = 40  # Failure
    PROFILE_NODES = 41  # ProfileResponse, all distinct nodes without times
    PROFILE_STEP = 42  # ProfileResponse
    PROFILED = 43  # ProfileResponse, empty
    BUSY = 50
    TRAINED = 45  # TrainResponse; `sequence` is 1 where more of the same request follow
    RESULTS_UNREAD = 44  # only a session id: its client at the worker's door leaves too many results unread
    TIMELINE_REPLY = 46  # GetTimelineResponse, only its threads
    CHOSEN = 47  # Failure, or nothing
    SNAPSHOT_SAVED = 48  # SaveSnapshotResponse
    SNAPSHOT_NOT_SAVED = 49  # Failure


# What a profiling process exits with whose device is lost to it; its last PROFILE_STEP says of which node.
LOST_EXIT_CODE = 3

# What may wait for a client that reads slowly. Clients bound what they have in flight far below this.
MAX_WAITING_RESULTS = 256
MAX_WAITING_BYTES = 1 << 30

# Kind, session id, sequence, length of the body.
HEAD = struct.Struct("<BQQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    kind: FrameKind
    session_id: int = 0
    sequence: int = 0
    body: bytes = b""

    def head(self, more_bytes: int = 0) -> bytes:
        return HEAD.pack(self.kind, self.session_id, self.sequence, len(self.body) + more_bytes)


def write_frame(connection: socket.socket, frame: Frame, more: Sequence[bytes | memoryview] = ()) -> None:
    """Blocks until the kernel has it all. Not atomic: callers that share a socket hold a lock. `more` of the body
    follows from where it is."""
    connection.sendall(frame.head(sum(map(len, more))))
    for part in (frame.body, *more):
        if part:
            connection.sendall(part)


def read_frame(connection: socket.socket) -> Frame | None:
    """The next frame; None once the other end is gone."""
    head = _read_exactly(connection, HEAD.size)
    if head is None:
        return None
    kind, session_id, sequence, length = HEAD.unpack(head)
    body = _read_exactly(connection, length)
    if body is None:
        return None
    return Frame(kind=FrameKind(kind), session_id=session_id, sequence=sequence, body=body)


def _read_exactly(connection: socket.socket, length: int) -> bytes | None:
    """In one piece where the kernel is not disturbed, so that nothing is copied a second time."""
    content = b""
    while len(content) < length:
        try:
            received = connection.recv(length - len(content), socket.MSG_WAITALL)
        except ConnectionError:
            return None
        if not received:
            return None
        content = content + received if content else received
    return content
