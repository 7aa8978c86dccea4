"""Least single-pass latency: blocks of accelerators and free-running hosts, bounded by flows along paths.

What is placed     contraction (units: nodes that stay together), unit_graph (as arrays, and joined into larger ones)
What may run when  blocks (what has run at some moment, and pairs of such ideals that fit an accelerator), chain (a way
                   from nothing to all, and the cheapest one); the loops of both: chain_kernel
Bounds             cutting_planes: flows along paths against the cheapest chain, by turns
Exact              label_setting, with finish_times
Devices            devices_of_runs, judged by seconds (what a placement takes)
All of it          latency: one level of units after the other
"""
