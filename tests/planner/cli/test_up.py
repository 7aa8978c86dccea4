"""`up` without its services: what its signals mean, what it was given, what it shows, when it ends by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from planner.cli import exit_codes
from planner.cli.commands import up
from planner.client.local_cluster import LocalCluster
from planner.errors import Unavailable
from tests.planner.cli.conftest import RunCli

NUMBERS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


@contextmanager
def started_with(*ignored: signal.Signals) -> Iterator[None]:
    """As a process whose parent has it ignore these signals, and no others."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_each_signal_that_ends_it_is_an_interruption(number: signal.Signals) -> None:
    with started_with(), up._terminated_as_interrupted(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_it_was_started_to_ignore_stays_ignored(number: signal.Signals) -> None:
    with started_with(number), up._terminated_as_interrupted():
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.raise_signal(number)


def test_sigterm_ends_it_always() -> None:
    with started_with(*NUMBERS), up._terminated_as_interrupted(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_afterwards_signals_mean_what_they_did() -> None:
    with started_with(signal.SIGHUP):
        before = [signal.getsignal(number) for number in NUMBERS]
        with up._terminated_as_interrupted():
            assert [signal.getsignal(number) for number in NUMBERS] != before
        assert [signal.getsignal(number) for number in NUMBERS] == before


def test_it_says_how_it_ends() -> None:
    with started_with():
        assert up._how_to_end() == "Ctrl-C ends them all."
    with started_with(signal.SIGINT):
        assert up._how_to_end() == f"`kill {os.getpid()}` ends them all."


@pytest.mark.parametrize(
    ("sizes", "num_daemons", "each"),
    [
        ([], 2, [None, None]),
        (["1KiB"], 3, [1024, 1024, 1024]),
        (["1KiB", "2KiB"], 2, [1024, 2048]),
    ],
)
def test_memory_is_given_once_or_for_each(sizes: list[str], num_daemons: int, each: list[int | None]) -> None:
    assert up._memory_of_each(sizes, num_daemons) == each


@pytest.mark.parametrize(
    ("sizes", "says"),
    [(["1B", "2B"], "--memory is given 2 times, needs once or once for each of 3"), (["x"], "'x' is no size")],
)
def test_memory_of_some_is_refused_before_anything_starts(bare_cli: RunCli, sizes: list[str], says: str) -> None:
    options = [argument for size in sizes for argument in ("--memory", size)]
    finished = bare_cli("up", "--daemons", 3, *options)
    assert (finished.status, finished.stdout) == (exit_codes.INVALID_INPUT, "")
    assert says in finished.stderr


class Service:
    """What is asked of a service that runs, or has ended."""

    def __init__(self, index: int, exit_status: int | None = None, log: Path | None = None) -> None:
        self.process_id, self.address, self.exit_status = 100 + index, f"127.0.0.1:{index}", exit_status
        self.log_path = log or Path("no.log")


def cluster_of(planner: Service, **daemons: Service) -> LocalCluster:
    cluster = LocalCluster(data_dir=Path("."), memory_bytes=[None] * len(daemons))
    cluster.planner = planner  # type: ignore[assignment]
    cluster.daemons = daemons  # type: ignore[assignment]
    return cluster


def test_what_was_started_is_shown() -> None:
    document = up._document(cluster_of(Service(1), a=Service(2), b=Service(3)), [1 << 20, None], Path("data"))
    assert document == {
        "server": "127.0.0.1:1",
        "process_id": 101,
        "data_dir": "data",
        "daemons": [
            {"device_id": "a", "address": "127.0.0.1:2", "process_id": 102, "memory_bytes": 1 << 20},
            {"device_id": "b", "address": "127.0.0.1:3", "process_id": 103, "memory_bytes": None},
        ],
    }
    console = Console(width=120)
    with console.capture() as captured:
        console.print(up._table(document))
    words = [line.split() for line in captured.get().splitlines()]
    assert ["planner", "127.0.0.1:1", "101"] in words
    assert ["daemon", "a", "127.0.0.1:2", "102", "1", "MiB"] in words
    assert ["daemon", "b", "127.0.0.1:3", "103", "its", "own", "figure"] in words


@pytest.mark.parametrize(("log", "says"), [("x" * 2000 + "the disk is full\n", "the disk is full"), ("", "empty")])
def test_a_planner_that_ends_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, says: str) -> None:
    monkeypatch.setattr(up, "POLL_SECONDS", 0.0)
    path = tmp_path / "planner.log"
    path.write_text(log)
    with pytest.raises(Unavailable) as raised:
        up._watch(cluster_of(Service(1, exit_status=3, log=path)))
    assert raised.value.message.startswith("the planner ended with status 3; its log: ")
    assert raised.value.message.endswith(says)
    assert len(raised.value.message) < 1100


def test_a_daemon_that_ends_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(up.time, "sleep", sleep)
    ended: Any = Service(2, exit_status=-9, log=Path("daemon.log"))
    with pytest.raises(KeyboardInterrupt):
        up._watch(cluster_of(Service(1), a=ended, b=Service(3)))
    assert capsys.readouterr().err == "the daemon of a ended with status -9; its log: daemon.log\n"


@pytest.mark.parametrize(("num_daemons", "services"), [(1, "daemon has"), (3, "3 daemons have")])
def test_who_interrupts_it_is_told_that_it_has_ended(
    bare_cli: RunCli, monkeypatch: pytest.MonkeyPatch, num_daemons: int, services: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(up, "_run", interrupted)
    finished = bare_cli("up", "--daemons", num_daemons)
    assert (finished.status, finished.stderr) == (exit_codes.INTERRUPTED, f"the planner and its {services} ended\n")
