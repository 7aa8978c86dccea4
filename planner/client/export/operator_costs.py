"""What a call of a custom operator costs, by functions that stand beside the operator where it is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import UnsupportedModule

if TYPE_CHECKING:
    import torch
    from torch import fx


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """Of one call: a multiply and an add count as two FLOPs. Without `bytes_moved` each tensor is read once and each
    result written once.
    """

    flops: int | torch.SymInt = 0
    bytes_moved: int | torch.SymInt | None = None


CostFunction = Callable[..., OperatorCost]

_COSTS: dict[str, CostFunction] = {}


def operator_cost(name: str) -> Callable[[CostFunction], CostFunction]:
    """Registers the cost function of "my::gelu", or of the one overload "my::gelu.fast".

    It is called at export, once for each call of the operator and with the same arguments. Its tensors hold nothing:
    it reads their shapes and dtypes, where a size may be a torch.SymInt, and returns whole numbers made of them by
    + - * // % and torch.sym_min and sym_max. A branch on a size is taken as for the example inputs.
    """

    def register(cost: CostFunction) -> CostFunction:
        _COSTS[name] = cost
        return cost

    return register


def cost_of(node: fx.Node, name: str, overload: str) -> OperatorCost | None:
    """By the function registered here, else by torch's `register_flop_formula`; None where there is neither.

    Raises UnsupportedModule where the function fails, or returns no whole numbers.
    """
    from torch import fx
    from torch.utils.flop_counter import flop_registry

    target: Any = node.target
    cost = _COSTS.get(f"{name}.{overload}") or _COSTS.get(name)
    formula: Any = flop_registry.get(target.overloadpacket)
    if cost is None and formula is None:
        return None
    args = fx.map_arg(node.args, lambda one: one.meta["val"])
    kwargs = fx.map_arg(node.kwargs, lambda one: one.meta["val"])
    try:
        operator_cost = (
            cost(*args, **kwargs) if cost else OperatorCost(flops=formula(*args, **kwargs, out_val=node.meta["val"]))
        )
    except Exception as error:
        raise UnsupportedModule(f"{name}: its cost function failed: {type(error).__name__}: {error}") from error
    _check(operator_cost, name)
    return operator_cost


def _check(cost: OperatorCost, name: str) -> None:
    import torch

    if not isinstance(cost, OperatorCost):
        raise UnsupportedModule(f"{name}: its cost function returned {type(cost).__name__}, needs an OperatorCost")
    for what, count in (("flops", cost.flops), ("bytes_moved", cost.bytes_moved)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int | torch.SymInt)):
            raise UnsupportedModule(
                f"{name}: its cost function returned {what} {count}, needs a whole number; divide with //, not with /"
            )
