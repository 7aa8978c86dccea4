"""A planner-server without daemons, and a command line that finds it by its config file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.cli.__main__ import main
from planner.client.local_cluster import LocalCluster
from tests.contract.graphs import chain_bytes, chain_weights
from tests.planner.client.scripted_planner import ScriptedPlanner, scripted_planner


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    status: int
    stdout: str
    stderr: str

    def document(self) -> Any:
        assert self.status == 0, self.stderr
        return json.loads(self.stdout)


RunCli = Callable[..., Finished]


# What terminals, CI services and users set, and what tables and help are drawn by.
_DRAWN_BY = ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES")


@pytest.fixture(scope="session")
def server_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(data_dir=tmp_path_factory.mktemp("planner"), memory_bytes=()) as cluster:
        yield cluster.planner_address


@pytest.fixture
def bare_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCli:
    """The command line in a folder of its own, without a config file."""
    monkeypatch.setenv("PLANNER_CONFIG", str(tmp_path / "config.yaml"))
    access = ("PLANNER_TLS_CERTIFICATE", "PLANNER_TLS_KEY", "PLANNER_TLS_CA", "PLANNER_TOKEN_FILE")
    for name in ("PLANNER_SERVER", "PLANNER_DEBUG", *access, *_DRAWN_BY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Finished:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Finished(status=int(ended.value.code or 0), stdout=captured.out, stderr=captured.err)

    return run


@pytest.fixture
def cli(bare_cli: RunCli, server_address: str, tmp_path: Path) -> RunCli:
    (tmp_path / "config.yaml").write_text(f"server: {server_address}\n")
    return bare_cli


@pytest.fixture
def scripted_cli(bare_cli: RunCli, tmp_path: Path) -> Iterator[tuple[ScriptedPlanner, RunCli]]:
    """A command line that finds a server which keeps to a script."""
    with scripted_planner() as (script, address):
        (tmp_path / "config.yaml").write_text(f"server: {address}\n")
        yield script, bare_cli


@pytest.fixture
def chain(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An exported graph of four layers, with weights; another one for each test."""
    folder = tmp_path / "chain.ppgraph"
    folder.mkdir()
    (folder / "graph.pb").write_bytes(chain_bytes(name=f"chain of {request.node.nodeid}"))
    (folder / "weights-00001.safetensors").write_bytes(chain_weights())
    return folder


@pytest.fixture
def two_devices(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text("devices:\n- {id: a, memory: 1MiB}\n- {id: b, memory: 2MiB}\n")
    return path
