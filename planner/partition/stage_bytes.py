"""What each stage of an assignment holds, of all stages in one pass; evaluate.py says what is counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.partition.problem import Booleans, Integers, PartitionProblem
from planner.partition.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageBytes:
    """[stages]; `moved` and `saved` are of one microbatch. `saved` is 0 but in training."""

    states: Integers
    gradients: Integers
    optimizer: Integers
    activations: Integers
    moved: Integers
    saved: Integers


class NodesByStage:
    """The nodes stage after stage, each stage's in program order: `order[begin[s]:begin[s + 1]]`."""

    def __init__(self, stage_of_node: Integers, num_stages: int) -> None:
        self.stage_of_node = stage_of_node
        self.order = np.argsort(stage_of_node, kind="stable")
        self.begin = np.searchsorted(stage_of_node[self.order], np.arange(num_stages + 1))

    def stages(self) -> Iterator[Integers]:
        return (self.order[start:end] for start, end in pairwise(self.begin.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Entering:
    """Each (value, stage that it enters) once: read there or, where it is relayed, sent on to a later stage. What the
    caller gives enters the first stage, which sends it on."""

    values: Integers
    stages: Integers


def stage_bytes(problem: PartitionProblem, nodes: NodesByStage, flow: Traffic, recomputing: Booleans) -> StageBytes:
    """Every stage has a node; those that are `recomputing` compute their activations again before a backward pass.

    O((reads + values * stages that each passes) * log).
    """
    entering = _relayed(flow) if problem.relay else _sent_directly(flow)
    states, gradients, optimizer = _held(problem, nodes.stage_of_node, flow.num_stages)
    own_saved, received_saved = _saved(problem, nodes.stage_of_node, flow, recomputing)
    return StageBytes(
        states=states,
        gradients=gradients,
        optimizer=optimizer,
        activations=_activations(problem, nodes, flow, entering) + np.where(recomputing, own_saved, 0),
        moved=_moved(problem, flow, entering),
        saved=received_saved + np.where(recomputing, 0, own_saved),
    )


def _relayed(flow: Traffic) -> _Entering:
    stages, hops = _span(flow.made_in + 1, flow.last_needed_in)
    return _Entering(values=np.repeat(np.arange(hops.size), hops), stages=stages)


def _sent_directly(flow: Traffic) -> _Entering:
    inputs = np.flatnonzero((flow.made_in < 0) & (flow.last_needed_in >= 0))
    return _Entering(
        values=np.concatenate([inputs, flow.crossings.values]),
        stages=np.concatenate([np.zeros_like(inputs), flow.crossings.targets]),
    )


def state_holders(problem: PartitionProblem, stage_of_node: Integers, num_stages: int) -> tuple[Integers, Integers]:
    """(state, stage that holds it) pairs, some of them more than once: where it is read, and where it is returned."""
    read = ~problem.use_is_return
    states = np.concatenate([problem.use_state[read], problem.returned_state])
    last = np.full(problem.returned_state.size, num_stages - 1, dtype=np.int64)
    return states, np.concatenate([stage_of_node[problem.use_node[read]], last])


def _held(problem: PartitionProblem, stage_of_node: Integers, num_stages: int) -> tuple[Integers, Integers, Integers]:
    """Of the distinct states that each stage holds: their bytes, their gradients', the optimizer's."""
    states, holders = state_holders(problem, stage_of_node, num_stages)
    pairs = np.unique(states * num_stages + holders)
    states, holders = pairs // num_stages, pairs % num_stages
    sizes = (problem.state_bytes, problem.state_gradient_bytes, problem.state_optimizer_bytes)
    state_bytes, gradients, optimizer = (_summed(holders, size[states], num_stages) for size in sizes)
    return state_bytes, gradients, optimizer


def _moved(problem: PartitionProblem, flow: Traffic, entering: _Entering) -> Integers:
    """Bytes that enter, and bytes made here that a later stage or the caller needs."""
    leaving = (flow.made_in >= 0) & ((flow.last_needed_in > flow.made_in) | problem.value_returned)
    stages = np.concatenate([entering.stages, flow.made_in[leaving]])
    sizes = np.concatenate([problem.value_bytes[entering.values], problem.value_bytes[leaving]])
    return _summed(stages, sizes, flow.num_stages)


def _saved(
    problem: PartitionProblem, stage_of_node: Integers, flow: Traffic, recomputing: Booleans
) -> tuple[Integers, Integers]:
    """What the backward pass reads of what each stage makes, and what it keeps of what enters."""
    if problem.training is None:
        nothing = np.zeros(flow.num_stages, dtype=np.int64)
        return nothing, nothing
    own = problem.made_roots
    stages = stage_of_node[problem.read_node]
    reads = (problem.node_has_gradient[problem.read_node] | recomputing[stages]) & (
        flow.made_in[problem.read_value] < stages
    )
    pairs = np.unique(problem.read_value[reads] * flow.num_stages + stages[reads])
    own_bytes = _summed(stage_of_node[problem.root_producer[own]], problem.root_saved_bytes[own], flow.num_stages)
    own_bytes += _summed(stage_of_node, problem.node_kept_bytes, flow.num_stages)
    given_bytes = problem.value_bytes[pairs // flow.num_stages]
    return own_bytes, _summed(pairs % flow.num_stages, given_bytes, flow.num_stages)


def _activations(problem: PartitionProblem, nodes: NodesByStage, flow: Traffic, entering: _Entering) -> Integers:
    """The peak of each stage: what becomes live and what is let go of, at the places of the nodes that run there.

    Nodes stand by stage, in program order, with one more place behind each stage's last.
    """
    stage_of_node, order = nodes.stage_of_node, nodes.order
    begin = nodes.begin + np.arange(nodes.begin.size)
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size) + stage_of_node[order]
    last = _LastAccesses(problem, stage_of_node, flow, place, end=begin[1:] - 2)

    own, producers = problem.made_roots, problem.root_producer[problem.made_roots]
    own_ends = last.find(own, stage_of_node[producers], begin)
    given_ends = last.find(problem.value_root[entering.values], entering.stages, begin)
    given_bytes = problem.value_bytes[entering.values]
    change = np.zeros(begin[-1], dtype=np.int64)
    np.add.at(change, place[producers], problem.root_bytes[own])
    np.subtract.at(change, own_ends + 1, problem.root_bytes[own])
    np.add.at(change, begin[entering.stages], given_bytes)
    np.subtract.at(change, given_ends + 1, given_bytes)
    # What a stage lets go of is what it took, so that each begins at nothing.
    return np.maximum.reduceat(np.cumsum(change), begin[:-1])


class _LastAccesses:
    """Where a stage last needs a root: its last access there, or the stage's `end` if a later stage or the caller needs
    it then."""

    def __init__(
        self, problem: PartitionProblem, stage_of_node: Integers, flow: Traffic, place: Integers, end: Integers
    ) -> None:
        nodes, accessed = problem.root_accesses
        kept_in, hops = _span(np.maximum(flow.made_in, 0), flow.last_needed_in - ~problem.value_returned)
        roots_in_later_use = np.repeat(problem.value_root, hops)
        to_caller = problem.shown_root[problem.shown_node == problem.num_nodes]
        at_caller = np.full(to_caller.size, flow.num_stages - 1, dtype=np.int64)
        roots = np.concatenate([accessed, roots_in_later_use, to_caller])
        stages = np.concatenate([stage_of_node[nodes], kept_in, at_caller])
        places = np.concatenate([place[nodes], end[kept_in], end[at_caller]])
        self._num_stages = flow.num_stages
        self._keys, pair = np.unique(roots * flow.num_stages + stages, return_inverse=True)
        self._last = np.full(self._keys.size, -1, dtype=np.int64)
        np.maximum.at(self._last, pair, places)

    def find(self, roots: Integers, stages: Integers, begin: Integers) -> Integers:
        """The place before the stage's first for what it does not need."""
        keys = roots * self._num_stages + stages
        at = np.minimum(np.searchsorted(self._keys, keys), self._keys.size - 1)
        return np.where(self._keys[at] == keys, self._last[at], begin[stages] - 1) if keys.size else keys


def _span(first: Integers, last: Integers) -> tuple[Integers, Integers]:
    """All numbers from each first to its last, one list after the other; and how many each has."""
    counts = np.maximum(last - first + 1, 0)
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(starts - first, counts), counts


def _summed(stages: Integers, sizes: Integers, num_stages: int) -> Integers:
    total = np.zeros(num_stages, dtype=np.int64)
    np.add.at(total, stages, sizes)
    return total
