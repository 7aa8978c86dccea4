"""Other systems' ranks: one for each stage of a plan, and how many layers each has."""

from __future__ import annotations

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers
from planner.plan.plan import Plan


def layers_of_ranks(
    graph: Graph, plan: Plan, *, nearest: bool = False, empty_first: bool = True, empty_last: bool = True
) -> tuple[int, ...]:
    """[stages]. `empty_first`, `empty_last`: that rank has something to run where it has no layer.

    Raises OptionsError where a cut is not between layers, or a rank has nothing to run.
    """
    counts = find_layers(graph, plan, nearest=nearest).counts(len(plan.stages))
    last = len(counts) - 1
    idle = next(
        (
            stage
            for stage, count in enumerate(counts)
            if not count and not (empty_first and stage == 0) and not (empty_last and stage == last)
        ),
        None,
    )
    if idle is not None:
        raise OptionsError(
            f"stage {idle} runs no whole layer, and this format has nothing else for its device to run: plan with "
            f"fewer devices, or export with --format device-map or torch-pipelining",
            stage=idle,
        )
    return counts


def refuse_shared_devices(plan: Plan) -> None:
    """Raises OptionsError where two stages are on one device."""
    devices = [stage.device_ids[0] for stage in plan.stages]
    again = next((stage for stage, device in enumerate(devices) if device in devices[:stage]), None)
    if again is not None:
        raise OptionsError(
            f"stages {devices.index(devices[again])} and {again} are both on {devices[again]}, and this format has "
            f"another device for each stage: plan with --mode balanced, and with a schedule that has one stage on each",
            stage=again,
        )


def refuse_copies(plan: Plan) -> None:
    """Raises OptionsError where a stage has several devices."""
    _refuse_copies(plan, 1, "one device for each stage")


def refuse_uneven_copies(plan: Plan) -> None:
    """Raises OptionsError where one stage has more devices than another: copies of a whole pipeline have as many."""
    fewest = min(len(stage.device_ids) for stage in plan.stages)
    _refuse_copies(plan, fewest, "as many devices for each stage")


def _refuse_copies(plan: Plan, most: int, needed: str) -> None:
    copied = next((stage for stage in plan.stages if len(stage.device_ids) > most), None)
    if copied is not None:
        raise OptionsError(
            f"stage {copied.index} runs on {len(copied.device_ids)} devices, which share its microbatches, and this "
            f"format has {needed}: plan without --saturate-host",
            stage=copied.index,
        )
