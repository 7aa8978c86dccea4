"""Planning options on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import OptionsError
from planner.plan.options import BalancedMode, CutMode, Mode, PlanOptions, Routing, SizeBasedMode
from protos.v1 import plan_pb2

MAX_MODULE_PATHS = 100_000
MAX_STAGES = 100_000
MAX_MICROBATCHES_IN_FLIGHT = 1024

_ROUTING_NUMBERS: Mapping[Routing, plan_pb2.Routing.ValueType] = {
    Routing.DIRECT: plan_pb2.ROUTING_DIRECT,
    Routing.RELAY: plan_pb2.ROUTING_RELAY,
}
_ROUTINGS: Mapping[int, Routing] = {number: routing for routing, number in _ROUTING_NUMBERS.items()}


def options_to_proto(options: PlanOptions) -> plan_pb2.PlanOptions:
    message = plan_pb2.PlanOptions(
        routing=_ROUTING_NUMBERS[options.routing],
        microbatches_in_flight=options.microbatches_in_flight,
        symbol_values=dict(options.symbol_values),
    )
    mode = options.mode
    if isinstance(mode, CutMode):
        message.cut.module_paths.extend(mode.module_paths)
    elif isinstance(mode, SizeBasedMode):
        message.size_based.SetInParent()
    else:
        message.balanced.num_stages = mode.num_stages
        message.balanced.SetInParent()
    return message


def options_from_proto(message: plan_pb2.PlanOptions) -> PlanOptions:
    """Raises OptionsError, naming the field. No routing means DIRECT."""
    if message.microbatches_in_flight > MAX_MICROBATCHES_IN_FLIGHT:
        raise OptionsError(
            f"options.microbatches_in_flight is {message.microbatches_in_flight}, "
            f"needs 0 to {MAX_MICROBATCHES_IN_FLIGHT}; 0 means 2",
            field="options.microbatches_in_flight",
        )
    return PlanOptions(
        mode=_mode(message),
        routing=_routing(message.routing),
        microbatches_in_flight=message.microbatches_in_flight,
        symbol_values=tuple(sorted(message.symbol_values.items())),
    )


def _mode(message: plan_pb2.PlanOptions) -> Mode:
    found = message.WhichOneof("mode")
    if found is None:
        raise OptionsError("options.mode is not set; choose one of cut, size_based, balanced", field="options.mode")
    if found == "cut":
        return _cut(message.cut)
    if found == "size_based":
        return SizeBasedMode()
    if message.balanced.num_stages > MAX_STAGES:
        raise OptionsError(
            f"options.balanced.num_stages is {message.balanced.num_stages}, needs 0 to {MAX_STAGES}",
            field="options.balanced.num_stages",
        )
    return BalancedMode(num_stages=message.balanced.num_stages)


def _cut(message: plan_pb2.CutMode) -> CutMode:
    field = "options.cut.module_paths"
    if not message.module_paths:
        raise OptionsError(f"{field} is empty; name at least one module to cut after", field=field)
    if len(message.module_paths) > MAX_MODULE_PATHS:
        raise OptionsError(
            f"{field} has {len(message.module_paths)} entries, at most {MAX_MODULE_PATHS} are read", field=field
        )
    return CutMode(module_paths=tuple(message.module_paths))


def _routing(number: int) -> Routing:
    if number == plan_pb2.ROUTING_UNSPECIFIED:
        return Routing.DIRECT
    try:
        return _ROUTINGS[number]
    except KeyError:
        raise OptionsError(
            f"options.routing is {number}, needs ROUTING_DIRECT or ROUTING_RELAY", field="options.routing"
        ) from None
