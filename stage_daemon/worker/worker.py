"""Serves one supervisor."""

from __future__ import annotations

import socket

from stage_daemon.worker.frames import read_frame


class Worker:
    def __init__(
        self, connection: socket.socket, *, deployment_id: str, generation: int, device: str, blob_address: str
    ) -> None:
        self._connection = connection

    def serve(self) -> None:
        while read_frame(self._connection) is not None:
            pass
