"""Planning options on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from planner.errors import OptionsError
from planner.partition.modes.table import MAX_ENTRIES, MODES, Mode, Option, options_of
from planner.partition.objective import Activations, Objective, PipelineSchedule, Training
from planner.plan.options import OptimalMode, PlanOptions, RatesFrom, Routing, ShapeBucket
from protos.v1 import plan_pb2

MAX_BUCKETS = 64
# One of each kind of device that a plan may use.
MAX_PROFILES = 256
MAX_MICROBATCHES_IN_FLIGHT = 1024

Choice = TypeVar("Choice", bound=Enum | None)

_ROUTINGS: Mapping[int, Routing] = {
    plan_pb2.ROUTING_UNSPECIFIED: Routing.DIRECT,
    plan_pb2.ROUTING_DIRECT: Routing.DIRECT,
    plan_pb2.ROUTING_RELAY: Routing.RELAY,
}
_OBJECTIVES: Mapping[int, Objective] = {
    plan_pb2.OBJECTIVE_UNSPECIFIED: Objective.THROUGHPUT,
    plan_pb2.OBJECTIVE_THROUGHPUT: Objective.THROUGHPUT,
    plan_pb2.OBJECTIVE_LATENCY: Objective.LATENCY,
    plan_pb2.OBJECTIVE_STEP_TIME: Objective.STEP_TIME,
    plan_pb2.OBJECTIVE_MEMORY: Objective.MEMORY,
}
_SCHEDULES: Mapping[int, PipelineSchedule] = {
    plan_pb2.PIPELINE_SCHEDULE_UNSPECIFIED: PipelineSchedule.ONE_F_ONE_B,
    plan_pb2.PIPELINE_SCHEDULE_GPIPE: PipelineSchedule.GPIPE,
    plan_pb2.PIPELINE_SCHEDULE_ONE_F_ONE_B: PipelineSchedule.ONE_F_ONE_B,
    plan_pb2.PIPELINE_SCHEDULE_INTERLEAVED: PipelineSchedule.INTERLEAVED,
    plan_pb2.PIPELINE_SCHEDULE_ZERO_BUBBLE: PipelineSchedule.ZERO_BUBBLE,
    plan_pb2.PIPELINE_SCHEDULE_BEST: PipelineSchedule.BEST,
    plan_pb2.PIPELINE_SCHEDULE_ZERO_BUBBLE_H2: PipelineSchedule.ZERO_BUBBLE_H2,
    plan_pb2.PIPELINE_SCHEDULE_ZERO_BUBBLE_V: PipelineSchedule.ZERO_BUBBLE_V,
    plan_pb2.PIPELINE_SCHEDULE_V_HALF: PipelineSchedule.V_HALF,
}
_ACTIVATIONS: Mapping[int, Activations] = {
    plan_pb2.ACTIVATIONS_UNSPECIFIED: Activations.KEPT,
    plan_pb2.ACTIVATIONS_KEPT: Activations.KEPT,
    plan_pb2.ACTIVATIONS_RECOMPUTED: Activations.RECOMPUTED,
    plan_pb2.ACTIVATIONS_AS_NEEDED: Activations.AS_NEEDED,
}
_RATES_FROM: Mapping[int, RatesFrom | None] = {
    plan_pb2.RATES_FROM_UNSPECIFIED: None,
    plan_pb2.RATES_FROM_OWN: RatesFrom.OWN,
    plan_pb2.RATES_FROM_NEWEST: RatesFrom.NEWEST,
}
# The last number of a choice is the one that names it.
_ROUTING_NUMBERS = {choice: number for number, choice in _ROUTINGS.items()}
_OBJECTIVE_NUMBERS = {choice: number for number, choice in _OBJECTIVES.items()}
_SCHEDULE_NUMBERS = {choice: number for number, choice in _SCHEDULES.items()}
_ACTIVATIONS_NUMBERS = {choice: number for number, choice in _ACTIVATIONS.items()}
_RATES_FROM_NUMBERS = {choice: number for number, choice in _RATES_FROM.items()}


def options_to_proto(options: PlanOptions) -> plan_pb2.PlanOptions:
    message = plan_pb2.PlanOptions(
        routing=_ROUTING_NUMBERS[options.routing],  # type: ignore[arg-type]
        microbatches_in_flight=options.microbatches_in_flight,
        symbol_values=dict(options.symbol_values),
        objective=_OBJECTIVE_NUMBERS[options.objective],  # type: ignore[arg-type]
        buckets=[
            plan_pb2.ShapeBucket(symbol_values=dict(bucket.symbol_values), weight=bucket.weight)
            for bucket in options.buckets
        ],
        training=_training_to_proto(options.training) if options.training else None,
        fixed=[plan_pb2.FixedModule(module_path=path, device_id=device) for path, device in options.fixed],
        together=[plan_pb2.ModuleGroup(module_paths=paths) for paths in options.together],
        saturate_host=options.saturate_host,
        rates_from=_RATES_FROM_NUMBERS[options.rates_from],  # type: ignore[arg-type]
        rates_from_profiles=options.rates_from_profiles,
    )
    _mode_to_proto(options.mode, message)
    return message


def options_from_proto(message: plan_pb2.PlanOptions) -> PlanOptions:
    """Raises OptionsError, naming the field. No mode means optimal, no routing DIRECT, no objective throughput."""
    in_flight = message.microbatches_in_flight
    _check("microbatches_in_flight", in_flight, MAX_MICROBATCHES_IN_FLIGHT, "; 0 means 2")
    _check_length("buckets", len(message.buckets), MAX_BUCKETS)
    _check_length("fixed", len(message.fixed), MAX_ENTRIES)
    _check_length("rates_from_profiles", len(message.rates_from_profiles), MAX_PROFILES)
    _check_length("together", sum(len(group.module_paths) for group in message.together), MAX_ENTRIES)
    return PlanOptions(
        mode=_mode(message),
        objective=_choice("objective", message.objective, _OBJECTIVES),
        routing=_choice("routing", message.routing, _ROUTINGS),
        microbatches_in_flight=in_flight,
        symbol_values=_symbol_values(message.symbol_values),
        buckets=tuple(
            ShapeBucket(symbol_values=_symbol_values(bucket.symbol_values), weight=bucket.weight or 1.0)
            for bucket in message.buckets
        ),
        training=_training(message.training) if message.HasField("training") else None,
        fixed=tuple((entry.module_path, entry.device_id) for entry in message.fixed),
        together=tuple(tuple(group.module_paths) for group in message.together),
        saturate_host=message.saturate_host,
        rates_from=_choice("rates_from", message.rates_from, _RATES_FROM),
        rates_from_profiles=tuple(message.rates_from_profiles),
    )


def _mode_to_proto(mode: Mode, message: plan_pb2.PlanOptions) -> None:
    part = getattr(message, mode.name)
    part.SetInParent()
    for option in options_of(type(mode)):
        value = getattr(mode, option.name)
        if option.is_list:
            getattr(part, option.name).extend(value)
        else:
            setattr(part, option.name, value)


def _mode(message: plan_pb2.PlanOptions) -> Mode:
    """What is 0 or empty has the option's default."""
    name = message.WhichOneof("mode")
    if name is None:
        return OptimalMode()
    mode, part = MODES[name], getattr(message, name)
    return mode(**{option.name: _option(name, option, getattr(part, option.name)) for option in options_of(mode)})


