"""Planner-servers of one database, as processes that can be killed and started again where they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import WAIT_SECONDS

READY = "planner-server listening on "


class PlannerProcess:
    """`address` stays the same from start to start."""

    def __init__(self, folder: Path, database_url: str, blobs: Path, **settings: str) -> None:
        self.address = "127.0.0.1:0"
        self._folder = folder
        self._environment = {
            **os.environ,
            "PLANNER_DATABASE_URL": database_url,
            "PLANNER_BLOB_URL": blobs.as_uri(),
            "PLANNER_DATA_DIR": str(folder),
            **{f"PLANNER_{name.upper()}": text for name, text in settings.items()},
        }
        self._process: subprocess.Popen[str] | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with (self._folder.parent / f"{self._folder.name}.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "planner", "--listen", self.address],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), (self._folder.parent / f"{self._folder.name}.log").read_text()
        self.address = line.removeprefix(READY).strip()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.communicate(timeout=WAIT_SECONDS)


@contextmanager
def running_planners(count: int, folder: Path, database_url: str, **settings: str) -> Iterator[list[PlannerProcess]]:
    """On one database, which they migrate, and one folder of blobs; each has a folder for unfinished uploads."""
    planners = [
        PlannerProcess(folder / f"planner{index}", database_url, folder / "blobs", **settings) for index in range(count)
    ]
    try:
        with ThreadPoolExecutor(count) as starts:
            list(starts.map(PlannerProcess.start, planners))
        yield planners
    finally:
        for planner in planners:
            planner.kill()
