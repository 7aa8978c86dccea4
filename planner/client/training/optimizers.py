"""The optimizer of a training, as data: torch's own, which each daemon makes over its own parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

from planner.errors import InvalidArgument
from planner.graph.ir import Graph
from protos.v1 import stage_daemon_pb2

NAMES = ("sgd", "adam", "adamw", "adafactor")
_MASTER_BYTES = 4
Option = float | bool | Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters whose qualified names fit `pattern` (* is any text) have a rate and options of their own.

    What is not said here is as the optimizer has it.
    """

    pattern: str
    learning_rate: float | None = None
    options: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """`options` as the keyword arguments of torch.optim's class, "lr" left out. The first group that fits counts.

    `master_weights` keeps float32 copies of bfloat16 and float16 parameters, steps those, and adds microbatches'
    gradients up in float32 too.
    """

    name: str
    learning_rate: float
    options: Mapping[str, Option] = field(default_factory=dict)
    groups: tuple[ParameterGroup, ...] = ()
    master_weights: bool = False

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidArgument(f"optimizer {self.name!r} is not known, needs one of {', '.join(NAMES)}")
        for rate in (self.learning_rate, *(group.learning_rate for group in self.groups)):
            if rate is not None and not (isinstance(rate, Real) and 0 <= rate < math.inf):
                raise InvalidArgument(f"optimizer {self.name}: a learning rate of {rate!r}, needs 0 or more")

    def learning_rates(self, factor: float) -> list[float]:
        """One per group, and last that of all other parameters. Raises InvalidArgument for a factor that makes none."""
        if not 0 <= factor < math.inf:
            raise InvalidArgument(
                f"the learning rate is to be {float(factor):g} times the optimizer's, needs 0 or more; look at what"
                " schedules it"
            )
        own = [group.learning_rate for group in self.groups]
        return [(self.learning_rate if rate is None else rate) * factor for rate in (*own, None)]


def bytes_per_parameter(optimizer: Optimizer, graph: Graph) -> float:
    """What daemons keep for each trained element beside it and its gradient, on average over the graph: for plans, as
    Training.optimizer_bytes_per_parameter. An option that a group has counts for all parameters."""
    options = [optimizer.options, *(group.options for group in optimizer.groups)]
    values = graph.values_by_id()
    trained = {state.tie_group or state.name: values[state.value_id] for state in graph.states if state.requires_grad}
    kept = num_elements = 0.0
    for value in trained.values():
        dims = [dim for dim in value.dims if isinstance(dim, int)]
        assert value.dtype is not None
        stepped = value.dtype.size_bytes
        has_master = optimizer.master_weights and stepped < _MASTER_BYTES
        if has_master:
            # The copy, and the sum of gradients.
            stepped, kept = _MASTER_BYTES, kept + 2 * _MASTER_BYTES * math.prod(dims)
        num_elements += math.prod(dims)
        kept += stepped * _num_kept(optimizer.name, options, dims)
    return kept / num_elements if num_elements else 0.0


def _num_kept(name: str, options: Sequence[Mapping[str, Option]], dims: Sequence[int]) -> int:
    """Elements that torch's optimizer keeps for a parameter."""
    whole = math.prod(dims)
    if name == "sgd":
        return whole if any(one.get("momentum") for one in options) else 0
    if name == "adafactor":
        return whole if len(dims) < 2 else whole // dims[-1] + whole // dims[-2]
    return whole * (3 if any(one.get("amsgrad") for one in options) else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """For float16: the loss is multiplied by a scale, which falls at each step whose gradients overflow."""

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    # Steps without an overflow until it grows.
    growth_steps: int = 2000


def optimizer_from_text(text: str) -> Optimizer:
    """ "adamw:lr=3e-4,weight_decay=0.1,betas=0.9/0.95" """
    name, _, rest = text.partition(":")
    options: dict[str, Option] = {}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if not separator:
            raise InvalidArgument(f"optimizer {text!r}: {part!r} is no option, needs NAME=VALUE")
        options[key.strip()] = _option(text, value.strip())
    rate = options.pop("lr", None)
    if not isinstance(rate, float):
        raise InvalidArgument(f"optimizer {text!r} has no learning rate, needs lr=NUMBER")
    return Optimizer(name=name.strip(), learning_rate=rate, options=options)


def _option(text: str, value: str) -> Option:
    if value in ("true", "false"):
        return value == "true"
    try:
        numbers = tuple(map(float, value.split("/")))
    except ValueError:
        raise InvalidArgument(f"optimizer {text!r}: {value!r} is no number, true or false") from None
    return numbers if len(numbers) > 1 else numbers[0]


def optimizer_to_proto(optimizer: Optimizer) -> stage_daemon_pb2.Optimizer:
    message = stage_daemon_pb2.Optimizer(name=optimizer.name, master_weights=optimizer.master_weights)
    groups = [(group.pattern, {**optimizer.options, **group.options}) for group in optimizer.groups]
    for pattern, options in (*groups, ("*", optimizer.options)):
        added = message.groups.add(pattern=pattern)
        for name, option in options.items():
            _fill(added.options[name], option)
    return message


def _fill(message: stage_daemon_pb2.OptimizerOption, option: Option) -> None:
    if isinstance(option, bool):
        message.flag = option
    elif isinstance(option, (int, float)):
        message.number = option
    else:
        message.numbers.numbers.extend(option)
