"""Reads graphs and byte ranges of weights from the planner, and uploads what training saves to it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence

import grpc

from access.channels import open_channel
from access.files import TlsFiles, WatchedCredentials
from access.unanswered import is_unanswered
from protos.v1 import planner_pb2, planner_pb2_grpc
from stage_daemon.errors import NotFound, StateMismatch, Unavailable

# Chunks are of at most 1 MiB, and a little goes to the message around them.
_MAX_MESSAGE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
# Half a minute without a new byte: longer than a planner, or its database, takes to be started again.
MAX_FRUITLESS_ROUNDS = 20
FIRST_PAUSE_SECONDS = 0.1
MOST_PAUSE_SECONDS = 2.0
# An upload slower than this is broken off, and goes on in a new stream.
_LEAST_BYTES_PER_SECOND = 1 << 20
_PATIENCE_SECONDS = 30.0


class BlobClient:
    """Made in the worker itself: a channel does not survive a fork. `address` may name several planners: "a:1,b:2"."""

    def __init__(self, address: str, tls: TlsFiles | None = None) -> None:
        self._address = address
        options = (("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),)
        credentials = WatchedCredentials(tls) if tls else None
        self._channels = [open_channel(one, credentials, options) for one in address.split(",")]
        self._planners = [planner_pb2_grpc.PlannerServiceStub(channel) for channel in self._channels]

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def read_whole(self, sha256: bytes) -> bytes:
        """Raises StateMismatch if the bytes are not what their name says."""
        content = b"".join(self.read_range(sha256, 0, 0))
        digest = hashlib.sha256(content).digest()
        if digest != sha256:
            raise StateMismatch(
                f"blob {sha256.hex()} at {self._address} has {len(content)} bytes of sha256 {digest.hex()}"
            )
        return content

    def read_range(self, sha256: bytes, offset_bytes: int, length_bytes: int) -> Iterator[bytes]:
        """Chunks in order; a length of 0 means to the end. What is broken off goes on at the next planner.

        Raises NotFound or Unavailable.
        """
        end_bytes = offset_bytes + length_bytes if length_bytes else 0
        rounds = _Rounds()
        while True:
            for planner in self._planners:
                request = planner_pb2.ReadBlobRequest(
                    sha256=sha256, offset_bytes=offset_bytes, length_bytes=end_bytes - offset_bytes if end_bytes else 0
                )
                try:
                    for response in planner.ReadBlob(request):
                        offset_bytes += len(response.chunk)
                        rounds.progressed()
                        yield response.chunk
                        if offset_bytes == end_bytes:
                            return
                    return
                except grpc.RpcError as error:
                    message = f"blob {sha256.hex()} from {self._address}: {error.details()}"
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        raise NotFound(message) from None
                    if not is_unanswered(error):
                        raise Unavailable(message) from None
            if not rounds.go_on():
                raise Unavailable(message)

    def upload(self, sha256: bytes, pieces: Sequence[memoryview]) -> None:
        """Returns once a planner holds these bytes; what one has is not sent again. Raises Unavailable."""
        rounds, committed = _Rounds(), -1
        while True:
            for planner in self._planners:
                try:
                    upload = planner.GetUpload(planner_pb2.GetUploadRequest(sha256=sha256), timeout=_PATIENCE_SECONDS)
                    if upload.committed_bytes > committed:
                        committed = upload.committed_bytes
                        rounds.progressed()
                    if upload.complete or self._send(planner, sha256, pieces, upload.committed_bytes).complete:
                        return
                except grpc.RpcError as error:
                    if error.code() not in _PASSING and not is_unanswered(error):
                        raise Unavailable(f"upload to {self._address}: {error.details()}") from None
            if not rounds.go_on():
                raise Unavailable(f"blob {sha256.hex()} could not be uploaded to {self._address}: no planner takes it")

    def _send(
        self, planner: planner_pb2_grpc.PlannerServiceStub, sha256: bytes, pieces: Sequence[memoryview], offset: int
    ) -> planner_pb2.Upload:
        size_bytes = sum(map(len, pieces))
        seconds = _PATIENCE_SECONDS + (size_bytes - offset) / _LEAST_BYTES_PER_SECOND
        return planner.UploadBlob(_requests(sha256, pieces, size_bytes, offset), timeout=seconds)


class _Rounds:
    """Through all planners, until so many in a row have brought nothing new; the pauses in between double up to the
    most."""

    def __init__(self) -> None:
        self._num_fruitless = 0

    def progressed(self) -> None:
        self._num_fruitless = 0

    def go_on(self) -> bool:
        """After a round: whether to begin another one, once a pause is over."""
        self._num_fruitless += 1
        if self._num_fruitless == MAX_FRUITLESS_ROUNDS:
            return False
        time.sleep(min(MOST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**self._num_fruitless))
        return True


# The planner is slow, or has not let go of a broken stream yet.
_PASSING = frozenset(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ABORTED,
    }
)


def _requests(
    sha256: bytes, pieces: Sequence[memoryview], size_bytes: int, offset: int
) -> Iterator[planner_pb2.UploadBlobRequest]:
    yield planner_pb2.UploadBlobRequest(
        begin=planner_pb2.UploadBlobRequest.Begin(sha256=sha256, size_bytes=size_bytes, offset_bytes=offset)
    )
    for piece in pieces:
        for start in range(min(offset, len(piece)), len(piece), _CHUNK_BYTES):
            yield planner_pb2.UploadBlobRequest(chunk=bytes(piece[start : start + _CHUNK_BYTES]))
        offset = max(0, offset - len(piece))
