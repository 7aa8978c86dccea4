"""The command line alone, as a newcomer uses it: up, submit, plan, deploy, run, stop; at the end no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from planner.cli import exit_codes
from planner.cli.__main__ import main
from tests.job_signals import in_background, in_foreground
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

# Of whatever else the machine does meanwhile: nothing here waits for longer than it takes.
COMMAND = (sys.executable, "-m", "planner.cli")
MODULE = """
import torch

class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(10, 8)
        self.lower = torch.nn.Linear(8, 32)
        self.upper = torch.nn.Linear(32, 4)

    def forward(self, x, index):
        hidden = torch.relu(self.lower(x + self.embed(index)))
        return {"scores": self.upper(hidden), "norm": hidden.norm(dim=-1)}

def build():
    rows = torch.export.Dim("rows", min=1, max=64)
    example = {"x": torch.randn(3, 8), "index": torch.tensor([1, 2, 3])}
    return Tower().eval(), example, {"x": {0: rows}, "index": {0: rows}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    returncode: int
    stdout: str
    stderr: str


class CommandLine:
    """Commands in one folder and with one config: `up` as a process of its own, the others in this one."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "towers.py").write_text(MODULE)
        self.folder = folder
        self.announced = folder / "local-server.yaml"
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Finished:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return Finished(returncode=int(ended.value.code or 0), stdout=captured.out, stderr=captured.err)

    def document(self, *arguments: object) -> Any:
        finished = self(*arguments, "-o", "json")
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    @contextmanager
    def up(
        self, *arguments: object, started: Callable[[list[str]], list[str]] = in_foreground
    ) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "up.log").open("wb") as log:
            process = subprocess.Popen(
                started([*COMMAND, "up", *map(str, arguments)]),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_for(lambda: self.announced.exists() or process.poll() is not None, "`up` to be ready")
            assert process.poll() is None, (self.folder / "up.log").read_text()
            yield process
        finally:
            process.kill()
            process.wait(WAIT_SECONDS)

    def running(self) -> list[str]:
        """Commands of all processes that were started, directly or not, with this config."""
        marker = f"PLANNER_CONFIG={self.folder / 'config.yaml'}".encode()
        return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, marker)]


def _has(process: Path, marker: bytes) -> bool:
    try:
        return marker in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.fixture
def command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    monkeypatch.setenv("PLANNER_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.delenv("PLANNER_SERVER", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield CommandLine(tmp_path, capsys)
    sys.modules.pop("towers", None)


def test_from_up_to_stop(command_line: CommandLine) -> None:
    folder = command_line.folder
    with command_line.up(
        "--daemons", 2, "--device", "cpu", "--memory", "256MiB", "--memory", "512MiB", "-o", "json"
    ) as process:
        # Another process finds it, as the commands below do.
        listed = subprocess.run([*COMMAND, "device", "list", "-o", "json"], capture_output=True, check=True)
        devices = json.loads(listed.stdout)
        assert sorted(entry["device"]["memory_bytes"] for entry in devices) == [256 << 20, 512 << 20]
        graph = command_line.document("submit", "towers:build", "--name", "tower")
        assert graph["deployable"]
        plan = command_line.document("plan", "create", "tower", "--cut", "lower")
        assert len(plan["stages"]) == 2
        deployment = command_line.document("deploy", plan["id"])
        assert deployment["state"] == "ready"

        x = np.random.default_rng(0).standard_normal((11, 8)).astype(np.float32)
        np.savez(folder / "in.npz", x=x, index=np.arange(11) % 10)
        ran = command_line.document("run", deployment["id"], "in.npz", "--out", "out.npz", "--batch-size", "4")
        assert ran["num_batches"] == 3
        assert_same_as_unsplit(folder, "out.npz", batch_size=4)

        np.savez(folder / "bad.npz", x=x, index=np.full(11, 99))
        failed = command_line("run", deployment["id"], "bad.npz")
        assert failed.returncode == exit_codes.DEPLOYMENT_FAILED
        assert "stage 0" in failed.stderr
        np.savez(folder / "odd.npz", x=x)
        assert command_line("run", deployment["id"], "odd.npz").returncode == exit_codes.INVALID_INPUT
        # Neither harmed the deployment.
        assert command_line("run", deployment["id"], "in.npz", "--out", "again.safetensors").returncode == 0
        assert command_line("plan", "delete", plan["id"]).returncode == exit_codes.CONFLICT

        assert command_line.document("stop", deployment["id"])["state"] == "stopped"
        watched = command_line("deployment", "watch", deployment["id"], "-o", "json")
        events = [json.loads(line) for line in watched.stdout.splitlines()]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert [events[0]["state"], events[-1]["state"]] == ["loading", "stopped"]
        assert command_line("run", deployment["id"], "in.npz").returncode == exit_codes.CONFLICT

        # As a terminal's Ctrl-C would, but to the parent alone: it ends the others, also one that hears nothing.
        hung = document_of(folder)["daemons"][1]["process_id"]
        os.kill(hung, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == exit_codes.INTERRUPTED
        assert (folder / "up.log").read_text().endswith("the planner and its 2 daemons have ended\n")
        assert not command_line.announced.exists()
        assert not Path(document_of(folder)["data_dir"]).exists()
    wait_for(lambda: command_line.running() == [], "every process to end")


def document_of(folder: Path) -> Any:
    """What `up -o json` said, whatever came after it."""
    text = (folder / "up.log").read_text()
    return json.JSONDecoder().raw_decode(text, text.index("{"))[0]


def test_nothing_outlives_a_killed_up(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_RESTART_SECONDS", "0")
    with command_line.up("--daemons", 1, "--data-dir", "data", started=in_background) as process:
        server = yaml.safe_load(command_line.announced.read_text())["server"]
        assert len(command_line.running()) > 2
        wait_for(lambda: f"kill {process.pid}" in (command_line.folder / "up.log").read_text(), "the log to be written")
        process.kill()
        wait_for(lambda: command_line.running() == [], "every process to end")
    refused = command_line("device", "list")
    assert refused.returncode == exit_codes.UNAVAILABLE
    # What it announced is not believed any more.
    assert server not in refused.stderr


def assert_same_as_unsplit(folder: Path, name: str, batch_size: int) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(MODULE, "towers", "exec"), namespace)  # noqa: S102
    module = namespace["build"]()[0]
    inputs, outputs = np.load(folder / "in.npz"), np.load(folder / name)
    x, index = torch.from_numpy(inputs["x"]), torch.from_numpy(inputs["index"])
    with torch.no_grad():
        parts = [module(*batch) for batch in zip(x.split(batch_size), index.split(batch_size), strict=True)]
    for key in ("scores", "norm"):
        np.testing.assert_array_equal(outputs[key], torch.cat([part[key] for part in parts]).numpy())
