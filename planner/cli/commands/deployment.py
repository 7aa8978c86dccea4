"""`deploy`, `stop`, and `deployment list`, `get`, `watch`, `trace`, `top` and `delete`."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import yaml

from planner.cli.documents import to_document
from planner.cli.graph_names import find_graph
from planner.cli.options import OutputOption, OwnerOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit, emit_deleted, say
from planner.cli.progress import event_text, rollout_bars
from planner.cli.tables import deployment_table, deployments_table
from planner.cli.timeline_tables import live_table, timeline_document, timeline_table
from planner.client.records import DeploymentEvent, DeploymentState, RecoveryPolicy
from planner.errors import DeploymentFailed, InvalidArgument

app = typer.Typer(no_args_is_help=True, help="Plans that run, or ran.")

DeploymentArgument = Annotated[
    str, typer.Argument(metavar="DEPLOYMENT", help="Deployment id, or its first six digits or more.")
]


def deploy(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Plan id, or its first six digits or more.")],
    wait: Annotated[bool, typer.Option(help="Follow the rollout until it is ready.")] = True,
    recovery: Annotated[
        RecoveryPolicy,
        typer.Option(
            help="When it breaks: leave it failed, roll it out again where it was, or go on by another plan on the "
            "devices that are left."
        ),
    ] = RecoveryPolicy.MANUAL,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="CPU threads of an operator in each worker; else its share of the host."),
    ] = None,
    compile_stages: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile stages (torch.compile): quicker, equal within a tolerance, not bitwise."
        ),
    ] = False,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Roll a plan out to its daemons."""
    with connect(server) as client:
        roll_out = partial(client.deploy, plan, recovery=recovery, num_threads=threads, compile=compile_stages)
        if wait:
            with rollout_bars() as on_event:
                deployment = roll_out(on_event=on_event)
        else:
            deployment = roll_out(wait=False)
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
    graph: Annotated[str | None, typer.Option("--graph", help="Only deployments of this graph.")] = None,
    state: Annotated[DeploymentState | None, typer.Option("--state", help="Only those that stand so.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those that have not ended.")] = False,
    owner: OwnerOption = "",
    since: SinceOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All deployments, or those that pass the filters."""
    with connect(server) as client:
        graph_id = find_graph(client, graph).id if graph else ""
        deployments = list(
            client.list_deployments(
                plan_id=plan, graph_id=graph_id, state=state, active_only=active, owner=owner, created_since=since
            )
        )
    emit(deployments, output, lambda: deployments_table(deployments))


@app.command("get")
def get_deployment(
    deployment: DeploymentArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """One deployment."""
    with connect(server) as client:
        record = client.get_deployment(deployment)
    emit(record, output, lambda: deployment_table(record))


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


@app.command("trace")
def trace_deployment(
    deployment: DeploymentArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write it, as JSON.")],
    server: ServerOption = None,
) -> None:
    """Write what every device did lately, beside what the plan predicts, for ui.perfetto.dev."""
    with connect(server) as client:
        timeline = client.deployment_timeline(deployment)
    try:
        out.write_text(json.dumps(timeline.trace()))
    except OSError as error:
        raise InvalidArgument(f"--out {out}: {error.strerror}") from None
    say(f"timeline written to {out}: open it in ui.perfetto.dev or chrome://tracing")


@app.command("top")
def watch_stages(
    deployment: DeploymentArgument,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two readings.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="One reading, of all that the daemons still know, and no more.")
    ] = False,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """How busy each stage is and what it waits for, measured while it runs, and the bubble beside the predicted one.

    Ends with the deployment or by Ctrl-C; one JSON object per line with -o json.
    """
    with connect(server) as client, closing(client.timelines(deployment, every_seconds=every)) as readings:
        if once:
            reading = next(readings)
            summary = reading.summary()
            emit(timeline_document(reading, summary), output, lambda: timeline_table(reading, summary))
            return
        with live_table(output) as show:
            since_seconds = None
            for reading in readings:
                show(reading, reading.summary(since_seconds))
                since_seconds = reading.measured.read_at_seconds


@app.command("delete")
def delete_deployment(
    deployment: DeploymentArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Forget a deployment that has ended, with its events."""
    with connect(server) as client:
        deleted = client.delete_deployment(deployment)
    emit_deleted(deleted, output)


def _write(event: DeploymentEvent, output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        line = f"{event.occurred_at.astimezone():%H:%M:%S} {event_text(event)}\n"
    elif output is OutputFormat.JSON:
        line = json.dumps(to_document(event), ensure_ascii=False) + "\n"
    else:
        line = yaml.safe_dump([to_document(event)], sort_keys=False, allow_unicode=True)
    sys.stdout.write(line)
    sys.stdout.flush()
