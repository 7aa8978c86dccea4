"""Every mode that a plan can be asked for: the options that are its own, and the algorithm that answers.

From `MODES` follow the flags of the command line, the messages on the wire, the documents in the database and what
`planner.partition.registry` runs. To add a mode: its algorithm in a file of this folder, a class here, and in
`protos/v1/plan.proto` a message with fields of the same names, in the oneof `mode` under the mode's name.

An algorithm is imported when it runs: clients know every mode and load no solver.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, get_origin, get_type_hints

from planner.declared_types import check_declared
from planner.errors import OptionsError

if TYPE_CHECKING:
    from planner.partition.assignment import Assignment
    from planner.partition.problem import PartitionProblem
    from planner.partition.request import Request

MAX_EFFORT = 1000.0
# Of what a request is read for; a program has no more cuts, and an inventory no more devices, that make sense.
MAX_STAGES = 100_000
MAX_ENTRIES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionInput:
    """How an option is asked for.

    `flag` is the command line's: modes that share one share its meaning. "" where the command line reads the option
    from a file. `most` is the largest number, or for a tuple the number of entries, that a request may hold.
    """

    flag: str = ""
    help: str = ""
    metavar: str | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of a mode: int, bool, float, str, or a tuple of ints or strings."""

    name: str
    type: Any
    default: Any
    input: OptionInput

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) is tuple


def input_as(
    flag: str = "", help: str = "", *, metavar: str | None = None, most: int | None = None
) -> dict[str, OptionInput]:
    """The metadata of a mode's field."""
    return {_INPUT: OptionInput(flag=flag, help=help, metavar=metavar, most=most)}


_INPUT = "input"
_NUM_STAGES = input_as("--stages", "how many; 0 means as many as help.", most=MAX_STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode(ABC):
    """A way to choose the cuts.

    `chooses_stages`: it may choose how many stages there are and where they stand, so that it can make those that a
    schedule asks for. `bounds_any_objective`: its bound is on whatever objective is asked for; others bound the
    bottleneck of stages that run once.
    """

    name: ClassVar[str]
    chooses_stages: ClassVar[bool] = False
    bounds_any_objective: ClassVar[bool] = False

    def __post_init__(self) -> None:
        where = f"options.{self.name}"
        check_declared(self, where)
        for option in options_of(type(self)):
            number, most = getattr(self, option.name), option.input.most
            if not option.is_list and most is not None and not 0 <= number <= most:
                raise OptionsError(
                    f"{where}.{option.name} is {number}, needs 0 to {most}", field=f"{where}.{option.name}"
                )

    @abstractmethod
    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        """Deterministic. Raises OptionsError for what does not fit the problem, Infeasible if no assignment exists.

        An option that `Request` has too is read from there: modes build on each other with values of their own.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalMode(Mode):
    """The least objective that can be found, exact where that can be afforded, and a proven bound.

    `num_stages` 0 means as many as help. `free`: a device may hold several stages, from anywhere in the program.
    `replicate`: idle devices may run copies of a stage. `recompute`: a stage may run cheap nodes that read no
    parameter again, rather than receive what they make. `effort` scales the steps that a search may take.
    """

    name: ClassVar[str] = "optimal"
    chooses_stages: ClassVar[bool] = True
    bounds_any_objective: ClassVar[bool] = True
    num_stages: int = field(default=0, metadata=_NUM_STAGES)
    free: bool = field(
        default=False, metadata=input_as("--free", "a device may hold several stages, from anywhere in the program.")
    )
    replicate: bool = field(default=False, metadata=input_as("--replicate", "idle devices may run copies of a stage."))
    recompute: bool = field(
        default=False,
        metadata=input_as("--recompute", "stages may compute cheap inputs again rather than receive them."),
    )
    effort: float = field(default=1.0, metadata=input_as("--effort", "scales the steps that a search may take."))

    def __post_init__(self) -> None:
        Mode.__post_init__(self)
        if not math.isfinite(self.effort) or not 0 < self.effort <= MAX_EFFORT:
            raise OptionsError(f"mode optimal: effort is {self.effort}, needs more than 0 and at most {MAX_EFFORT:g}")

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.optimal import optimal

        return optimal(problem, request)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedMode(Mode):
    """Exact over the program order. `num_stages` 0 means as many as help."""

    name: ClassVar[str] = "balanced"
    chooses_stages: ClassVar[bool] = True
    num_stages: int = field(default=0, metadata=_NUM_STAGES)

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.balanced import balanced

        return balanced(problem, request.num_stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMode(Mode):
    """A stage ends after each named module has run for the last time (Slapo's cut_pipeline_stage)."""

    name: ClassVar[str] = "cut"
    module_paths: tuple[str, ...] = field(
        metadata=input_as("--cut", "cut after this module; repeat for more cuts.", metavar="PATH", most=MAX_ENTRIES)
    )

    def __post_init__(self) -> None:
        Mode.__post_init__(self)
        if not self.module_paths:
            raise OptionsError(
                "options.cut.module_paths is empty; name at least one module to cut after",
                field="options.cut.module_paths",
            )

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.cut import cut

        return cut(problem, self.module_paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleMode(Mode):
    """Everything on the first of the largest devices."""

    name: ClassVar[str] = "single"

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.single import single

        return single(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBasedMode(Mode):
    """First fit by bytes, in program order."""

    name: ClassVar[str] = "size_based"

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.size_based import size_based

        return size_based(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseNnMode(Mode):
    """Embeddings spread over the devices, all the rest beside each."""

    name: ClassVar[str] = "sparse_nn"

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.sparse_nn import sparse_nn

        return sparse_nn(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAwareMode(Mode):
    """The quickest for a lone batch of single devices and the size_based stages, improved while that helps."""

    name: ClassVar[str] = "cost_aware"

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.lone_batch import lone_batch

        return lone_batch(problem, request, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KlBasedMode(CostAwareMode):
    """As cost_aware, which searches in the same way."""

    name: ClassVar[str] = "kl_based"


@dataclass(frozen=True, slots=True, kw_only=True)
class AotBasedMode(Mode):
    """As given: each node's partition, by node index, and each partition's device id."""

    name: ClassVar[str] = "aot_based"
    partition_of_node: tuple[int, ...] = field(metadata=input_as())
    device_of_partition: tuple[str, ...] = field(metadata=input_as(most=MAX_ENTRIES))

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.aot_based import aot_based

        return aot_based(problem, self.partition_of_node, self._device_indexes(problem.labels.devices))

    def _device_indexes(self, device_ids: tuple[str, ...]) -> tuple[int, ...]:
        index = {device_id: position for position, device_id in enumerate(device_ids)}
        unknown = next((device_id for device_id in self.device_of_partition if device_id not in index), None)
        if unknown is not None:
            raise OptionsError(
                f"device {unknown!r} is not in the inventory, which has {', '.join(map(repr, device_ids[:10]))}",
                device=unknown,
            )
        return tuple(index[device_id] for device_id in self.device_of_partition)


MODES: Mapping[str, type[Mode]] = {
    mode.name: mode
    for mode in (
        OptimalMode,
        BalancedMode,
        CutMode,
        SingleMode,
        SizeBasedMode,
        SparseNnMode,
        CostAwareMode,
        KlBasedMode,
        AotBasedMode,
    )
}


@cache
def options_of(mode: type[Mode]) -> tuple[Option, ...]:
    types = get_type_hints(mode)
    return tuple(
        Option(name=one.name, type=types[one.name], default=one.default, input=one.metadata[_INPUT])
        for one in fields(mode)
    )
