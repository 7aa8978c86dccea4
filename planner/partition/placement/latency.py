"""Least latency of a single pass: exact on graphs with few order ideals, else the best placement found and a bound."""

from __future__ import annotations

import numpy as np

from planner.partition.placement.pass_blocks import pass_blocks
from planner.partition.placement.pass_borders import PassBorders
from planner.partition.placement.pass_chain import ChainSpace
from planner.partition.placement.pass_flow import FlowGame
from planner.partition.placement.pass_game import Incumbent, play
from planner.partition.placement.pass_graph import pass_graph
from planner.partition.placement.pass_ideals import pass_ideals
from planner.partition.placement.pass_labels import search_labels
from planner.partition.placement.pass_mix import cheapest_chain
from planner.partition.placement.pass_states import counted, uncounted
import time

def best_latency(problem, *, contiguous=False, effort=1, out_of_time=None, log=None):
    graph = pass_graph(problem)
    ideals = pass_ideals(graph, 200_000)
    blocks = pass_blocks(graph, ideals, 100_000_000)
    inc = Incumbent(graph=graph, contiguous=contiguous)
    lowers=[]
    for states in (uncounted(graph), counted(graph,1000)):
        game = FlowGame(graph)
        space = ChainSpace(graph=graph, ideals=ideals, blocks=blocks, states=states)
        res = play(space, game, inc, 300, lambda: False)
        if log: log('game', res.lower_bound, inc.seconds, res.space.blocks.before.size, len(res.mixes))
        lower=min(res.lower_bound, inc.seconds)
        if lower < inc.to_beat:
            flows=[f for f,_ in res.mixes[-6:]]
            mixes=[cheapest_chain(res.space, game.source, game.target, f) for f in flows]
            borders=PassBorders(graph, ideals, game.source, game.target, flows)
            t=time.process_time()
            for m in (10, 1000):
                l=search_labels(res.space, borders, mixes, inc, m, lambda: False)
                if log: log('labels', m, l, inc.seconds, time.process_time()-t)
                lower=max(l,lower)
                if lower>=inc.to_beat: break
        lowers.append(lower)
        if lower>=inc.to_beat: break
    return inc.devices, inc.seconds, lowers[0], lowers[-1]
