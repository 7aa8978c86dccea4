"""What `plan create` and `plan what-if` take on the command line beside the mode, and the PlanOptions that it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from planner.errors import OptionsError
from planner.partition.objective import Activations, Objective, PipelineSchedule, Training
from planner.plan.options import Mode, PlanOptions, RatesFrom, Routing, ShapeBucket

# Of a dimension's size: more would not fit its 64 bits.
MAX_DIGITS = 18


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


def training_of(
    schedule: PipelineSchedule | None,
    microbatches: int,
    optimizer_bytes: float,
    backward_ratio: float,
    activations: Activations = Activations.KEPT,
) -> Training | None:
    usual = Training()
    differs = {
        "--microbatches": microbatches != usual.microbatches,
        "--optimizer-bytes": optimizer_bytes != usual.optimizer_bytes_per_parameter,
        "--backward-ratio": backward_ratio != usual.backward_ratio,
        "--activations": activations is not usual.activations,
    }
    if schedule is None:
        flag = next((flag for flag, is_given in differs.items() if is_given), None)
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


def symbol_value(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdecimal() or len(value) > MAX_DIGITS:
        raise OptionsError(f"--symbol {text[:80]!r} is no NAME=VALUE with a whole number, such as batch=8")
    return name, int(value)


def symbol_values(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Raises OptionsError for a dimension that is given two values."""
    values: dict[str, int] = {}
    for name, value in map(symbol_value, texts):
        if values.setdefault(name, value) != value:
            raise OptionsError(f"--symbol: {name} is to be {values[name]} and {value}; name one")
    return tuple(values.items())


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
