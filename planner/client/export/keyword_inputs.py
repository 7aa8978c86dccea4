"""Inputs that a forward takes as **kwargs, as adapters around a model do. Dynamic shapes go by the inputs' names, of
which torch.export would know that of the parameter alone, and fail.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter
from typing import Any

from torch import nn


@contextmanager
def named_keywords(module: nn.Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile the module's forward has a parameter for each of kwargs that it has none for otherwise."""
    forward = module.forward
    signature = inspect.signature(forward)
    parameters = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    if len(parameters) == len(signature.parameters):
        yield
        return
    own_names = {one.name for one in parameters}
    others = [Parameter(name, Parameter.KEYWORD_ONLY) for name in kwargs if name not in own_names]

    @functools.wraps(forward)
    def named_forward(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    own = vars(module)
    before = own.get("forward")
    own["forward"] = named_forward
    named_forward.__signature__ = signature.replace(parameters=[*parameters, *others])  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if before is None:
            del own["forward"]
        else:
            own["forward"] = before


def by_name(module: nn.Module, kwargs: Mapping[str, Any], dynamic_shapes: Any) -> Any:
    """The shapes with those that stand below the name of the **kwargs parameter beside the others."""
    parameters = inspect.signature(module.forward).parameters.values()
    rest = next((one.name for one in parameters if one.kind is Parameter.VAR_KEYWORD), None)
    if rest is None or rest in kwargs or not isinstance(dynamic_shapes, Mapping):
        return dynamic_shapes
    if not isinstance(dynamic_shapes.get(rest), Mapping):
        return dynamic_shapes
    return {**{name: shape for name, shape in dynamic_shapes.items() if name != rest}, **dynamic_shapes[rest]}
