"""A parameter that stands for those of all stages where a loop of torch looks at gradients: to take their norm, or to
scale them, as clipping and loss scaling do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import torch
from torch import nn

from planner.errors import InvalidArgument

_TOLERANCE = 1e-5
_NORMS = frozenset({torch._foreach_norm, torch.linalg.vector_norm})


class StandIn(nn.Parameter):
    """Its gradient has the norm of all, and is found when somebody reads it: no step needs it, and daemons are asked.

    Two elements: what changes each by itself, as `clip_grad_value_` does, leaves them in another ratio, and is refused.
    """

    find_norm: Callable[[], float | None]
    when_zeroed: Callable[[], None]
    _norm: float
    _gradient: torch.Tensor | None
    _has_stepped: bool
    _proportion: torch.Tensor
    # Of the second element to the first: its square is lost in the norm of both.
    _ratio: float

    @classmethod
    def of(cls, find_norm: Callable[[], float | None], when_zeroed: Callable[[], None], dtype: torch.dtype) -> StandIn:
        """`find_norm` gives None where there is no gradient, `when_zeroed` hears of a module around that sets it to
        None. `dtype`: that of what it stands for."""
        made = cls(torch.zeros(2, dtype=dtype))
        made.find_norm, made.when_zeroed = find_norm, when_zeroed
        made._ratio = (torch.finfo(dtype).eps / 2) ** 0.5
        made._proportion = torch.tensor([1.0, made._ratio], dtype=dtype)
        made.forget()
        return made

    @property
    def grad(self) -> torch.Tensor | None:
        if self._gradient is None and (norm := nan if self._has_stepped else self.find_norm()) is not None:
            self._norm = norm
            self._gradient = (self._proportion * norm).to(self.device).as_subclass(_Gradient)
        return self._gradient

    @grad.setter
    def grad(self, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            raise InvalidArgument("gradients are on the daemons: a loop can scale them, and not set them")
        self.when_zeroed()

    def forget(self) -> None:
        self._gradient, self._norm, self._has_stepped = None, 0.0, False

    def end_step(self) -> None:
        """In torch gradients stay after a step: so does one that was read. Of another nobody can tell the norm now."""
        self._has_stepped = True

    def factor(self) -> float:
        """What the gradient was multiplied by since it was read, before its step."""
        if self._gradient is None or self._has_stepped or not 0.0 < self._norm < inf:
            return 1.0
        first, second = self._gradient.as_subclass(torch.Tensor).tolist()
        if not abs(second - first * self._ratio) <= _TOLERANCE * abs(second):
            raise InvalidArgument(
                "gradients were changed otherwise than by a factor, as clip_grad_value_ does. They are on the daemons,"
                " where they can be scaled: clip by their norm"
            )
        return float(first / self._norm)


class _Gradient(torch.Tensor):
    """Tells its norm of type 2 only, for of others it does not know those of the gradients that it stands for."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _NORMS:
            order = kwargs.get("ord", args[1] if len(args) > 1 else 2.0)
            if order != 2.0:
                raise InvalidArgument(
                    f"gradients are on the daemons, which tell their norm of type 2, and not of {order}"
                )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)
