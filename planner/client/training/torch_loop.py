"""A deployment that trains in the place of a module and its optimizer: a loop written for torch runs as it is.

    model = PipelinedModule(trainer)
    optimizer = PipelinedOptimizer(model)
    for batch in loader:
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

`model(...)` runs both passes on the daemons, since a pipeline runs them in one another; `backward` only says that the
gradients are wanted, and `step` has all stages apply them. Where a loop does something else than that, this raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from planner.client.pytree import unflatten_outputs
from planner.client.training.trainer import Accumulated, StepResult, Trainer
from planner.errors import Conflict, InvalidArgument
from planner.graph.state_names import StateNames

# A loss divided by the number of batches is rounded in its own precision.
_TOLERANCE = 1e-5


class PipelinedModule(nn.Module):
    """Takes batches as the module does that was exported, and returns what it returned, the loss of the whole batch.

    `accumulate` is the number of batches of a step: the loop divides each loss by it, as torch's loops do. In eval
    mode, or without gradients, it evaluates. Its one parameter is for loops that ask for devices, and never changes.
    """

    # Of Hugging Face's Trainer: the loss is a mean over the batch, and the trainer divides it.
    accepts_loss_kwargs = False

    def __init__(self, trainer: Trainer, *, accumulate: int = 1) -> None:
        super().__init__()
        if accumulate < 1:
            raise InvalidArgument(f"accumulate is {accumulate}, needs at least 1")
        self.trainer = trainer
        self.accumulate = accumulate
        self.num_forward = self.num_backward = 0
        self.place = nn.Parameter(torch.zeros(()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return self.trainer.evaluate(*args, **kwargs)
        done = self.trainer.accumulate(*args, share=1.0 / self.accumulate, **kwargs)
        self.num_forward += 1
        like = done.outputs[0][done.loss_position]
        loss = _Passed.apply(self.place, torch.tensor(done.loss, dtype=like.dtype), self._take_back)  # type: ignore[no-untyped-call]
        return unflatten_outputs(self.trainer.graph, _joined(done, loss))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Read from the daemons, under the module's own names."""
        return self.trainer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        """Written to the daemons. With `strict`, raises InvalidArgument where one is missing."""
        missing = set(StateNames(self.trainer.graph).saved) - state_dict.keys()
        if strict and missing:
            raise InvalidArgument(f"state {min(missing)!r} is missing; name all, or load with strict=False")
        self.trainer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets what has run and was not stepped."""
        self.num_forward = self.num_backward = 0
        self.trainer.discard()

    def _take_back(self, factor: float) -> None:
        """`factor`: the gradient that the loss came back with."""
        if abs(factor * self.accumulate - 1.0) > _TOLERANCE:
            raise InvalidArgument(
                f"the loss is scaled by {factor:g}, and its passes ran with {1.0 / self.accumulate:g}: a loss may be"
                " divided by the number of batches of a step, named by accumulate, and by nothing else; scaling against"
                " overflow and clipping are client.train's"
            )
        self.num_backward += 1


class PipelinedOptimizer(torch.optim.Optimizer):
    """Its learning rate is what schedulers change; groups of the deployment's optimizer keep their ratio to it."""

    def __init__(self, model: PipelinedModule) -> None:
        self._model = model
        self.result: StepResult | None = None
        super().__init__([model.place], {"lr": model.trainer.learning_rate})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Applies what ran since the last step. `result` has what Trainer.step returns."""
        if closure is not None:
            raise InvalidArgument("a step with a closure runs passes again, which a pipeline has applied by then")
        model = self._model
        if model.num_backward != model.num_forward:
            raise Conflict(
                f"{model.num_forward} batches ran forward since the last step and {model.num_backward} backward: the"
                " gradients of all would count; evaluate under no_grad, or call zero_grad before the step's first batch"
            )
        model.num_forward = model.num_backward = 0
        self.result = model.trainer.apply(learning_rate=self.param_groups[0]["lr"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._model.zero_grad()


class _Passed(torch.autograd.Function):
    """A loss whose passes have run: going back through it gives nothing but word that it was gone through."""

    @staticmethod
    def forward(ctx: Any, place: torch.Tensor, loss: torch.Tensor, take_back: Callable[[float], None]) -> torch.Tensor:
        ctx.take_back = take_back
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        ctx.take_back(float(gradients[0]))
        return None, None, None


def _joined(done: Accumulated, loss: torch.Tensor) -> list[Any]:
    """Leaves of the whole batch: the loss, tensors one after another along their first dimension, others stacked."""
    leaves: list[Any] = []
    for position, parts in enumerate(zip(*done.outputs, strict=True)):
        if position == done.loss_position:
            leaves.append(loss)
        elif not isinstance(parts[0], torch.Tensor):
            # A number; None, where it was not chosen.
            leaves.append(parts[0])
        else:
            leaves.append(torch.cat(parts) if parts[0].dim() else torch.stack(parts))
    return leaves
