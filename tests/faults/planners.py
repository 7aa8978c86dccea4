"""Planner-servers of one database, as processes that can be killed and started again where they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.client.local_cluster import ServiceProcess
from tests.waiting import WAIT_SECONDS


class PlannerProcess:
    """`address` stays the same from start to start."""

    def __init__(self, folder: Path, database_url: str, blobs: Path, **settings: str) -> None:
        self.address = "127.0.0.1:0"
        self._log_path = folder.parent / f"{folder.name}.log"
        self._environment = {
            "PLANNER_DATABASE_URL": database_url,
            "PLANNER_BLOB_URL": blobs.as_uri(),
            "PLANNER_DATA_DIR": str(folder),
            **{f"PLANNER_{name.upper()}": text for name, text in settings.items()},
        }
        self._process: ServiceProcess | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.process_id

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        command = [sys.executable, "-m", "planner", "--listen", self.address]
        self._process = ServiceProcess(command, self._log_path, self._environment)

    def wait_until_ready(self) -> None:
        assert self._process is not None
        self.address = self._process.wait_until_ready()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(WAIT_SECONDS)


@contextmanager
def running_planners(count: int, folder: Path, database_url: str, **settings: str) -> Iterator[list[PlannerProcess]]:
    """On one database, which they migrate, and one folder of blobs; each has a folder for unfinished uploads."""
    planners = [
        PlannerProcess(folder / f"planner{index}", database_url, folder / "blobs", **settings) for index in range(count)
    ]
    try:
        for planner in planners:
            planner.launch()
        for planner in planners:
            planner.wait_until_ready()
        yield planners
    finally:
        for planner in planners:
            planner.kill()
