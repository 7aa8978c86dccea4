"""The command tree."""

from __future__ import annotations

import typer

from planner.cli import exit_codes
from planner.cli.commands import deployment, device, graph, inventory, plan, profile
from planner.cli.commands.completion import completion
from planner.cli.commands.run import run
from planner.cli.commands.solve import solve
from planner.cli.commands.submit import export, submit
from planner.cli.commands.up import up

_EXIT_CODES = "\n\n".join(f"{code}: {meaning}" for code, meaning in exit_codes.MEANINGS.items())

app = typer.Typer(
    name="planner-cli",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"[bold]Exit codes[/bold]\n\n{_EXIT_CODES}",
)


@app.callback()
def planner_cli() -> None:
    """Cut models over unequal accelerators, and run them.

    Results go to stdout (-o table, json or yaml), progress and messages to stderr.
    """


app.command("submit")(submit)
app.command("export")(export)
app.add_typer(graph.app, name="graph")
app.add_typer(plan.app, name="plan")
app.add_typer(profile.app, name="profile")
app.add_typer(device.app, name="device")
app.add_typer(inventory.app, name="inventory")
app.command("deploy")(deployment.deploy)
app.add_typer(deployment.app, name="deployment")
app.command("run")(run)
app.command("stop")(deployment.stop)
app.command("up")(up)
app.command("solve")(solve)
app.command("completion")(completion)
