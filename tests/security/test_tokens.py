"""Tokens as people use them: the server's command line, `planner-cli`, and a planner-server that asks for them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from access.files import TlsFiles
from planner.api.principals import RECHECK_SECONDS
from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster
from planner.errors import Forbidden, InvalidArgument, Unauthenticated
from tests.access.certificates import Certificates, environment
from tests.planner.cli.conftest import RunCli, bare_cli
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services
__all__ = ["bare_cli"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planner")


@pytest.fixture(scope="module")
def address(folder: Path, certificates: Certificates) -> Iterator[str]:
    files = certificates.issue("planner", name="guarded")
    settings = {**environment("PLANNER", files), "PLANNER_ACCESS": "tokens"}
    with LocalCluster(data_dir=folder, memory_bytes=(), environment=settings) as running:
        yield running.planner_address


@pytest.fixture
def administrator(folder: Path, address: str) -> Path:
    """A file with a token, made beside the running server."""
    command = [sys.executable, "-m", "planner", "--data-dir", str(folder), "--create-admin-token", "root"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True)
    path = folder / "root.token"
    path.write_text(completed.stdout)
    return path


def test_a_token_from_its_making_to_its_end(
    address: str,
    administrator: Path,
    user: TlsFiles,
    tmp_path: Path,
    bare_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment("PLANNER", user).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PLANNER_SERVER", address)
    assert bare_cli("device", "list").status == 9
    monkeypatch.setenv("PLANNER_TOKEN_FILE", str(administrator))
    token = bare_cli("tokens", "create", "alice", "--scope", "submit", "-o", "json").document()
    token_file = tmp_path / "alice.token"
    token_file.write_text(token["token"])
    with PlannerClient(address, timeout_seconds=WAIT_SECONDS, tls=user, token_file=token_file) as alice:
        assert alice.list_devices() == ()
        with pytest.raises(Forbidden, match="needs a token with the scope deploy"):
            alice.deploy("plan-0")
        listed = bare_cli("tokens", "list")
        assert token["id"] in listed.stdout
        assert token["token"] not in listed.stdout
        assert bare_cli("tokens", "revoke", token["id"], "-o", "json").document()["revoked_at"]
        time.sleep(RECHECK_SECONDS)
        with pytest.raises(Unauthenticated, match="was revoked"):
            alice.list_devices()
    entries = json.loads(bare_cli("audit", "list", "--by", "alice", "-o", "json").stdout)
    assert [(entry["method"], entry["outcome"]) for entry in entries] == [("Deploy", "PERMISSION_DENIED")]
    assert "RevokeToken" in bare_cli("audit", "list", "--about", token["id"]).stdout


@pytest.mark.parametrize("content", ["", "two words", "\u00e9"])
def test_a_file_without_a_token_is_said_to_be(address: str, user: TlsFiles, tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with (
        PlannerClient(address, tls=user, token_file=path) as client,
        pytest.raises(InvalidArgument, match="holds no token"),
    ):
        client.list_devices()
    path.unlink()
    with (
        PlannerClient(address, tls=user, token_file=path) as client,
        pytest.raises(InvalidArgument, match="cannot read the token file"),
    ):
        client.list_devices()


def test_no_token_travels_over_plain_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="over TLS alone"):
        PlannerClient("127.0.0.1:1", token_file=tmp_path / "token")
