"""Least latency of a single pass: exact on graphs with few order ideals, else the best placement found and a bound.

Coarse units first, for a placement to start from; then the finest, where chains of ideals are all there is: flows along
paths bound them, blocks that cannot be in a better chain drop out, and a search over labels decides the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.cost_graphs.placement.infeasible import check_can_exist, nothing_fits
from planner.cost_graphs.placement.problem import Placement, PlacementProblem, node_order, producers_of_nodes
from planner.cost_graphs.single_pass.blocks import PassIdeals, pass_blocks, pass_ideals, prefix_ideals
from planner.cost_graphs.single_pass.chain import ChainSpace, cheapest_chain
from planner.cost_graphs.single_pass.contraction import pass_units
from planner.cost_graphs.single_pass.cutting_planes import FlowProgramme, raise_bound
from planner.cost_graphs.single_pass.devices_of_runs import PassIncumbent
from planner.cost_graphs.single_pass.finish_times import FinishTimes
from planner.cost_graphs.single_pass.label_setting import Budget, OpenChains, search_labels
from planner.cost_graphs.single_pass.unit_graph import PassGraph, pass_graph, segmented_units
from planner.partition.out_of_time import OutOfTime, never
from planner.partition.placement.device_states import counted_states, num_counted_states, uncounted_states
from planner.partition.problem import Floats, Integers

MAX_IDEALS = 100_000
MAX_BLOCKS = 40_000_000
MAX_STATES = 256
# Where a level has more ideals, a coarser one is searched first.
QUICK_IDEALS = 3_000
NUM_SEGMENTS = 300
# With even more, only intervals of one order are tried.
MAX_PREFIXES = 1_000
ROUNDS = 200
COARSE_ROUNDS = 40
# Each flow costs a product for each label, and the last ones bound best.
LABEL_FLOWS = 6
FEW_LABELS = 10
MANY_LABELS = 1000
MAX_LABEL_BLOCKS = 300_000
# Labels that a search with few of each ideal and then one with many may make together: with graphs of about 20 nodes,
# 45 s of CPU and 350 MB at most.
MAX_EXTENSIONS = 1_000_000
# Blocks times device states times rounds of cutting planes.
WEIGHINGS = 200_000_000
# Labels that tell devices apart have two columns for each.
MAX_DEVICES_APART = 16


def best_latency(
    problem: PlacementProblem, *, contiguous: bool = False, effort: int = 1, out_of_time: OutOfTime = never
) -> Placement:
    """The least `single_pass_seconds`, and a bound that equals it where the search is a proof.

    If `contiguous`, an accelerator runs one block. `effort` scales how many labels are kept, and made. Raises
    Infeasible.
    """
    check_can_exist(problem, class_bytes=np.where(problem.class_is_parallel, np.inf, problem.class_bytes))
    search = _Search(problem, contiguous=contiguous, effort=effort, out_of_time=out_of_time)
    search.run()
    devices, seconds = search.incumbent.devices, search.incumbent.seconds
    if devices is None:
        raise nothing_fits(problem, "single-pass", proven=False)
    lower = seconds if search.lower_bound >= search.incumbent.to_beat else search.lower_bound
    return Placement(
        device_of_node=tuple(devices.tolist()), value_seconds=seconds, lower_bound_seconds=min(lower, seconds)
    )


class _Search:
    def __init__(self, problem: PlacementProblem, *, contiguous: bool, effort: int, out_of_time: OutOfTime) -> None:
        self._problem, self._contiguous = problem, contiguous
        self._effort, self._out_of_time = effort, out_of_time
        self.incumbent = PassIncumbent(problem, contiguous=contiguous)
        self.lower_bound = path_bound(problem)
        self._flow: Floats | None = None
        # Chains of any level are placements of the same nodes: what one level learns, all know.
        self._programme: FlowProgramme | None = None

    def run(self) -> None:
        for devices in simple_placements(self._problem):
            self.incumbent.offer(devices)
        levels = self._levels()
        for graph in reversed(levels):
            if self._done():
                return
            ideals = pass_ideals(graph, MAX_IDEALS)
            if ideals is not None:
                self._search_level(graph, ideals, exact=graph is levels[0])
            elif graph.num_units <= MAX_PREFIXES:
                self._search_level(graph, prefix_ideals(graph), exact=False)

    def _levels(self) -> list[PassGraph]:
        """The finest units, and larger ones where their ideals are not quickly searched."""
        finest = pass_graph(self._problem, pass_units(self._problem))
        if pass_ideals(finest, QUICK_IDEALS) is not None:
            return [finest]
        return [finest, pass_graph(self._problem, segmented_units(finest, NUM_SEGMENTS))]

    def _search_level(self, graph: PassGraph, ideals: PassIdeals, *, exact: bool) -> None:
        blocks = pass_blocks(graph, ideals, MAX_BLOCKS)
        if blocks is None:
            return
        # Without counting devices first: it is quicker, and where the blocks happen to fit, it is a proof for any case.
        space = ChainSpace(graph=graph, ideals=ideals, blocks=blocks, states=uncounted_states(graph.serial.size))
        open_space, open_chains = self._search_chains(space, exact=exact, is_bound=exact)
        counts = tuple(self._problem.class_devices[graph.serial].tolist())
        if num_counted_states(counts) <= MAX_STATES and not self._done():
            self._search_chains(
                replace(open_space, states=counted_states(counts)), exact=exact, is_bound=exact and self._contiguous
            )
        if open_chains is not None and exact and not self._contiguous and not self._done():
            self._search_devices(open_chains)

    def _search_chains(self, space: ChainSpace, *, exact: bool, is_bound: bool) -> tuple[ChainSpace, OpenChains | None]:
        """What may still hold a better chain, with what is known of it where it is little enough to search again."""
        programme = self._programme = self._programme or FlowProgramme(space.graph)
        weighings = max(1, space.blocks.before.size * space.states.num_states)
        rounds = min(ROUNDS if exact else COARSE_ROUNDS, 1 + WEIGHINGS // weighings)
        result = raise_bound(space, programme, self.incumbent, self._flow, rounds, self._out_of_time)
        self._flow = result.flows[-1] if result.flows else self._flow
        if is_bound:
            self._raise_bound(result.lower_bound)
        ways = result.space.blocks.before.size
        if result.lower_bound >= self.incumbent.to_beat or ways > MAX_LABEL_BLOCKS:
            return result.space, None
        flows = result.flows[-LABEL_FLOWS:]
        open_chains = OpenChains(
            space=result.space,
            finish_times=FinishTimes(space.graph, space.ideals, programme.source, programme.target, flows),
            flow_bounds=[cheapest_chain(result.space, programme.source, programme.target, flow) for flow in flows],
        )
        budget = self._budget()
        for max_labels in (FEW_LABELS, MANY_LABELS * self._effort)[: 1 + exact]:
            lower = self._search_labels(open_chains, max_labels, budget, devices_apart=False)
            if is_bound:
                self._raise_bound(lower)
            if lower >= self.incumbent.to_beat:
                break
        return result.space, open_chains

    def _search_devices(self, open_chains: OpenChains) -> None:
        """Blocks that share devices, one after the other."""
        problem = self._problem
        if problem.class_devices[~problem.class_is_parallel].sum() > MAX_DEVICES_APART:
            return
        budget = self._budget()
        for max_labels in (FEW_LABELS, MANY_LABELS * self._effort):
            if not self._done():
                self._raise_bound(self._search_labels(open_chains, max_labels, budget, devices_apart=True))

    def _budget(self) -> Budget:
        return Budget(num_extensions=MAX_EXTENSIONS * self._effort)

    def _search_labels(self, open_chains: OpenChains, max_labels: int, budget: Budget, *, devices_apart: bool) -> float:
        if self._out_of_time():
            return 0.0
        return search_labels(
            open_chains, self.incumbent, max_labels, budget, self._out_of_time, devices_apart=devices_apart
        )

    def _raise_bound(self, lower: float) -> None:
        self.lower_bound = max(self.lower_bound, min(lower, self.incumbent.seconds))

    def _done(self) -> bool:
        return self.lower_bound >= self.incumbent.to_beat or self._out_of_time()


def simple_placements(problem: PlacementProblem) -> Iterator[Integers]:
    """Everything on one device, for the first device of each class. Not all need fit."""
    first = np.cumsum(problem.class_devices) - problem.class_devices
    for device, count in zip(first.tolist(), problem.class_devices.tolist(), strict=True):
        if count:
            yield np.full(problem.num_nodes, device, dtype=np.int64)


def path_bound(problem: PlacementProblem) -> float:
    """Seconds of the longest path with each node on its quickest class and nothing moved."""
    quickest = problem.seconds[problem.class_devices > 0].min(axis=0)
    producers = producers_of_nodes(problem)
    finish = [0.0] * problem.num_nodes
    for node in node_order(problem):
        finish[node] = max((finish[producer] for producer in producers[node]), default=0.0) + float(quickest[node])
    return max(finish)
