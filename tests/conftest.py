"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

import tests.forked_services
from planner.client import local_cluster
from tests.sharing import BySharedServices, in_order
from tests.without_torch import needs_torch

PRELOADED = ["planner.api.preload", "stage_daemon.worker.preload", "tests.service_imports"]
EXIT_STATUS = pytest.StashKey[int]()
# What only a test marked `services` may do, by the names of Python's audit events.
SERVICE_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "sqlite3.connect"})

# Before torch is imported: several test processes share the cores, and what they compute is small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Until all tests are collected: what is imported stays, and looking through it again and again takes a third of that.
gc.disable()
ALLOCATIONS_BETWEEN_COLLECTIONS = 10_000

# In numba's names of types: of `array(float64, 3d, C)` and of `Array(int64, 2, 'C', False, aligned=True)`.
LAYOUT = re.compile(r"(?<=d, )[CFA]|(?<=')[CFA](?=')")
_unmarked_test: list[str] = []
_compiled_twice: set[str] = set()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Where torch is not installed, as on a planner's host, the files that import it are left out."""
    if find_spec("torch") is None and collection_path.suffix == ".py" and needs_torch(collection_path):
        return True
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> BySharedServices:
    # As in_order has them.
    config.option.loadscopereorder = False
    return BySharedServices(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order(items)


def pytest_collection_finish() -> None:
    """Little of what is there is garbage, which a collection would take most of a second to find."""
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])
    gc.enable()
    # pytest listens to whatever hands its records to nobody else, and torch writes all that it captures there as soon
    # as anybody listens.
    logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What clients remember, and what the processes of a run share, goes where it ends with the tests."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PLANNER_TESTS_SHARED", str(shared))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_forkserver(request: pytest.FixtureRequest) -> None:
    """A process has one forkserver, and here it serves both services: it is started with what either preloads."""
    if any(item.get_closest_marker("services") for item in request.session.items):
        multiprocessing.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def forked_services(one_forkserver: None, own_folders: None) -> Iterator[None]:
    """What LocalCluster starts is forked, but where a test asks for `started_programs`."""
    tests.forked_services.remember_environment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_cluster, "subprocess", tests.forked_services)
        yield


@pytest.fixture
def started_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "subprocess", subprocess)


@pytest.fixture
def program_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that call the planner's `main`: what it sets for its whole process is undone."""
    monkeypatch.setattr("planner.api.logs.configure_logs", lambda level, form: None)
    with tests.forked_services.environment_as_before():
        yield
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test draws without a seed of its own is the same in every run, whatever ran before it."""
    random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Refuses a test that leaves its process otherwise than it was, and makes it so for those after it."""
    result = yield
    changed = sorted(tests.forked_services.read_once_and_changed(os.environ))
    tests.forked_services.take_back(changed)
    collects = gc.isenabled()
    gc.enable()
    assert not changed, f"{item.nodeid} leaves {', '.join(changed)} in the environment"
    assert collects, f"{item.nodeid} leaves garbage collections disabled"
    twice = {kernel.__name__ for kernel in _kernels() if _is_compiled_twice(kernel)} - _compiled_twice
    _compiled_twice.update(twice)
    assert not twice, f"{item.nodeid} has {', '.join(sorted(twice))} compiled for arrays of a second layout"
    return result


def _kernels() -> list[Any]:
    """What a user's process compiles where it is not kept yet: seconds for each layout of its arguments."""
    module = sys.modules.get("planner.partition.placement.compiled")
    return module.KERNELS if module is not None and module.HAS_COMPILER else []


def _is_compiled_twice(kernel: Any) -> bool:
    """For arguments that differ in their layout (C, F or A) alone."""
    if len(kernel.signatures) < 2:
        return False
    from numba.types import unliteral

    signatures = {str(tuple(map(unliteral, signature))) for signature in kernel.signatures}
    return len({LAYOUT.sub("", signature) for signature in signatures}) < len(signatures)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("services") is None:
        _unmarked_test.append(item.nodeid)
    try:
        return (yield)
    finally:
        _unmarked_test.clear()


def _refuse_services(event: str, arguments: tuple[object, ...]) -> None:
    if _unmarked_test and event in SERVICE_EVENTS:
        raise AssertionError(f"{_unmarked_test[-1]} does {event} {arguments[:1]}; mark it @pytest.mark.services")


sys.addaudithook(_refuse_services)


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
