"""The command tree. A command is imported when it is called, so that help and small commands answer at once."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from planner.cli import exit_codes

# By name: where in planner.cli.commands it is, and the first line of its help.
COMMANDS = {
    "submit": ("submit:submit", "Upload a model's graph and weights; what the server has already is not sent again."),
    "export": ("submit:export", "Export a module into a folder, without a server; `submit` takes it later."),
    "graph": ("graph:app", "Graphs that the server holds."),
    "plan": ("plan:app", "How a graph is cut over devices."),
    "profile": ("profile:app", "Measured times of a graph's nodes; plans use them where there are any."),
    "device": ("device:app", "Devices whose daemons have registered."),
    "inventory": ("inventory:app", "Stored sets of devices and links to plan over."),
    "deploy": ("deployment:deploy", "Roll a plan out to its daemons."),
    "deployment": ("deployment:app", "Plans that run, or ran."),
    "run": ("run:run", "Run a file of inputs through a deployment."),
    "train": ("train:train", "Export, plan and deploy a module, train it, and write its weights down."),
    "checkpoint": ("checkpoint:app", "What trainings have saved."),
    "stop": ("deployment:stop", "Finish what is in flight, then let go of the devices."),
    "up": (
        "up:up",
        "Start a planner and daemons here for trying things out; Ctrl-C ends them all. Other commands find the "
        "planner.",
    ),
    "solve": ("solve:solve", "Place a profiled cost graph on its devices. Needs no server and no torch."),
    "config": (
        "settings:config",
        "List the PLANNER_* settings: what holds, where it differs from the default, what it means.",
    ),
    "gc": ("gc:gc", "Free the bytes of deleted graphs and of submissions that were given up."),
    "certs": ("certs:app", "Certificates for mutual TLS, from an authority of your own."),
    "tokens": ("tokens:app", "Bearer tokens: who may submit, deploy, operate or administer."),
    "audit": ("audit:app", "Who did what, when, from where, and what came of it."),
    "completion": (
        "completion:completion",
        "Print a completion script: `source <(planner-cli completion bash)`.",
    ),
}
_EXIT_CODES = "\n\n".join(f"{code}: {meaning}" for code, meaning in exit_codes.MEANINGS.items())


# Options of many commands that may stand before the command too: `planner-cli -o json device list`.
_MOVABLE = ("--server", "--output", "-o")


def options_after_command(args: list[str]) -> list[str]:
    """The same arguments with those of `_MOVABLE` that stand before the command behind it. What is given after the
    command still comes last and counts; help and version have no use for them.

    Where no command follows, they are left out: what remains asks for help, or is the error that it is without them.
    """
    moved: list[str] = []
    while args and (length := _movable_words(args[0])):
        moved, args = [*moved, *args[:length]], args[length:]
    end = next((at for at, word in enumerate(args) if word.startswith("-")), len(args))
    if end == 0 or {"-h", "--help", "--version"} & {*args[end : end + 1]}:
        return args
    return [*args[:end], *moved, *args[end:]]


def _movable_words(word: str) -> int:
    """How many words an option of `_MOVABLE` that begins here takes: `-o json`, or `--output=json`, or `-ojson`."""
    name, has_value, _ = word.partition("=")
    if name in _MOVABLE:
        return 1 if has_value else 2
    return 1 if any(len(short) == 2 and word.startswith(short) for short in _MOVABLE) else 0


class OptionsGroup(TyperGroup):
    """Takes options of its commands before their names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, options_after_command(args))


class CommandGroup(OptionsGroup):
    """Lists the commands by name and help alone, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, text) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=text, rich_markup_mode=self.rich_markup_mode))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself. Fails for a name that no command has, naming those that are close."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else None, rest

    def invoke(self, ctx: Any) -> Any:
        """A value that an option does not take is told without the name of the exception that said so."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def load_command(name: str) -> Any:
    module, attribute = COMMANDS[name][0].split(":")
    target: typer.Typer | Callable[..., None] = getattr(import_module(f"planner.cli.commands.{module}"), attribute)
    if isinstance(target, typer.Typer):
        target.info.cls = OptionsGroup
        group = get_group(target)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    alone.command(name)(target)
    return get_command(alone)


app = typer.Typer(
    name="planner-cli",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"[bold]Exit codes[/bold]\n\n{_EXIT_CODES}",
)


def _print_version(is_asked_for: bool) -> None:
    if is_asked_for:
        import importlib.metadata

        typer.echo(f"planner-cli {importlib.metadata.version('partition-planner')}")
        raise typer.Exit


@app.callback()
def planner_cli(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
    ] = False,
) -> None:
    """Cut models over unequal accelerators, and run them.

    Results go to stdout (-o table, json or yaml), progress and messages to stderr. --server and -o may stand before the
    command or after it.
    """
