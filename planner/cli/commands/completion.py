"""`completion`: the script that makes a shell complete the CLI's commands and options."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated

import typer
from typer.main import get_command

PROGRAM = "planner-cli"
# What the framework reads: which script to print, or, from within that script, what to complete.
_VARIABLE = "_PLANNER_CLI_COMPLETE"


class Shell(Enum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell the script is for.")]) -> None:
    """Print a completion script: `source <(planner-cli completion bash)`."""
    from planner.cli.app import app

    os.environ[_VARIABLE] = f"source_{shell.value}"
    try:
        get_command(app).main([], prog_name=PROGRAM)
    finally:
        del os.environ[_VARIABLE]
