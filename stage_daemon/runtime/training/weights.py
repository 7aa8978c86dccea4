"""What a device trains: parameters, each once, whichever of its stages hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils.hooks import RemovableHandle

from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.training.records import Reduction, TrainedState


@dataclass(slots=True, kw_only=True, eq=False)
class Weight:
    """`stage` is the first of the device's that holds it. `names` are all that it has here, `module_names` all.

    `master`: a copy of more bits that optimizers step in its place, and in which microbatches' gradients add up: a sum
    of many in few bits is off by several times what each of them is.
    """

    stage: int
    names: tuple[str, ...]
    module_names: tuple[str, ...]
    position: int
    parameter: torch.nn.Parameter
    master: torch.Tensor | None = None
    _hook: RemovableHandle | None = None

    @property
    def stepped(self) -> torch.Tensor:
        """What optimizers step, and has the sum of gradients."""
        return self.parameter if self.master is None else self.master

    def keep_master(self, dtype: torch.dtype | None) -> None:
        """From now on, of this dtype; None: no longer. Gradients that were added up are forgotten."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self.master = None
        self.parameter.grad = None
        if dtype is not None:
            self.master = self.parameter.detach().to(dtype)
            self._hook = self.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._add_to_master
            )

    def _add_to_master(self, parameter: torch.Tensor) -> None:
        assert self.master is not None
        assert parameter.grad is not None
        if self.master.grad is None:
            self.master.grad = parameter.grad.to(self.master.dtype)
        else:
            self.master.grad += parameter.grad
        parameter.grad = None


class Weights:
    """Tied states of several stages of the device become one parameter. `copied`: by stage, what its copies sum."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        trained: Sequence[TrainedState],
        ties: Mapping[int, Reduction],
        copies: Mapping[int, Reduction],
    ) -> None:
        tied = {index: _share(stages, reduction.states) for index, reduction in ties.items()}
        self.all = tuple(_weights(stages, trained))
        of_parameter = {id(one.parameter): one for one in self.all}
        self.tied = {index: of_parameter[id(parameter)] for index, parameter in tied.items()}
        self.copied = {
            index: tuple(of_parameter[id(_parameter(stages, index, name))] for name in reduction.states)
            for index, reduction in copies.items()
        }
        self._of_stage = {
            index: tuple(one.parameter for one in self.all if any(one.parameter is state for state in _states(stage)))
            for index, stage in stages.items()
        }

    def of_stage(self, stage: int) -> tuple[torch.nn.Parameter, ...]:
        """All that its passes give gradients of."""
        return self._of_stage[stage]

    def stepped_with(self, stage: int) -> tuple[Weight, ...]:
        """Those that its optimizer step changes: each weight has one."""
        return tuple(weight for weight in self.all if weight.stage == stage)

    def forget_gradients(self) -> None:
        for weight in self.all:
            weight.stepped.grad = None


def gradient_norms(weights: Iterable[Weight], loss_scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """(norms, positions) of the weights that have a gradient, which is divided by the scale."""
    positioned_norms = []
    for weight in weights:
        gradient = weight.stepped.grad
        if gradient is not None:
            if loss_scale != 1.0:
                gradient.mul_(1.0 / loss_scale)
            positioned_norms.append((weight.position, torch.linalg.vector_norm(gradient.detach())))
    norms = (
        torch.stack([norm.double() for _, norm in positioned_norms])
        if positioned_norms
        else torch.empty(0, dtype=torch.float64)
    )
    positions = torch.tensor([position for position, _ in positioned_norms], dtype=torch.int64)
    return norms.cpu(), positions


def _states(stage: Stage) -> Iterable[torch.Tensor]:
    return stage.module.states().values() if stage.module else ()


def _share(stages: Mapping[int, Stage], names: Iterable[str]) -> torch.nn.Parameter:
    shared: torch.nn.Parameter | None = None
    names = frozenset(names)
    for _, stage in sorted(stages.items()):
        assert stage.module is not None
        for name, tensor in stage.module.states().items():
            if name in names and isinstance(tensor, torch.nn.Parameter):
                shared = tensor if shared is None else shared
                stage.module.share(name, shared)
    if shared is None:
        raise InvalidRequest(f"tied states {sorted(names)}: no stage here holds one that is trained")
    return shared


def _parameter(stages: Mapping[int, Stage], stage: int, name: str) -> torch.nn.Parameter:
    module = stages[stage].module if stage in stages else None
    parameter = module.states().get(name) if module else None
    if not isinstance(parameter, torch.nn.Parameter) or not parameter.requires_grad:
        raise InvalidRequest(f"state {name!r} of stage {stage} is to be trained and is no parameter here")
    return parameter


def _weights(stages: Mapping[int, Stage], trained: Sequence[TrainedState]) -> Iterable[Weight]:
    by_parameter: dict[int, list[tuple[TrainedState, torch.nn.Parameter]]] = {}
    for state in sorted(trained, key=lambda state: (state.stage, state.position)):
        parameter = _parameter(stages, state.stage, state.name)
        by_parameter.setdefault(id(parameter), []).append((state, parameter))
    for states in by_parameter.values():
        first, parameter = states[0]
        yield Weight(
            stage=first.stage,
            names=tuple(dict.fromkeys(state.name for state, _ in states)),
            module_names=first.module_names or (first.name,),
            position=min(state.position for state, _ in states),
            parameter=parameter,
        )
