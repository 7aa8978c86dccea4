"""What `plan create` and `plan what-if` take on the command line, and the PlanOptions that it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.document_file import expect_mapping, read_document
from planner.errors import OptionsError
from planner.graph.bounds import shown_value
from planner.partition.objective import Activations, Objective, PipelineSchedule, Training
from planner.plan.options import (
    AotBasedMode,
    BalancedMode,
    CostAwareMode,
    CutMode,
    KlBasedMode,
    Mode,
    OptimalMode,
    PlanOptions,
    RatesFrom,
    Routing,
    ShapeBucket,
    SingleMode,
    SizeBasedMode,
    SparseNnMode,
)

# Of a dimension's size: more would not fit its 64 bits.
MAX_DIGITS = 18


class ModeName(Enum):
    OPTIMAL = "optimal"
    BALANCED = "balanced"
    CUT = "cut"
    SINGLE = "single"
    SIZE_BASED = "size_based"
    SPARSE_NN = "sparse_nn"
    COST_AWARE = "cost_aware"
    KL_BASED = "kl_based"
    AOT_BASED = "aot_based"


_PLAIN: Mapping[ModeName, Callable[[], Mode]] = {
    ModeName.SINGLE: SingleMode,
    ModeName.SIZE_BASED: SizeBasedMode,
    ModeName.SPARSE_NN: SparseNnMode,
    ModeName.COST_AWARE: CostAwareMode,
    ModeName.KL_BASED: KlBasedMode,
}

ModeOption = Annotated[
    ModeName | None, typer.Option("--mode", help="How to choose the cuts; `cut` where --cut is given, else `optimal`.")
]
CutOption = Annotated[
    list[str] | None, typer.Option("--cut", metavar="PATH", help="Cut after this module; repeat for more cuts.")
]
StagesOption = Annotated[
    int, typer.Option("--stages", min=0, max=100_000, help="optimal, balanced: how many; 0 means as many as help.")
]
FreeOption = Annotated[
    bool, typer.Option("--free", help="optimal: a device may hold several stages, from anywhere in the program.")
]
ReplicateOption = Annotated[bool, typer.Option("--replicate", help="optimal: idle devices may run copies of a stage.")]
RecomputeOption = Annotated[
    bool, typer.Option("--recompute", help="optimal: stages may compute cheap inputs again rather than receive them.")
]
EffortOption = Annotated[float, typer.Option("--effort", help="optimal: scales the steps that a search may take.")]
AssignmentOption = Annotated[
    Path | None,
    typer.Option(
        "--assignment",
        metavar="FILE",
        help='aot_based: JSON with "partition_of_node", a number for each node, and "device_of_partition", device ids.',
    ),
]
ObjectiveOption = Annotated[Objective, typer.Option("--objective", help="What to make least.")]
ScheduleOption = Annotated[
    PipelineSchedule | None, typer.Option("--schedule", help="Plan for training under this schedule.")
]
MicrobatchesOption = Annotated[
    int, typer.Option("--microbatches", min=1, max=1 << 16, help="Training: microbatches per step.")
]
OptimizerBytesOption = Annotated[
    float, typer.Option("--optimizer-bytes", help="Training: bytes of optimizer state per trained parameter.")
]
BackwardRatioOption = Annotated[
    float, typer.Option("--backward-ratio", help="Training: a backward pass's time over its forward pass's.")
]
ActivationsOption = Annotated[
    Activations,
    typer.Option("--activations", help="Training: kept for the backward pass, or computed again to save memory."),
]
RoutingOption = Annotated[Routing, typer.Option("--routing", help="Straight to each consumer, or hop by hop.")]
InFlightOption = Annotated[int, typer.Option("--in-flight", min=0, max=1024, help="Microbatches per edge; 0 means 2.")]
SymbolOption = Annotated[
    list[str] | None, typer.Option("--symbol", metavar="NAME=VALUE", help="Plan for this size of a dimension.")
]
BucketOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bucket", metavar="NAME=VALUE,…[:WEIGHT]", help="Plan for several shapes at once; repeat for each shape."
    ),
]
FixOption = Annotated[
    list[str] | None, typer.Option("--fix", metavar="MODULE=DEVICE", help="Put a module on a device; repeat.")
]
TogetherOption = Annotated[
    list[str] | None,
    typer.Option(
        "--together", metavar="MODULE,…", help="Modules that share a stage; or layers.* to keep each layer whole."
    ),
]
SaturateOption = Annotated[
    bool, typer.Option("--saturate-host", help="Give every stage copies on idle devices while they suffice.")
]
RatesFromOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rates-from",
        metavar="own|newest|PROFILE",
        help="Whose fitted rates speak for nodes without a measured time: the graph's own profiles, else the newest of "
        "the kind, or this profile's before all; repeat for other kinds. Else what the server is set to.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFlags:
    """The flags that belong to a mode. Each is refused with a mode that does not take it."""

    name: ModeName | None
    cuts: Sequence[str] = ()
    stages: int = 0
    free: bool = False
    replicate: bool = False
    recompute: bool = False
    effort: float = 1.0
    assignment: Path | None = None

    def mode(self) -> Mode:
        name = self.name or self._usual()
        self._refuse(name)
        if name is ModeName.CUT:
            return CutMode(module_paths=tuple(self.cuts))
        if name is ModeName.BALANCED:
            return BalancedMode(num_stages=self.stages)
        if name is ModeName.AOT_BASED:
            return read_assignment(self.assignment)
        if name is ModeName.OPTIMAL:
            return OptimalMode(
                num_stages=self.stages,
                free=self.free,
                replicate=self.replicate,
                recompute=self.recompute,
                effort=self.effort,
            )
        return _PLAIN[name]()

    def _usual(self) -> ModeName:
        if self.cuts:
            return ModeName.CUT
        return ModeName.AOT_BASED if self.assignment else ModeName.OPTIMAL

    def _refuse(self, name: ModeName) -> None:
        only = {
            "--cut": (self.cuts, (ModeName.CUT,)),
            "--stages": (self.stages, (ModeName.OPTIMAL, ModeName.BALANCED)),
            "--free": (self.free, (ModeName.OPTIMAL,)),
            "--replicate": (self.replicate, (ModeName.OPTIMAL,)),
            "--recompute": (self.recompute, (ModeName.OPTIMAL,)),
            "--effort": (self.effort != 1.0, (ModeName.OPTIMAL,)),
            "--assignment": (self.assignment, (ModeName.AOT_BASED,)),
        }
        for flag, (given, modes) in only.items():
            if given and name not in modes:
                takers = " or ".join(mode.value for mode in modes)
                raise OptionsError(f"{flag} with --mode {name.value}: only --mode {takers} takes it")


def training_of(
    schedule: PipelineSchedule | None,
    microbatches: int,
    optimizer_bytes: float,
    backward_ratio: float,
    activations: Activations = Activations.KEPT,
) -> Training | None:
    usual = Training()
    given = {
        "--microbatches": microbatches != usual.microbatches,
        "--optimizer-bytes": optimizer_bytes != usual.optimizer_bytes_per_parameter,
        "--backward-ratio": backward_ratio != usual.backward_ratio,
        "--activations": activations is not usual.activations,
    }
    if schedule is None:
        flag = next((flag for flag, is_given in given.items() if is_given), None)
        if flag is not None:
            raise OptionsError(f"{flag} without --schedule: it is about training; name the schedule to train under")
        return None
    return Training(
        schedule=schedule,
        microbatches=microbatches,
        optimizer_bytes_per_parameter=optimizer_bytes,
        backward_ratio=backward_ratio,
        activations=activations,
    )


def read_assignment(path: Path | None) -> AotBasedMode:
    """Raises InvalidArgument that names the file and what is wrong in it."""
    if path is None:
        raise OptionsError("--mode aot_based needs --assignment FILE: each node's partition, each partition's device")
    document = expect_mapping(path, read_document(path), "partition_of_node and device_of_partition")
    missing = [key for key in ("partition_of_node", "device_of_partition") if key not in document]
    if missing:
        raise OptionsError(f"{path} has no {missing[0]}; it needs partition_of_node and device_of_partition")
    partitions, devices = document["partition_of_node"], document["device_of_partition"]
    if not _all(partitions, int) or any(partition < 0 for partition in partitions):
        raise OptionsError(f"{path}: partition_of_node needs a list of whole numbers from 0, one for each node")
    if not _all(devices, str):
        raise OptionsError(f"{path}: device_of_partition needs a list of device ids")
    beyond = next((partition for partition in partitions if partition >= len(devices)), None)
    if beyond is not None:
        raise OptionsError(f"{path}: partition {shown_value(beyond)} has no device; there are {len(devices)}")
    return AotBasedMode(partition_of_node=tuple(partitions), device_of_partition=tuple(devices))


def symbol_value(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdecimal() or len(value) > MAX_DIGITS:
        raise OptionsError(f"--symbol {text[:80]!r} is no NAME=VALUE with a whole number, such as batch=8")
    return name, int(value)


def symbol_values(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Raises OptionsError for a dimension that is given two values."""
    chosen: dict[str, int] = {}
    for name, value in map(symbol_value, texts):
        if chosen.setdefault(name, value) != value:
            raise OptionsError(f"--symbol: {name} is to be {chosen[name]} and {value}; name one")
    return tuple(chosen.items())


