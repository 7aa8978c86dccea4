"""Which server is talked to where none is named, from the command line and from Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planner.client import PlannerClient
from planner.client.config import (
    DEFAULT_SERVER,
    announced,
    config_path,
    find_restart_seconds,
    find_server,
    find_token_file,
    is_server_named,
    local_server_path,
)
from planner.errors import InvalidArgument
from tests.access.certificates import Certificates


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "folder" / "config.yaml"
    path.parent.mkdir()
    monkeypatch.setenv("PLANNER_CONFIG", str(path))
    return path


def test_the_first_of_option_config_and_local_server_counts(config: Path) -> None:
    assert find_server(None) == DEFAULT_SERVER
    with announced("127.0.0.1:7"):
        assert find_server(None) == "127.0.0.1:7"
        config.write_text("server: planner:50051\n")
        assert find_server(None) == "planner:50051"
        assert find_server("named:1") == "named:1"
    assert not local_server_path().exists()


def test_a_planner_that_somebody_named_may_be_away_for_a_moment(config: Path) -> None:
    with announced("127.0.0.1:7"):
        assert not is_server_named(None)
        assert is_server_named("named:1")
        config.write_text("server: planner:50051\n")
        assert is_server_named(None)


def test_files_are_looked_for_from_where_they_are_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANNER_TOKEN_FILE", raising=False)
    config.write_text("token_file: secrets/token\n")
    assert find_token_file() == config.parent / "secrets" / "token"
    config.write_text("token_file: /etc/token\n")
    assert find_token_file() == Path("/etc/token")
    monkeypatch.setenv("PLANNER_TOKEN_FILE", "mine")
    assert find_token_file() == Path("mine")


def test_the_config_file_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_CONFIG", str(tmp_path / "mine.yaml"))
    assert config_path() == tmp_path / "mine.yaml"
    assert local_server_path() == tmp_path / "local-server.yaml"
    monkeypatch.delenv("PLANNER_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path() == tmp_path / "partition-planner" / "config.yaml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config_path() == tmp_path / "home" / ".config" / "partition-planner" / "config.yaml"


@pytest.mark.parametrize("text", ["server: 127.0.0.1:7", "process_id: 1", "server: 7\nprocess_id: 1", "process_id: x"])
def test_a_local_server_that_is_half_announced_is_not_asked(config: Path, text: str) -> None:
    local_server_path().write_text(text)
    assert find_server(None) == DEFAULT_SERVER


def test_a_local_server_of_another_user_is_asked(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ours(process_id: int, number: int) -> None:
        raise PermissionError

    local_server_path().write_text("server: 127.0.0.1:7\nprocess_id: 1\n")
    monkeypatch.setattr(os, "kill", not_ours)
    assert find_server(None) == "127.0.0.1:7"


def test_an_announcement_says_whose_it_is_and_goes_when_it_ends(config: Path) -> None:
    with announced("127.0.0.1:7"):
        assert yaml.safe_load(local_server_path().read_text()) == {"server": "127.0.0.1:7", "process_id": os.getpid()}
        assert [path.name for path in config.parent.iterdir()] == ["local-server.yaml"]
    assert list(config.parent.iterdir()) == []


@pytest.mark.services
def test_a_local_server_that_died_is_not_asked(config: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    local_server_path().write_text(f"server: 127.0.0.1:7\nprocess_id: {ended.pid}\n")
    assert find_server(None) == DEFAULT_SERVER


def test_another_local_server_stays_announced(config: Path) -> None:
    with announced("127.0.0.1:7"):
        local_server_path().write_text(f"server: 127.0.0.1:8\nprocess_id: {os.getppid()}\n")
    assert find_server(None) == "127.0.0.1:8"


@pytest.mark.parametrize("text", ["sever: x", "server: 3", "- server", "server: [", "server:\n  x"])
def test_a_config_that_cannot_be_is_refused(config: Path, text: str) -> None:
    config.write_text(text)
    if text == "server:\n  x":
        assert find_server(None) == "x"
        return
    with pytest.raises(InvalidArgument, match=r"config\.yaml"):
        find_server(None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 20.0), ("0", 0.0), ("2.5", 2.5), ("-1", None), ("soon", None), ("inf", None)]
)
def test_how_long_a_planner_may_be_away(text: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_RESTART_SECONDS", text)
    if seconds is not None:
        assert find_restart_seconds() == seconds
        return
    with pytest.raises(InvalidArgument, match="PLANNER_RESTART_SECONDS is"):
        find_restart_seconds()


def test_a_client_without_an_address_talks_to_whom_the_command_line_does(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def address() -> str:
        with PlannerClient() as client:
            return client.address

    assert address() == DEFAULT_SERVER
    with announced("127.0.0.1:7"):
        assert address() == "127.0.0.1:7"
        config.write_text("server: planner:50051\n")
        assert address() == "planner:50051"
        monkeypatch.setenv("PLANNER_SERVER", "a:1,b:2")
        assert address() == "a:1,b:2"
        with PlannerClient("named:1") as client:
            assert client.address == "named:1"


def test_a_client_without_an_address_shows_what_is_configured(config: Path, tmp_path: Path) -> None:
    """And one with an address what it is given alone: a token is nobody's business but its server's."""
    config.write_text("server: localhost:1\ntoken_file: token\n")
    with pytest.raises(InvalidArgument, match=f"the token in {config.parent / 'token'} travels over TLS alone"):
        PlannerClient()
    files = Certificates.of(tmp_path).issue("client")
    with config.open("a") as text:
        text.write(f"tls_certificate: {files.certificate}\ntls_key: {files.key}\ntls_ca: {files.authorities}\n")
    with PlannerClient() as client:
        assert client._connection.credentials is not None
        assert client._connection.credentials.files == files
    with PlannerClient("localhost:1") as client:
        assert client._connection.credentials is None
