"""Slapo's analysis of tied weights: parameters that are one memory under several names.

What differs from Slapo: ties are found by the storage they lie in, one pass over the parameters instead of a comparison
of all pairs, so that a transposed or sliced view of a weight is tied to it too; and a group lists every name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import fx, nn

from planner.fx_compat.pipeline.layout import STAGE_PREFIX
from planner.fx_compat.splitting.storage import storage_of
from planner.fx_compat.splitting.targets import attribute_at

TieGroups = dict[nn.Parameter, set[tuple[str, int]]] | dict[nn.Parameter, list[tuple[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    parameter: nn.Parameter
    name: str
    stage_id: int


def analyze_tie_weights(top_mod: nn.Module, is_pipeline_partitioned: bool) -> TieGroups:
    """From the first parameter of each tied group to the (name, stage id) pairs of the group, in order of names.

    If partitioned, each child of `top_mod` is a stage, names are those within the stage and come in a list, and only
    groups that lie in two or more stages are given; else the stage id is 0 and the pairs come in a set.
    """
    named = tuple(_of_stages(top_mod)) if is_pipeline_partitioned else tuple(_parameters(top_mod, 0))
    groups = _tied(named)
    if not is_pipeline_partitioned:
        return {group[0].parameter: {(item.name, item.stage_id) for item in group} for group in groups}
    return {
        group[0].parameter: [(item.name, item.stage_id) for item in group]
        for group in groups
        if len({item.stage_id for item in group}) > 1
    }


def _of_stages(top_mod: nn.Module) -> Iterator[_Named]:
    for stage_id, stage in enumerate(_stages(top_mod)):
        yield from _parameters(stage, stage_id)


def _stages(top_mod: nn.Module) -> list[nn.Module]:
    """In call order where the top module calls "submod_..." stages, else its children as they are."""
    if isinstance(top_mod, fx.GraphModule):
        called = dict.fromkeys(str(node.target) for node in top_mod.graph.find_nodes(op="call_module"))
        if stages := [attribute_at(top_mod, name) for name in called if name.startswith(STAGE_PREFIX)]:
            return stages
    return [child for child in top_mod._modules.values() if child is not None]


def _parameters(module: nn.Module, stage_id: int) -> Iterator[_Named]:
    """Under every name, also where a module or a parameter has several."""
    for prefix, part in module.named_modules(remove_duplicate=False):
        for name, parameter in part._parameters.items():
            if parameter is not None:
                full_name = f"{prefix}.{name}" if prefix else name
                yield _Named(parameter=parameter, name=full_name, stage_id=stage_id)


def _tied(named: Sequence[_Named]) -> list[list[_Named]]:
    """Groups of two or more that overlap in memory, in order of their first member, members in the order given."""
    by_storage: dict[tuple[str, int], dict[int, None]] = {}
    for position, item in enumerate(named):
        by_storage.setdefault(storage_of(item.parameter), {})[position] = None
    groups = [
        sorted(group) for positions in by_storage.values() for group in _overlapping(positions, named) if len(group) > 1
    ]
    return [[named[position] for position in group] for group in sorted(groups)]


def _overlapping(positions: Iterable[int], named: Sequence[_Named]) -> Iterator[list[int]]:
    """Parts one storage's parameters where their bytes part. An empty parameter is tied to itself only."""
    group: list[int] = []
    reached = 0
    for start, end, position in sorted((*_bytes(named[position].parameter), position) for position in positions):
        if group and (start >= reached) and named[position].parameter is not named[group[-1]].parameter:
            yield group
            group = []
        group.append(position)
        reached = max(reached, end) if len(group) > 1 else end
    yield group


def _bytes(parameter: nn.Parameter) -> tuple[int, int]:
    """First byte and end of what a parameter spans in its storage."""
    if storage_of(parameter)[0] != "storage" or not parameter.numel():
        return 0, 0
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    first, item_bytes = int(parameter.storage_offset()), parameter.element_size()
    return first * item_bytes, (first + last + 1) * item_bytes
