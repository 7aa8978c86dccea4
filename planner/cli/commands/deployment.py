"""`deploy`, `stop`, and `deployment list`, `get` and `watch`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
import yaml

from planner.cli.documents import to_document
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit, say
from planner.cli.progress import event_text, rollout_bars
from planner.cli.tables import deployment_table, deployments_table
from planner.client.records import DeploymentEvent, DeploymentState, RecoveryPolicy
from planner.errors import DeploymentFailed

app = typer.Typer(no_args_is_help=True, help="Plans that run, or ran.")

DeploymentArgument = Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Deployment id.")]


def deploy(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Plan id.")],
    wait: Annotated[bool, typer.Option(help="Follow the rollout until it is ready.")] = True,
    recovery: Annotated[
        RecoveryPolicy, typer.Option(help="When it breaks: leave it failed, or roll it out again where it was.")
    ] = RecoveryPolicy.MANUAL,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Roll a plan out to its daemons."""
    with connect(server) as client:
        if wait:
            with rollout_bars() as on_event:
                deployment = client.deploy(plan, on_event=on_event, recovery=recovery)
        else:
            deployment = client.deploy(plan, wait=False, recovery=recovery)
    emit(deployment, output, lambda: deployment_table(deployment))


def stop(
    deployment: DeploymentArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Finish what is in flight, then let go of the devices."""
    with connect(server) as client:
        stopped = client.stop(deployment)
    emit(stopped, output, lambda: deployment_table(stopped))


@app.command("list")
def list_deployments(
    plan: Annotated[str, typer.Option("--plan", help="Only deployments of this plan.")] = "",
    active: Annotated[bool, typer.Option("--active", help="Only those that have not ended.")] = False,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All deployments, or those that pass the filters."""
    with connect(server) as client:
        deployments = list(client.list_deployments(plan_id=plan, active_only=active))
    emit(deployments, output, lambda: deployments_table(deployments))


@app.command("get")
def get_deployment(
    deployment: DeploymentArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """One deployment."""
    with connect(server) as client:
        found = client.get_deployment(deployment)
    emit(found, output, lambda: deployment_table(found))


@app.command("watch")
def watch_deployment(
    deployment: DeploymentArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Events so far, then new ones, until the deployment ends; one JSON object per line with -o json."""
    with connect(server) as client:
        for event in client.watch(deployment):
            _write(event, output)
    if event.state is DeploymentState.FAILED:
        raise DeploymentFailed(event.failure.message if event.failure else event.message)
    say(f"{deployment} is {event.state.value}")


def _write(event: DeploymentEvent, output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        line = f"{event.occurred_at.astimezone():%H:%M:%S} {event_text(event)}\n"
    elif output is OutputFormat.JSON:
        line = json.dumps(to_document(event), ensure_ascii=False) + "\n"
    else:
        line = yaml.safe_dump([to_document(event)], sort_keys=False, allow_unicode=True)
    sys.stdout.write(line)
    sys.stdout.flush()
