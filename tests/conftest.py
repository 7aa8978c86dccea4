"""What all tests share."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

import pytest

PRELOADED = ["planner.api.computing", "planner.api.tasks", "stage_daemon.worker.preload"]


@pytest.fixture(scope="session", autouse=True)
def one_forkserver() -> None:
    """A process has one forkserver, and here it serves both services: it is started with what either preloads."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
