"""Planners and daemons that tests start, forked from a process that has imported both: what each imports anew takes
seconds of computing, and the suite starts more than a hundred.

Each is a process as any other: of its own id, environment, output and forkserver, killed and waited for as a program
is. What a program does before its `main`, and how it ends with its parent, is left to the tests that start programs:
those of LocalCluster, of the commands, and of the services' own `__main__`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, current_process, forkserver, get_context, process
from pathlib import Path
from typing import IO, Any

from planner.client import local_cluster

# As `subprocess` has them, in whose place this module stands.
PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired
SERVICES = ("planner", "stage_daemon")
# What is read as an interpreter starts or as a library is imported; a service reads others itself once it runs.
READ_ONCE = (
    "PYTHON",
    "FAILPOINT",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "MKL_",
    "NUMBA_",
    "TORCH_",
    "CUDA_",
    "GRPC_",
    "TMP",
)
PR_SET_PDEATHSIG = 1


# What the forkserver was started with.
_environment: dict[str, str] = {}


def remember_environment() -> None:
    _environment.clear()
    _environment.update(os.environ)


def read_once_and_changed(environment: Mapping[str, str]) -> set[str]:
    """The variables that ask for an interpreter of its own, where a service is started with them."""
    names = environment.keys() | _environment.keys()
    return {name for name in names if name.startswith(READ_ONCE) and environment.get(name) != _environment.get(name)}


def take_back(names: Iterable[str]) -> None:
    """Gives these variables the values that the forkserver was started with."""
    for name in names:
        os.environ.pop(name, None)
        if name in _environment:
            os.environ[name] = _environment[name]


@contextmanager
def environment_as_before() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def Popen(command: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes], **options: Any) -> Any:
    """Forks a service where the command is one's and its environment asks for no interpreter of its own."""
    begins = len(local_cluster._END_WITH_PARENT)
    python, dash_m, service, *_ = (*command[begins:], "", "", "")
    is_service = (python, dash_m) == (sys.executable, "-m") and service in SERVICES
    if not is_service or read_once_and_changed(env):
        return subprocess.Popen(command, env=env, stderr=stderr, **options)
    return ForkedService(command[begins + 2 :], dict(env), stderr)


class ForkedService:
    """As much of subprocess.Popen as LocalCluster uses."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], stderr: IO[bytes]) -> None:
        self.args = command
        output, its_output = connection.Pipe(duplex=False)
        log = connection.Connection(os.dup(stderr.fileno()), readable=False)
        self._process = get_context("forkserver").Process(
            target=_run, args=(tuple(command), environment, its_output, log), daemon=True
        )
        self._process.start()
        # Else any other process's start asks for its status too, and one of two who ask at once gets a wrong one.
        process._children.discard(self._process)  # type: ignore[attr-defined]
        its_output.close()
        log.close()
        self.stdout = os.fdopen(os.dup(output.fileno()), encoding="utf-8")
        output.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._ending = threading.Lock()

    def poll(self) -> int | None:
        with self._ending:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutExpired(self.args, timeout or 0.0)
            connection.wait([self._process.sentinel], remaining)
        return status

    def send_signal(self, number: int) -> None:
        """To one that ends at the same time it does nothing: the forkserver waits for it, so its id may be gone before
        its status is here."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: connection.Connection,
    log: connection.Connection,
) -> None:
    """In the child, before it has any thread."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.dup2(output.fileno(), 1)
    os.dup2(log.fileno(), 2)
    output.close()
    log.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    name, *arguments = command
    sys.argv = [name, *arguments]
    # It starts processes of its own, which only one that is no daemon in multiprocessing's sense may.
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    _have_own_forkserver()
    os._exit(_status_of(importlib.import_module(f"{name}.__main__").main, arguments))


def _status_of(main: Any, arguments: Sequence[str]) -> int:
    try:
        return int(main(arguments) or 0)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _have_own_forkserver() -> None:
    """What multiprocessing would start as a program is forked; it ends with this process, as that would."""
    own: Any = forkserver._forkserver
    # That of the tests must not wait for this process.
    os.close(own._forkserver_alive_fd)
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    Path(address).chmod(0o600)
    listener.listen()
    ends_with, alive = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        os.close(alive)
        try:
            forkserver.main(listener.detach(), ends_with, [])
        finally:
            os._exit(0)
    listener.close()
    os.close(ends_with)
    own._forkserver_address, own._forkserver_alive_fd, own._forkserver_pid = address, alive, process_id
