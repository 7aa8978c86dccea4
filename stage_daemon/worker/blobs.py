"""Reads graphs and byte ranges of weights from the planner."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import grpc

from access.channels import open_channel
from access.files import TlsFiles, WatchedCredentials
from protos.v1 import planner_pb2, planner_pb2_grpc
from stage_daemon.errors import NotFound, StateMismatch, Unavailable

# Chunks are of at most 1 MiB, and a little goes to the message around them.
_MAX_MESSAGE_BYTES = 64 << 20


class BlobReader:
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
        found = hashlib.sha256(content).digest()
        if found != sha256:
            raise StateMismatch(
                f"blob {sha256.hex()} at {self._address} has {len(content)} bytes of sha256 {found.hex()}"
            )
        return content

    def read_range(self, sha256: bytes, offset_bytes: int, length_bytes: int) -> Iterator[bytes]:
        """Chunks in order; a length of 0 means to the end. Raises NotFound or Unavailable."""
        end_bytes = offset_bytes + length_bytes if length_bytes else 0
        for planner in self._planners:
            request = planner_pb2.ReadBlobRequest(
                sha256=sha256, offset_bytes=offset_bytes, length_bytes=end_bytes - offset_bytes if end_bytes else 0
            )
            try:
                for response in planner.ReadBlob(request):
                    yield response.chunk
                    offset_bytes += len(response.chunk)
                    if offset_bytes == end_bytes:
                        return
                return
            except grpc.RpcError as error:
                message = f"blob {sha256.hex()} from {self._address}: {error.details()}"
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    raise NotFound(message) from None
                if error.code() is not grpc.StatusCode.UNAVAILABLE or planner is self._planners[-1]:
                    raise Unavailable(message) from None
