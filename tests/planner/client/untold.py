"""A call of gRPC as it was seen where a daemon was being started again: it has its status, and its reader waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from tests.waiting import WAIT_SECONDS


class Untold(grpc.RpcError, grpc.Call):
    """Refused; its reader is told once it `is_over`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()

    def __next__(self) -> object:
        self.is_over.wait(2 * WAIT_SECONDS)
        raise self

    def __iter__(self) -> Untold:
        return self

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """It has its status already."""
        return False

    def cancel(self) -> bool:
        return False

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect to all addresses"

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> None:
        return None

    def initial_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()