def _option(mode: str, option: Option, content: Any) -> Any:
    if option.is_list:
        if option.input.most is not None:
            _check_length(f"{mode}.{option.name}", len(content), option.input.most)
        return tuple(content)
    return content if option.is_required else content or option.default


def _training_to_proto(training: Training) -> plan_pb2.Training:
    return plan_pb2.Training(
        schedule=_SCHEDULE_NUMBERS[training.schedule],  # type: ignore[arg-type]
        microbatches=training.microbatches,
        optimizer_bytes_per_parameter=training.optimizer_bytes_per_parameter,
        backward_ratio=training.backward_ratio,
        activations=_ACTIVATIONS_NUMBERS[training.activations],  # type: ignore[arg-type]
    )


def _training(message: plan_pb2.Training) -> Training:
    usual = Training()
    has_field = message.HasField
    return Training(
        schedule=_choice("training.schedule", message.schedule, _SCHEDULES),
        microbatches=message.microbatches or usual.microbatches,
        optimizer_bytes_per_parameter=(
            message.optimizer_bytes_per_parameter
            if has_field("optimizer_bytes_per_parameter")
            else usual.optimizer_bytes_per_parameter
        ),
        backward_ratio=message.backward_ratio if has_field("backward_ratio") else usual.backward_ratio,
        activations=_choice("training.activations", message.activations, _ACTIVATIONS),
    )


def _symbol_values(values: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(values.items()))


def _choice(field: str, number: int, choices: Mapping[int, Choice]) -> Choice:
    if number not in choices:
        known = ", ".join(str(known) for known in sorted(choices))
        raise OptionsError(f"options.{field} is {number}, needs one of {known}", field=f"options.{field}")
    return choices[number]


def _check(field: str, number: int, most: int, remark: str = "") -> None:
    if number > most:
        raise OptionsError(f"options.{field} is {number}, needs 0 to {most}{remark}", field=f"options.{field}")


def _check_length(field: str, length: int, most: int) -> None:
    if length > most:
        raise OptionsError(f"options.{field} has {length} entries, at most {most} are read", field=f"options.{field}")
