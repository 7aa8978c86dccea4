"""A service that is forked is to whoever started it what a program is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from planner.client.local_cluster import ServiceProcess
from tests import forked_services
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = pytest.mark.services


def planner(folder: Path, *arguments: str, **environment: str) -> ServiceProcess:
    command = [sys.executable, "-m", "planner", "--listen", "127.0.0.1:0", *arguments]
    return ServiceProcess(command, folder / "log", {"PLANNER_DATA_DIR": str(folder / "data"), **environment})


def test_it_has_its_environment_and_its_group_and_ends_in_order(tmp_path: Path) -> None:
    process = planner(tmp_path)
    assert isinstance(process._process, forked_services.ForkedService)
    address = process.wait_until_ready(WAIT_SECONDS)
    assert os.getpgid(process.process_id) == process.process_id
    ports = {listening.laddr.port for listening in psutil.Process(process.process_id).net_connections()}
    assert int(address.rpartition(":")[2]) in ports
    process.stop(WAIT_SECONDS)
    assert process.exit_status == 0
    assert (tmp_path / "data" / "planner.db").exists()


def test_who_is_killed_takes_its_forkserver_along(tmp_path: Path) -> None:
    process = planner(tmp_path)
    process.wait_until_ready(WAIT_SECONDS)
    children = psutil.Process(process.process_id).children(recursive=True)
    assert children
    process.kill()
    assert process.exit_status == -signal.SIGKILL
    wait_for(lambda: not any(child.is_running() for child in children), "its processes to end")


def test_wrong_arguments_end_it_as_they_end_a_program(tmp_path: Path) -> None:
    process = planner(tmp_path, "--nonsense")
    with pytest.raises(Exception, match="unrecognized arguments: --nonsense"):
        process.wait_until_ready(WAIT_SECONDS)
    other = planner(tmp_path, "--nonsense")
    wait_for(lambda: other.exit_status is not None, "it to end")
    assert other.exit_status == 2


def test_what_an_interpreter_reads_starts_a_program(tmp_path: Path) -> None:
    process = planner(tmp_path, "--nonsense", PYTHONOPTIMIZE="1")
    try:
        assert isinstance(process._process, subprocess.Popen)
    finally:
        process.kill()


def test_a_signal_for_one_that_ends_at_the_same_time_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = planner(tmp_path, "--nonsense")
    wait_for(lambda: process.exit_status is not None, "it to end")
    wait_for(lambda: not psutil.pid_exists(process.process_id), "its id to be gone")
    monkeypatch.setattr(process._process, "poll", lambda: None)
    process._process.send_signal(signal.SIGTERM)
