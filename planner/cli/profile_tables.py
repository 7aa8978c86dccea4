"""Measured times as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.cli.quantities import format_seconds
from planner.cli.tables import ID_CHARACTERS, plain_table
from planner.client.records import Profile, ProfileRecord


def profiles_table(profiles: Iterable[ProfileRecord]) -> Table:
    table = plain_table("id", "graph", "kind", "at", "measured", "in all", "fitted rates", "source")
    for profile in profiles:
        table.add_row(
            profile.id,
            profile.graph_id[:ID_CHARACTERS],
            profile.device_kind,
            ", ".join(f"{name}={value}" for name, value in profile.symbol_values) or "-",
            f"{profile.num_measured:,} of {profile.num_nodes:,}",
            format_seconds(profile.total_seconds),
            _rates(profile),
            profile.source or "-",
        )
    return table


def profile_table(profile: Profile) -> RenderableType:
    """The record, a line for what deliveries cost, one for updates of states, and one for each node without a time."""
    unmeasured = [Text(f"node {node} has no time: {reason}") for node, reason in profile.unmeasured]
    return Group(profiles_table([profile.record]), *_delivery(profile.record), *_update(profile.record), *unmeasured)


def _delivery(profile: ProfileRecord) -> Iterator[Text]:
    if profile.delivery is not None:
        input_seconds, output_seconds = profile.delivery.input_seconds, profile.delivery.output_seconds
        yield Text(
            f"a client's inputs take {format_seconds(input_seconds)}, its outputs {format_seconds(output_seconds)}"
        )


def _update(profile: ProfileRecord) -> Iterator[Text]:
    if profile.update is not None:
        norms, optimizer = profile.update.norm_seconds, profile.update.optimizer_seconds
        yield Text(f"norms of all gradients take {format_seconds(norms)}, a step of SGD {format_seconds(optimizer)}")


def _rates(profile: ProfileRecord) -> str:
    """ "0.081 TFLOP/s, 64 GB/s, 2.94 µs a call, ±12 %" """
    if profile.calibration is None:
        return "-"
    rates = profile.calibration.rates
    return (
        f"{rates.float32_flops_per_second / 1e12:.3g} TFLOP/s, {rates.memory_bytes_per_second / 1e9:.3g} GB/s, "
        f"{format_seconds(rates.node_seconds)} a call, ±{profile.calibration.median_error:.0%}"
    )
