"""What all tests share."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from multiprocessing import forkserver

import pytest

PRELOADED = ["planner.api.computing", "planner.api.tasks", "stage_daemon.worker.preload"]
EXIT_STATUS = pytest.StashKey[int]()


@pytest.fixture(scope="session", autouse=True)
def one_forkserver() -> None:
    """A process has one forkserver, and here it serves both services: it is started with what either preloads."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[EXIT_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the process once all is reported and cleaned up, without waiting for threads of C++ libraries.

    gRPC, torch and tqdm leave daemon threads; CPython ends those by unwinding, which aborts inside of C++.
    """
    if EXIT_STATUS in config.stash and not hasattr(config, "workerinput"):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[EXIT_STATUS])
