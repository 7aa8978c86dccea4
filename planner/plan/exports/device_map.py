"""Hugging Face's device_map: the outermost modules that run whole on one device each.

accelerate moves a call's tensors to the device of the module that is called, and nothing else. So a module whose
children are on several devices may not hold tensors itself, nor combine values of several devices in its own forward: a
residual connection, for one, keeps its block together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from planner.errors import OptionsError
from planner.graph.ir import Graph, State, StateKind, ValueKind, ValueReference, values_read
from planner.plan.exports.module_tree import enclosing_modules, stage_of_node
from planner.plan.exports.ranks import refuse_copies
from planner.plan.plan import Plan


def device_map(
    graph: Graph, plan: Plan, names: Mapping[str, int | str] | None = None, *, nearest: bool = False
) -> dict[str, int | str]:
    """Module path to device: `names` [device id], else the device's number among those that the plan uses, in order.

    Modules in order of their first node, then those that run nothing, each with a module that shares its weights, if
    any. "" is the whole. A module that accelerate cannot run on the plan's devices is an OptionsError; with `nearest`
    it goes where most of its nodes run.
    """
    refuse_copies(plan)
    number = names or {device_id: index for index, device_id in enumerate(_devices(plan))}
    modules = _Modules(graph, plan)
    while (torn := modules.torn()) is not None:
        if not nearest or not torn:
            raise _cannot_run(torn, modules.devices_of(torn), nearest)
        modules.gather(torn)
    return {path: number[device_id] for path, device_id in modules.chosen().items()}


class _Modules:
    """Which devices each module's nodes run on, as planned and as far as modules were gathered on one."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self._graph = graph
        self._tensors = {value.id for value in graph.values if value.kind is ValueKind.TENSOR}
        stages = stage_of_node(plan)
        self._device_of_node = [plan.stages[stage].device_ids[0] for stage in stages]
        # States that may be on a device of their own: a constant is where the forward that makes it runs.
        self._states = [state for state in graph.states if state.kind is not StateKind.CONSTANT]
        self._count()

    def devices_of(self, path: str) -> list[str]:
        return sorted(self._counts[path])

    def gather(self, path: str) -> None:
        """Moves the module's nodes to the device that runs most of them; of equals, the first in the program."""
        [(device, _)] = self._counts[path].most_common(1)
        for index, node in enumerate(self._graph.nodes):
            if node.module_path == path or node.module_path.startswith(f"{path}."):
                self._device_of_node[index] = device
        self._count()

    def chosen(self) -> dict[str, str]:
        """Outermost modules of one device, and that device. Those that run nothing last."""
        running = self._running()
        device_of_path = dict(running)
        for state in self._states:
            if _covering(device_of_path, state.name) is None:
                owner = _owner(state)
                # A module whose children are on several devices is no key: its own tensor is.
                device_of_path[state.name if owner in self._counts else owner] = self._device_of_ties(state, running)
        return device_of_path

    def torn(self) -> str | None:
        """The first module on several devices that holds tensors itself, or combines values of several devices."""
        running = self._running()
        if not running:
            return ""
        # Where accelerate puts the arguments of the call.
        main = next(iter(running.values()))
        device_of_value: dict[int, str] = {
            entry.content.value_id: main for entry in self._graph.inputs if isinstance(entry.content, ValueReference)
        }
        owners = {state.value_id: _owner(state) for state in self._states}
        for node in self._graph.nodes:
            covering = _covering(running, node.module_path)
            tensors = [value_id for value_id in values_read(node) if value_id in self._tensors]
            if covering is not None:
                devices = {running[covering]}
            else:
                if any(owners.get(value_id) == node.module_path for value_id in tensors):
                    return node.module_path
                devices = {device_of_value[value_id] for value_id in tensors if value_id in device_of_value}
                if len(devices) > 1:
                    return node.module_path
            for device in devices:
                device_of_value.update(dict.fromkeys(node.outputs, device))
        return None

    def _running(self) -> dict[str, str]:
        running: dict[str, str] = {}
        for path, counts in self._counts.items():
            if len(counts) == 1 and _covering(running, path) is None:
                running[path] = next(iter(counts))
        return running

    def _count(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        for node, device in zip(self._graph.nodes, self._device_of_node, strict=True):
            for path in ("", *enclosing_modules(node.module_path)):
                self._counts.setdefault(path, Counter())[device] += 1

    def _device_of_ties(self, state: State, running: Mapping[str, str]) -> str:
        partners = (other.name for other in self._states if state.tie_group and other.tie_group == state.tie_group)
        places = (_covering(running, name) for name in partners)
        return next((running[path] for path in places if path is not None), next(iter(running.values())))


def _covering(paths: Iterable[str], name: str) -> str | None:
    """The outermost of the paths that is the module, or one around it."""
    return next((path for path in ("", *enclosing_modules(name)) if path in paths), None)


def _owner(state: State) -> str:
    return state.name.rpartition(".")[0]


def _devices(plan: Plan) -> list[str]:
    return list(dict.fromkeys(stage.device_ids[0] for stage in plan.stages))


def _cannot_run(path: str, devices: list[str], nearest: bool) -> OptionsError:
    where = f"runs on {', '.join(devices)}"
    if not path:
        return OptionsError(
            f"the module itself {where} and combines values of several of them in its own forward, or holds tensors; "
            f"accelerate moves tensors only into modules that are called: plan with fewer devices, or with --together",
            module=path,
        )
    return OptionsError(
        f"module {path!r} {where}, and holds tensors itself or combines values of several of them in its own forward; "
        f"accelerate runs such a module on one device: plan with --together {path!r}, or export with --nearest",
        module=path,
    )
