"""Least latency of a single pass: exact on graphs with few order ideals, else the best placement found and a bound."""

from __future__ import annotations

import numpy as np

from planner.errors import Infeasible
from planner.partition.placement.pass_blocks import PassBlocks, pass_blocks
from planner.partition.placement.pass_chain import ChainSpace, arc_seconds
from planner.partition.placement.pass_flow import FlowGame
from planner.partition.placement.pass_graph import pass_graph
from planner.partition.placement.pass_ideals import pass_ideals
from planner.partition.placement.pass_mix import cheapest_chain, worth_keeping
from planner.partition.placement.pass_placement import place_runs, placed_seconds
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never

def best_latency(problem, *, contiguous=False, effort=1, out_of_time=never, log=None):
    graph = pass_graph(problem)
    ideals = pass_ideals(graph, 200_000)
    blocks = pass_blocks(graph, ideals, 100_000_000)
    space = ChainSpace(graph=graph, ideals=ideals, blocks=blocks)
    game = FlowGame(graph)
    best, value, lower = None, np.inf, 0.0
    flow=None
    center=None
    for iteration in range(300):
        if flow is None:
            top, flow = game.best()
            top=np.inf
        mixed = cheapest_chain(space, game.source, game.target, flow)
        if mixed.seconds > lower:
            lower = mixed.seconds; center = flow
        devices = place_runs(graph, mixed.runs, contiguous=contiguous)
        secs = None if devices is None else placed_seconds(problem, devices)
        if secs is not None and secs < value: value, best = secs, devices
        game.add(arc_seconds(graph, mixed.runs, game.source, game.target))
        top, lp = game.best()
        flow = 0.5*lp+0.5*center
        keep = worth_keeping(space, mixed, value*(1+1e-9))
        if keep.sum() < .8*keep.size:
            ends=np.concatenate([[0],np.cumsum(keep)])
            space = ChainSpace(graph=graph, ideals=ideals, blocks=PassBlocks(begin=ends[blocks.begin],before=blocks.before[keep],serial_class=blocks.serial_class[keep],seconds=blocks.seconds[keep]))
            blocks=space.blocks
        if log: log(iteration, mixed.seconds, 'lower',lower,'top',top,'value',value,secs,'nblk',sum(len(r.units)>1 for r in mixed.runs),blocks.before.size)
        if top-lower<1e-6 or value-lower<1e-7: break
    return best,value,lower