def shape_bucket(text: str) -> ShapeBucket:
    """ "batch=8,seq=128:0.5" """
    values, _, weight = text.partition(":")
    try:
        bucket = ShapeBucket(symbol_values=tuple(sorted(symbol_value(part) for part in values.split(","))))
        return replace(bucket, weight=float(weight)) if weight else bucket
    except (OptionsError, ValueError):
        raise OptionsError(f"--bucket {text!r} is no NAME=VALUE,…[:WEIGHT], such as batch=8,seq=128:0.5") from None


def rates_source(texts: Sequence[str]) -> tuple[RatesFrom | None, tuple[str, ...]]:
    """(where from, ids of profiles): one of the two, or neither."""
    words = {source.value: source for source in RatesFrom}
    word = next((text for text in texts if text in words), None)
    if word is None:
        return None, tuple(texts)
    if len(texts) > 1:
        raise OptionsError(f"--rates-from {word} stands alone; or name profiles, one for each kind")
    return words[word], ()


def fixed_module(text: str) -> tuple[str, str]:
    module, _, device = text.partition("=")
    if not module or not device:
        raise OptionsError(f"--fix {text!r} is no MODULE=DEVICE, such as embeddings=gpu0")
    return module, device


def modules_together(text: str) -> tuple[str, ...]:
    modules = tuple(part for part in text.split(",") if part)
    if len(modules) < 2 and "*" not in text:
        raise OptionsError(
            f"--together {text!r} names {len(modules)} modules, needs two or more with commas between, "
            f"or a pattern such as layers.* to keep each layer whole"
        )
    return modules


def plan_options(
    mode: Mode,
    *,
    objective: Objective,
    training: Training | None,
    routing: Routing,
    in_flight: int,
    symbols: Sequence[str],
    buckets: Sequence[str],
    fixed: Sequence[str],
    together: Sequence[str],
    saturate_host: bool,
    rates_from: Sequence[str] = (),
) -> PlanOptions:
    source, profiles = rates_source(rates_from)
    return PlanOptions(
        mode=mode,
        objective=objective,
        routing=routing,
        microbatches_in_flight=in_flight,
        symbol_values=symbol_values(symbols),
        buckets=tuple(map(shape_bucket, buckets)),
        training=training,
        fixed=tuple(map(fixed_module, fixed)),
        together=tuple(map(modules_together, together)),
        saturate_host=saturate_host,
        rates_from=source,
        rates_from_profiles=profiles,
    )


def _all(found: object, kind: type) -> bool:
    return isinstance(found, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in found)
