"""Peak bytes of each stage, counted anew, and whether each device can hold its stages.

States once per storage; in training their gradients and what the optimizer keeps. Activations of one microbatch over
program order: what enters, by the plan's routing, lives from the start, what is made lives from its node, both to the
last access of their storage, or to the end if needed behind. Views are free. Buffers: what enters and what leaves, once
per microbatch in flight, and in inference at least once per copy of a neighbour that a copy meets; where a copy is the
first or the last stage's, once more for those that pass between it and the others. Saved, for each microbatch that the
stage has run forward and not yet backward: what it made and what it was given, as far as a backward pass goes through
it; where activations are computed again, what it was given and reads, and what it makes once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from planner.graph.alias import storage_roots
from planner.graph.ir import Graph, Node, values_in
from planner.graph.saved import Saved, saved_by_rule
from planner.partition.training.pipeline_order import Pass
from planner.plan.invariants.broken import broken
from planner.plan.invariants.gradients import Gradients
from planner.plan.invariants.history import Effect, ProgramHistory
from planner.plan.invariants.tables import Needs
from planner.plan.options import Routing
from planner.plan.pass_orders import pass_orders
from planner.plan.plan import Plan, Stage, StageMemory

OPAQUE_ELEMENT_BYTES = 4


def check_memory(
    plan: Plan,
    graph: Graph,
    history: ProgramHistory,
    gradients: Gradients,
    needs: Sequence[Needs],
    sizes: Mapping[int, int],
    saved: Sequence[Saved] = (),
) -> None:
    """`saved` [nodes]: what backward passes keep, where not by rule."""
    recount = _Recount(plan, graph, history, gradients, sizes, saved)
    used = {device.id: 0 for device in plan.inventory.devices}
    for stage, need in zip(plan.stages, needs, strict=True):
        memory = recount.stage(stage, need)
        if memory != stage.memory:
            raise broken("stage_memory", f"stage {stage.index} takes {stage.memory}, needs {memory}", stage=stage.index)
        for device_id in stage.device_ids:
            used[device_id] += memory.peak_bytes
    for device in plan.inventory.devices:
        if used[device.id] > device.memory_bytes:
            raise broken(
                "device_memory",
                f"the stages on device {device.id!r} take {used[device.id]} bytes, it has {device.memory_bytes}",
                device=device.id,
            )


class _Recount:
    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        history: ProgramHistory,
        gradients: Gradients,
        sizes: Mapping[int, int],
        saved: Sequence[Saved],
    ) -> None:
        self._history = history
        self._gradients = gradients
        self._training = plan.options.training
        self._kept = kept_microbatches(plan)
        self._element_bytes = {
            value.id: value.dtype.size_bytes if value.dtype else OPAQUE_ELEMENT_BYTES for value in graph.values
        }
        self._sizes = sizes
        self._roots = storage_roots(graph)
        self._states = {state.name: state.value_id for state in graph.states}
        self._returned = {value_id for output in graph.outputs for value_id in values_in(output.content)}
        self._windows = _windows(plan)
        self._num_stages = len(plan.stages)
        self._in_flight = plan.options.in_flight
        self._relays = plan.options.routing is Routing.RELAY
        self._saved = {
            node: saved[node] if saved else self._saved_by_rule(graph.nodes[node]) for node in gradients.nodes
        }
        self._saved_roots = {
            self._roots[value]
            for node, kept in self._saved.items()
            for value in _needed_by_backward(history.effects[node], kept)
        }

    def stage(self, stage: Stage, need: Needs) -> StageMemory:
        entering = self._entering(stage, need)
        leaving = [value for value in need.outputs if value not in self._history.given_tokens]
        own_bytes, entering_bytes = self._saved_bytes(stage, entering) if self._training else (0, 0)
        again = own_bytes if stage.recomputes_activations else 0
        tokens = {self._history.given_tokens[self._states[name]] for name in need.states}
        return StageMemory(
            state_bytes=sum(self._sizes[token] for token in tokens),
            activation_bytes=self._activation_bytes(stage, need, entering) + again,
            buffer_bytes=self._windows[stage.index] * sum(self._sizes[value] for value in (*entering, *leaving))
            + self._between_copies(stage, entering),
            gradient_bytes=sum(self._sizes[token] for token in tokens & self._gradients.trained_tokens),
            optimizer_bytes=sum(self._optimizer_bytes(token) for token in tokens & self._gradients.trained_tokens),
            saved_bytes=self._kept[stage.index] * (own_bytes + entering_bytes - again),
        )

    def _entering(self, stage: Stage, need: Needs) -> list[int]:
        """What the stage is sent: of what it does not read, what goes on from here."""
        goes_on = self._relays or stage.index in (0, self._num_stages - 1)
        return [value for value, (_, consumed, bypassing) in need.entry.items() if consumed or (bypassing and goes_on)]

    def _saved_by_rule(self, node: Node) -> Saved:
        result = node.outputs[0]
        return saved_by_rule(node, self._sizes[result] if result else 0, self._element_bytes[result] if result else 0)

    def _between_copies(self, stage: Stage, entering: Sequence[int]) -> int:
        """Inputs, and outputs, on their way between the copy that clients reach and the others."""
        if self._training is not None or len(stage.device_ids) == 1:
            return 0
        inputs = entering if stage.index == 0 else ()
        outputs = self._returned - set(self._states.values()) if stage.index == self._num_stages - 1 else ()
        size_bytes = sum(self._sizes[value] for value in (*inputs, *outputs))
        return max(self._in_flight, len(stage.device_ids)) * size_bytes

    def _optimizer_bytes(self, token: int) -> int:
        assert self._training is not None
        elements = self._sizes[token] / self._element_bytes[token]
        return math.ceil(elements * self._training.optimizer_bytes_per_parameter)

    def _saved_bytes(self, stage: Stage, entering: Sequence[int]) -> tuple[int, int]:
        """Of one microbatch: of what it makes, and of what it was given."""
        saved, values_read = 0, set[int]()
        owned = set(self._states.values())
        for index in stage.node_indexes():
            effect = self._history.effects[index]
            new_values = [v for v in effect.outputs if self._roots[v] == v and v not in owned]
            saved += sum(self._sizes[value] for value in new_values if value in self._saved_roots)
            saved += self._saved[index].within_bytes if index in self._saved else 0
            if stage.recomputes_activations or index in self._gradients.nodes:
                values_read.update(effect.reads)
        return saved, sum(self._sizes[value] for value in values_read.intersection(entering))

    def _activation_bytes(self, stage: Stage, need: Needs, entering: Sequence[int]) -> int:
        nodes = stage.node_indexes()
        if not nodes:
            return sum(self._sizes[value] for value in entering)
        last_use: dict[int, int] = {}
        born: dict[int, int] = {}
        state_roots = {self._roots[value] for value in self._states.values()}
        for step, index in enumerate(nodes):
            effect = self._history.effects[index]
            for value in (*effect.reads, *effect.outputs):
                last_use[self._roots[value]] = step
            for value in effect.outputs:
                if self._roots[value] == value and value not in state_roots:
                    born[value] = step
        for value in self._held_to_the_end(stage, need):
            last_use[self._roots[value]] = len(nodes) - 1
        change = [0] * (len(nodes) + 1)
        for value, step in born.items():
            change[step] += self._sizes[value]
            change[last_use[value] + 1] -= self._sizes[value]
        for value in entering:
            change[0] += self._sizes[value]
            change[last_use[self._roots[value]] + 1] -= self._sizes[value]
        return _peak(change[:-1])

    def _held_to_the_end(self, stage: Stage, need: Needs) -> list[int]:
        """What has to be there when the stage ends."""
        passing = [value for value, (_, _, bypassing) in need.entry.items() if bypassing]
        return [*need.outputs, *passing]


def _needed_by_backward(effect: Effect, saved: Saved) -> Iterator[int]:
    if saved.inputs:
        yield from effect.reads
    if saved.outputs:
        yield from effect.outputs


def _windows(plan: Plan) -> list[int]:
    """By stage. In training the number is that of the options; a step's edges hold what its order needs."""
    in_flight = plan.options.in_flight
    counts = [len(stage.device_ids) for stage in plan.stages]
    windows = [in_flight for _ in counts]
    if plan.options.training is not None:
        return windows
    for edge in plan.edges:
        for own, other in ((edge.source_stage, edge.target_stage), (edge.target_stage, edge.source_stage)):
            of_first_copy = range(0, math.lcm(counts[own], counts[other]), counts[own])
            windows[own] = max(windows[own], len({k % counts[other] for k in of_first_copy}))
    return windows


def kept_microbatches(plan: Plan) -> list[int]:
    """By stage, how many one copy has run forward and not yet backward at most, in its schedule's own order."""
    if plan.options.training is None:
        return [0] * len(plan.stages)
    most = [0] * len(plan.stages)
    for order in pass_orders(plan).values():
        for stage in {step.stage for step in order}:
            changes = (
                1 if step.kind is Pass.FORWARD else 0 if step.kind is Pass.BACKWARD_INPUT else -1
                for step in order
                if step.stage == stage
            )
            most[stage] = max(most[stage], *accumulate(changes))
    return most


def _peak(changes: Sequence[int]) -> int:
    level = peak = 0
    for change in changes:
        level += change
        peak = max(peak, level)
    return peak
