"""What a device is told of training: once per deployment, per client that trains, and per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stage_daemon.runtime.actions import Kind, Lane
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Item, MicrobatchFailure

OptionValue = float | bool | tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEdge:
    """`gradients` leads back from the target; its values are named as those that they are gradients of."""

    values: Edge
    gradients: Edge | None = None

    @property
    def gradient_ids(self) -> tuple[int, ...]:
        return tuple(value.value_id for value in self.gradients.values) if self.gradients else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """All others send to the first device over `gather`, which sends each the result over `spread`, both in one order.

    Only those that touch this device; without any it is alone. `states` are the names of a tie's members here, or of
    what is summed over a stage's copies.
    """

    gather: tuple[Edge, ...] = ()
    spread: tuple[Edge, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedState:
    """`position` orders the trained states of all devices; tied ones share it, and the `module_names` of all."""

    stage: int
    name: str
    position: int
    module_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLane:
    """`actions` of a step of `microbatches`, in order. Edges and sums by the indexes that actions speak of.

    `recomputing` stages keep what they were given alone, and run forward again before they run backward.
    """

    actions: Lane
    microbatches: int
    edges: Mapping[int, TrainingEdge] = field(default_factory=dict)
    copies: Mapping[int, Reduction] = field(default_factory=dict)
    ties: Mapping[int, Reduction] = field(default_factory=dict)
    agreement: Reduction = Reduction()
    trained: tuple[TrainedState, ...] = ()
    recomputing: frozenset[int] = frozenset()

    def entering(self, num_microbatches: int) -> list[int]:
        """Which of so many microbatches enter on this device."""
        own = {action.microbatch for action in self.actions if action.kind is Kind.TAKE_INPUT}
        return [place for place in range(num_microbatches) if place % self.microbatches in own]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """States whose names fit `pattern`, and no group before it. The learning rate comes with each step."""

    pattern: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    name: str
    groups: tuple[ParameterGroup, ...] = (ParameterGroup(pattern="*"),)
    master_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`weights`: what each microbatch's loss counts. `microbatches`: by their place among those, of what enters here
    what brings its inputs to the device; each goes when its turn comes, and with it the memory that they came in. With
    a `refusal` they do not fit, and the step only tells the other devices so.

    `first_microbatch` counts those of the same step that came before, whose gradients stay. One that `is_partial` only
    adds gradients up. One that `is_held` also sums them over devices and tells their norm, and leaves it to a later
    one, without microbatches, to apply them. `gradient_factor` is what they are multiplied by first.
    """

    number: int
    weights: tuple[float, ...]
    learning_rates: tuple[float, ...]
    microbatches: dict[int, Callable[[], tuple[Item, ...]]] = field(default_factory=dict)
    clip_norm: float | None = None
    gradient_factor: float = 1.0
    loss_scale: float = 1.0
    refusal: MicrobatchFailure | None = None
    first_microbatch: int = 0
    is_partial: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """`outputs` by place of the microbatches that leave here. Not `applied`: no weight has changed, on any device."""

    outputs: Mapping[int, tuple[Item, ...]]
    gradient_norm: float
    applied: bool
    failure: MicrobatchFailure | None
    busy_seconds: float
    seconds: float
