"""Results as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from planner.cli.quantities import format_bytes, format_gap, format_seconds
from planner.client.records import (
    AuditEntry,
    Deployment,
    GraphRecord,
    InventoryRecord,
    PlanSummary,
    RegisteredDevice,
    StoredPlan,
    TokenRecord,
)
from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.graph.checkpoint import CheckpointRecord
from planner.plan.depths import held_up
from planner.plan.options import OptimalMode, Routing
from planner.plan.plan import Plan, Stage

BAR_CELLS = 6
# Of devices or links of an inventory, one by one.
MOST_LISTED = 128
# Enough of a graph's id to name it.
ID_CHARACTERS = 12
# Headings of columns that hold ids.
_IDS = frozenset({"id", "plan", "device"})


def plan_table(plan: Plan) -> RenderableType:
    """One row per stage, with how full its device is; below, what each stage holds, and the plan's figures.

    Fits 80 columns for devices with short names.
    """
    table = plain_table(title=_plan_title(plan))
    table.add_column("stage", justify="right", no_wrap=True)
    table.add_column("device", no_wrap=True)
    for heading in ("nodes", "compute", "transfer", "memory", "full"):
        table.add_column(heading, justify="right", no_wrap=True)
    devices = {device.id: device for device in plan.inventory.devices}
    for stage in plan.stages:
        table.add_row(*_stage_cells(stage, devices))
    stages = [Text(_stage_line(plan, stage)) for stage in plan.stages]
    sources = [Text(f"seconds of {source.device_kind}: {source.text()}") for source in plan.cost_sources]
    shares = [Text(line) for line in plan.shares_of_cores]
    held = [Text(one.text()) for one in (held_up(plan),) if one is not None]
    return Group(table, *stages, Text(_plan_caption(plan)), *sources, *shares, *held)


def memory_bar(used_bytes: int, total_bytes: int) -> Text:
    """Green, yellow from 75 %, red from 95 %."""
    share = used_bytes / total_bytes if total_bytes else 0.0
    filled = min(BAR_CELLS, round(share * BAR_CELLS))
    color = "red" if share >= 0.95 else "yellow" if share >= 0.75 else "green"
    bar = Text("█" * filled, style=color).append("░" * (BAR_CELLS - filled), style="dim")
    return bar.append(f" {share:4.0%}", style="default")


def tokens_table(tokens: Iterable[TokenRecord]) -> Table:
    table = plain_table("id", "holder", "scopes", "created", "expires", "revoked")
    for token in tokens:
        revoked = _time(token.revoked_at) if token.revoked_at else ""
        cells = (token.id, token.holder, ", ".join(token.scopes), _time(token.created_at))
        table.add_row(*cells, _time(token.expires_at), revoked)
    return table


def checkpoints_table(checkpoints: Iterable[CheckpointRecord]) -> Table:
    table = plain_table("id", "run", "steps", "graph", "optimizer", "files", "bytes", "created")
    for one in checkpoints:
        cells = (one.id, one.run, f"{one.progress.num_steps:,}", one.graph_id[:ID_CHARACTERS], one.optimizer)
        table.add_row(*cells, str(len(one.files)), format_bytes(one.size_bytes), _time(one.created_at))
    return table


def audit_table(entries: Iterable[AuditEntry]) -> Table:
    table = plain_table("when", "who", "what", "about", "from", "outcome")
    for entry in entries:
        table.add_row(_time(entry.occurred_at), entry.principal, entry.method, entry.subject, entry.peer, entry.outcome)
    return table


def graphs_table(graphs: Iterable[GraphRecord]) -> Table:
    table = plain_table("id", "name", "nodes", "tensors", "weights", "deployable", "created")
    for graph in graphs:
        deployable = "yes" if graph.deployable else f"no: {graph.not_deployable_reason}"
        table.add_row(
            graph.id[:ID_CHARACTERS],
            graph.name,
            f"{graph.num_nodes:,}",
            f"{graph.num_states:,}",
            format_bytes(graph.state_bytes),
            deployable,
            _time(graph.created_at),
        )
    return table


def plans_table(plans: Iterable[PlanSummary]) -> Table:
    table = plain_table("id", "graph", "mode", "stages", "bottleneck", "peak", "created")
    for plan in plans:
        table.add_row(
            plan.id,
            plan.graph_name or plan.graph_id[:ID_CHARACTERS],
            plan.mode,
            str(plan.num_stages),
            format_seconds(plan.bottleneck_seconds),
            format_bytes(plan.peak_bytes),
            _time(plan.created_at),
        )
    return table


def devices_table(devices: Iterable[RegisteredDevice]) -> Table:
    table = plain_table("device", "kind", "host", "memory", "daemon", "torch", "state", "deployments")
    for registered in devices:
        device = registered.device
        table.add_row(
            device.id,
            device.kind,
            device.host,
            format_bytes(device.memory_bytes),
            registered.daemon_address,
            registered.torch_version,
            "draining" if registered.draining else "there",
            ", ".join(registered.deployment_ids) or "-",
        )
    return table


def inventories_table(inventories: Iterable[InventoryRecord]) -> Table:
    table = plain_table("id", "name", "devices", "memory", "created")
    for record in inventories:
        devices = record.inventory.devices
        memory = format_bytes(sum(device.memory_bytes for device in devices))
        table.add_row(record.id, record.name, str(len(devices)), memory, _time(record.created_at))
    return table


def inventory_table(record: InventoryRecord) -> RenderableType:
    """Of more devices or links than anyone reads, how many there are of each sort; json and yaml list them all."""
    inventory, title = record.inventory, f"{record.id} {record.name}".strip()
    if len(inventory.devices) <= MOST_LISTED:
        devices = plain_table("device", "kind", "host", "memory", title=title)
        for device in inventory.devices:
            devices.add_row(device.id, device.kind, device.host, format_bytes(device.memory_bytes))
    else:
        devices = plain_table("devices", "kind", "memory", "hosts", title=title)
        hosts: dict[tuple[str, int], list[str]] = {}
        for device in inventory.devices:
            hosts.setdefault((device.kind, device.memory_bytes), []).append(device.host)
        for (kind, memory_bytes), names in hosts.items():
            devices.add_row(f"{len(names):,}", kind, format_bytes(memory_bytes), f"{len(set(names)):,}")
    return Group(devices, _links_table(inventory))


def deployments_table(deployments: Iterable[Deployment]) -> Table:
    table = plain_table("id", "plan", "state", "stages", "created", "failure")
    for deployment in deployments:
        table.add_row(
            deployment.id,
            deployment.plan_id,
            deployment.state.value,
            str(deployment.num_stages),
            _time(deployment.created_at),
            Text(deployment.failure.message if deployment.failure else "-"),
        )
    return table


def deployment_table(deployment: Deployment) -> RenderableType:
    title = f"{deployment.id}: {deployment.state.value} ({deployment.plan_id}, generation {deployment.generation})"
    notes = [Text(f"by {deployment.plan_id}, {deployment.plan_reason}")] if deployment.plan_reason else []
    if deployment.asked_plan_id not in ("", deployment.plan_id):
        notes.append(Text(f"asked for with {deployment.asked_plan_id}"))
    broken = deployment.failure
    failure = [Text(f"{broken.message}{broken.place}", style="red")] if broken else []
    compiled = ("compiled, differs by",) if deployment.compile else ()
    has_copies = len(deployment.stages) > deployment.num_stages
    table = plain_table("stage", *(("copy",) if has_copies else ()), "device", "threads", *compiled, "daemon")
    for placement in deployment.stages:
        copies = deployment.copies_of(placement.stage)
        copy = str(copies.index(placement.device_id)) if len(copies) > 1 else "-"
        difference = "-" if placement.compiled_difference is None else f"{placement.compiled_difference:.1e}"
        table.add_row(
            str(placement.stage),
            *([copy] if has_copies else []),
            placement.device_id,
            str(placement.num_threads or "-"),
            *([difference] if deployment.compile else []),
            placement.daemon_address,
        )
    return Group(Text(title, style="bold", no_wrap=True), *notes, *failure, table)


def plain_table(*headings: str, title: str | None = None, caption: str | None = None) -> Table:
    """Ids are to be copied: where a terminal is narrow, all other columns give way first."""
    return Table(
        *(Column(heading, no_wrap=heading in _IDS, overflow="fold") for heading in headings),
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="default",
    )


def _plan_title(plan: Plan) -> str:
    name = plan.graph_name or plan.graph_id[:ID_CHARACTERS]
    stored = f"{plan.id}: " if isinstance(plan, StoredPlan) else ""
    stages = "1 stage" if len(plan.stages) == 1 else f"{len(plan.stages)} stages"
    return f"{stored}{name}, {plan.options.mode.name}, {stages}, {plan.options.routing.value} routing"


def _plan_caption(plan: Plan) -> str:
    text = f"bottleneck {format_seconds(plan.bottleneck_seconds)}, latency {format_seconds(plan.latency_seconds)}"
    if plan.step_seconds is not None:
        text += f", training step {format_seconds(plan.step_seconds)}"
    if plan.gap is not None:
        closeness = f"within {format_gap(plan.gap)} of optimal" if plan.gap else "proven optimal"
        if not isinstance(plan.options.mode, OptimalMode):
            closeness += f" for mode {plan.options.mode.name}"
        text += f"; {plan.options.objective.value} {closeness}"
    if plan.tie_groups:
        text += f", {len(plan.tie_groups)} tied tensor(s) held by several stages"
    return text


def _stage_cells(stage: Stage, devices: dict[str, Device]) -> tuple[RenderableType, ...]:
    peak_bytes = stage.memory.peak_bytes
    memories = [devices[device_id].memory_bytes for device_id in stage.device_ids if device_id in devices]
    device_bytes = min(memories, default=0)
    return (
        str(stage.index),
        ", ".join(stage.device_ids),
        f"{stage.num_nodes:,}",
        format_seconds(stage.compute_seconds),
        format_seconds(stage.communication_seconds),
        f"{format_bytes(peak_bytes)} / {format_bytes(device_bytes)}",
        memory_bar(peak_bytes, device_bytes),
    )


def _stage_line(plan: Plan, stage: Stage) -> str:
    """ "stage 1: encoder.layer.3 → pooler; takes 78.1 KiB, passes on 2 KiB; runs 12 nodes of earlier stages again" """
    goes_through = plan.options.routing is Routing.RELAY or stage.index in (0, len(plan.stages) - 1)
    modules = list(dict.fromkeys(path for path in (stage.first_module, stage.last_module) if path))
    consumed_bytes = sum(entry.size_bytes for entry in stage.liveness if entry.consumed)
    passing = [entry.size_bytes for entry in stage.liveness if entry.bypassing and not entry.consumed]
    way = "passes on" if goes_through else "is passed by"
    bypass = f", {way} {format_bytes(sum(passing))} (unread: {len(passing)})" if passing else ""
    again = f"; runs {stage.num_recomputed_nodes} nodes of earlier stages again" if stage.recomputed_ranges else ""
    where = f"stage {stage.index}: {' → '.join(modules) or 'no module'}"
    return f"{where}; takes {format_bytes(consumed_bytes)}{bypass}{again}"


def _links_table(inventory: Inventory) -> Table:
    default = inventory.default_link
    caption = f"others: {format_bytes(int(default.bytes_per_second))}/s, {format_seconds(default.latency_seconds)}"
    if len(inventory.links) <= MOST_LISTED:
        table = plain_table("from", "to", "speed", "latency", caption=caption)
        for (source, target), speed in sorted(inventory.links.items(), key=lambda item: item[0]):
            table.add_row(source, target, *_speed_and_latency(speed))
        return table
    host_of = {device.id: device.host for device in inventory.devices}
    sorts = Counter((host_of[source] == host_of[target], speed) for (source, target), speed in inventory.links.items())
    table = plain_table("links", "of", "speed", "latency", caption=caption)
    for (is_within, speed), count in sorts.most_common():
        table.add_row(f"{count:,}", "one host" if is_within else "two hosts", *_speed_and_latency(speed))
    return table


def _speed_and_latency(speed: LinkSpeed) -> tuple[str, str]:
    return f"{format_bytes(int(speed.bytes_per_second))}/s", format_seconds(speed.latency_seconds)


def _time(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
