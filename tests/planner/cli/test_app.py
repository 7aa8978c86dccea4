"""The command tree is listed without importing the commands, and says of each what it says of itself."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from planner.cli.app import COMMANDS, load_command, options_after_command
from tests.planner.cli.conftest import RunCli

pytestmark = pytest.mark.services

# What help can do without: each costs more than all of help.
_SLOW = {"grpc", "numpy", "yaml", "google.protobuf", "pydantic", "torch", "sqlalchemy"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says_of_itself(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert inspect.cleandoc(command.help).partition("\n")[0] == COMMANDS[name][1]


def _imported(*arguments: str) -> set[str]:
    """Modules that a command has imported by its end."""
    program = (
        "import sys; from planner.cli.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(ended.stderr.split())


def test_help_imports_only_what_writes_it() -> None:
    imported = _imported("--help")
    assert "typer" in imported
    assert not imported & _SLOW


def test_a_table_needs_no_numpy_and_no_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_RESTART_SECONDS", "0.1")
    imported = _imported("device", "list", "--server", "127.0.0.1:1")
    assert "grpc" in imported
    assert not imported & {"numpy", "yaml", "torch", "sqlalchemy", "cryptography"}


def test_a_value_that_no_option_takes_is_answered_with_those_that_are() -> None:
    command = [sys.executable, "-m", "planner.cli", "plan", "create", "--graph", "any", "--mode", "best"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "'best' is not one of 'optimal'" in ended.stderr
    assert "Value error" not in ended.stderr


@pytest.mark.parametrize(
    ("graphs", "told"), [((), "name the graph to plan"), (("one", "--graph", "other"), "is given twice")]
)
def test_the_graph_of_a_plan_is_named_once(bare_cli: RunCli, graphs: tuple[str, ...], told: str) -> None:
    refused = bare_cli("plan", "create", *graphs)
    assert refused.status == 2
    assert f"Invalid value for GRAPH: {told}" in refused.stderr


def test_a_misspelt_command_is_answered_with_those_that_are_close() -> None:
    ended = subprocess.run([sys.executable, "-m", "planner.cli", "solv"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "'solve'" in ended.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--server a:1 device list", "device list --server a:1"),
        ("--server=a:1 -o json device list", "device list --server=a:1 -o json"),
        ("--output yaml run ID batch.npz -- --odd", "run ID batch.npz --output yaml -- --odd"),
        ("-o json device list -o yaml", "device list -o json -o yaml"),
        ("--server a:1 --help", "--help"),
        ("-o json device -h", "device -h"),
        ("--server a:1 --version", "--version"),
        ("device list --server a:1", "device list --server a:1"),
        ("-ojson device list", "device list -ojson"),
        ("-o yaml -oJSON device list -- -o", "device list -o yaml -oJSON -- -o"),
        ("-ojson", ""),
        ("-o json --server a:1", ""),
        ("-o json --bogus", "--bogus"),
        ("-ojson --help", "--help"),
        ("-ojson device -h", "device -h"),
        ("--server", ""),
        ("-x device", "-x device"),
        ("--version", "--version"),
        ("", ""),
    ],
)
def test_options_of_many_commands_may_stand_before_the_command(before: str, after: str) -> None:
    assert options_after_command(before.split()) == after.split()


@pytest.mark.parametrize(
    ("words", "listed"),
    [("-o json", "submit"), ("-ojson", "submit"), ("-o json device", "list"), ("device -ojson", "list")],
)
def test_options_without_a_command_are_answered_with_the_commands(words: str, listed: str) -> None:
    command = [sys.executable, "-m", "planner.cli", *words.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "No such option" not in ended.stderr
    assert listed in ended.stdout + ended.stderr


def test_options_may_stand_between_a_group_and_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_RESTART_SECONDS", "0.1")
    command = [sys.executable, "-m", "planner.cli", "device", "--server", "127.0.0.1:1", "-ojson", "list"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "127.0.0.1:1" in ended.stderr
    assert "No such option" not in ended.stderr


def test_a_server_named_before_the_command_is_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_RESTART_SECONDS", "0.1")
    command = [sys.executable, "-m", "planner.cli", "--server", "127.0.0.1:1", "-o", "json", "device", "list"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "127.0.0.1:1" in ended.stderr
    assert "No such option" not in ended.stderr
