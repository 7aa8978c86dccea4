"""A planner and its daemons as child processes of this one: for trying out, examples and tests.

Everything listens on free loopback ports and ends with the parent, however the parent ends.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from access.addresses import parse_endpoint
from access.errors import WrongAddress
from planner.errors import InvalidArgument, Unavailable

# A busy machine takes minutes to import what a service needs; a service that dies is noticed at once.
START_SECONDS = 300.0
STOP_SECONDS = 15.0
DAEMONS_SHARE = 2 / 3
_ADDRESS = re.compile(r"(\S+:\d+)\s*$")
# Asks the kernel (prctl 1 is PR_SET_PDEATHSIG) for SIGTERM when the parent dies, then becomes the service. A program of
# its own, not a preexec_fn: what gRPC does around a fork would hang or crash the child of a process that uses gRPC.
_BECOME = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
_END_WITH_PARENT = (sys.executable, "-ISc", _BECOME) if sys.platform == "linux" else ()


class ServiceProcess:
    """One service. Its log goes to `log_path`; the line it prints when it is ready ends with its address."""

    def __init__(self, command: Sequence[str], log_path: Path, environment: dict[str, str] | None = None) -> None:
        self.command = tuple(command)
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*_END_WITH_PARENT, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(environment or {})},
                # A terminal's Ctrl-C is for the parent, which ends its services in order.
                process_group=0,
            )
        self.address = ""

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative is the signal that ended it."""
        return self._process.poll()

    def wait_until_ready(self, timeout_seconds: float = START_SECONDS) -> str:
        """The address it listens on. Raises Unavailable, with the end of its log, if it ends or stays silent."""
        line = self._read_line(timeout_seconds)
        match = _ADDRESS.search(line)
        if match is None:
            self.kill()
            raise Unavailable(f"{' '.join(self.command)} did not start: {self._log_end() or line or 'it said nothing'}")
        self.address = match.group(1)
        return self.address

    def ask_to_end(self) -> None:
        if self.exit_status is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> None:
        """Asks it to end; kills it if it has not by the deadline."""
        self.ask_to_end()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_output()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close_output()

    def _read_line(self, timeout_seconds: float) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._process.stdout.readline() if selector.select(timeout_seconds) else ""

    def _log_end(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:].strip()

    def _close_output(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()


class LocalCluster:
    """`with LocalCluster(data_dir=..., memory_bytes=(a, b)) as cluster:` runs a planner and one daemon per memory size.

    Devices are called `local/<device><index>`. `gpus` are the numbers of the daemons' GPUs where `device` is "cuda": by
    default each has one of its own. `planner_arguments` and `daemon_arguments` are added to the commands. What has not
    ended by itself within `stop_seconds` is killed. Raises InvalidArgument for an address that is none, and for a data
    folder that cannot be made, Unavailable where a service does not start.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        memory_bytes: Sequence[int | None],
        device: str = "cpu",
        gpus: Sequence[int] | None = None,
        planner_listen: str = "127.0.0.1:0",
        planner_arguments: Sequence[str] = (),
        daemon_arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        try:
            parse_endpoint(planner_listen)
        except WrongAddress as error:
            raise InvalidArgument(error.message) from None
        self._stop_seconds = stop_seconds
        self.data_dir = data_dir
        self._memory_bytes = tuple(memory_bytes)
        self._device = device
        self._gpus = tuple(range(len(self._memory_bytes)) if gpus is None else gpus)
        self._planner_listen = planner_listen
        self._planner_arguments = tuple(planner_arguments)
        self._daemon_arguments = tuple(daemon_arguments)
        self._environment = environment
        self.planner: ServiceProcess | None = None
        self.daemons: dict[str, ServiceProcess] = {}

    @property
    def planner_address(self) -> str:
        assert self.planner is not None
        return self.planner.address

    def __enter__(self) -> LocalCluster:
        """The daemons start beside the planner, and wait for it: what each imports takes most of the time."""
        try:
            with _kept_port(self._planner_listen) as listen:
                planner = self._launch_planner(listen)
                for index in range(len(self._memory_bytes)):
                    self._launch_daemon(index, listen)
                planner.wait_until_ready()
            for daemon in self.daemons.values():
                daemon.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_planner(self) -> ServiceProcess:
        """Starts the planner, or starts it again on the address it had."""
        planner = self._launch_planner(self.planner.address if self.planner else self._planner_listen)
        planner.wait_until_ready()
        return planner

    def start_daemon(self, index: int) -> ServiceProcess:
        """Starts the daemon of one device, also after the one before it died."""
        daemon = self._launch_daemon(index, self.planner_address)
        daemon.wait_until_ready()
        return daemon

    def device_id(self, index: int) -> str:
        return f"local/{self._device}{index}"

    def stop(self) -> None:
        """Daemons first, side by side: they drain, and tell the planner, which has what is left of the time."""
        begins_at = time.monotonic()
        daemons = list(self.daemons.values())
        for daemon in daemons:
            daemon.ask_to_end()
        for daemon in daemons:
            daemon.stop(max(0.0, begins_at + DAEMONS_SHARE * self._stop_seconds - time.monotonic()))
        if self.planner is not None:
            self.planner.stop(max(0.0, begins_at + self._stop_seconds - time.monotonic()))

    def _launch_planner(self, listen: str) -> ServiceProcess:
        command = [sys.executable, "-m", "planner", "--listen", listen, "--data-dir", str(self.data_dir)]
        self.planner = self._launch([*command, *self._planner_arguments], "planner-server")
        return self.planner

    def _launch_daemon(self, index: int, planner_address: str) -> ServiceProcess:
        device = ("--device", "cpu") if self._device == "cpu" else ("--gpu", str(self._gpus[index]))
        command = [sys.executable, "-m", "stage_daemon", *device, "--device-id", self.device_id(index)]
        command += ["--planner", planner_address, "--listen", "127.0.0.1:0"]
        memory = self._memory_bytes[index]
        if memory is not None:
            command += ["--memory", str(memory)]
        daemon = self._launch([*command, *self._daemon_arguments], f"stage-daemon-{index}")
        self.daemons[self.device_id(index)] = daemon
        return daemon

    def _launch(self, command: Sequence[str], name: str) -> ServiceProcess:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"data folder {self.data_dir} cannot be made: {error.strerror}") from None
        return ServiceProcess(command, self.data_dir / f"{name}.log", self._environment)


@contextmanager
def _kept_port(listen: str) -> Iterator[str]:
    """The address with a free port in place of port 0: nobody else gets it meanwhile, but a gRPC server can have it.

    An address that cannot be had is left to the service, which says so.
    """
    endpoint = parse_endpoint(listen)
    with socket.socket(socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET) as holder:
        if endpoint.port == 0:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                holder.bind((endpoint.host, 0))
                endpoint = replace(endpoint, port=holder.getsockname()[1])
        yield str(endpoint)
