"""Least single-pass latency: blocks of accelerators and free-running hosts, bounded by flows along paths.

What is placed     contraction (units: nodes that stay together), coarsening (larger ones), unit_graph (as arrays)
What may run when  unit_ideals (what has run at some moment), blocks (pairs of ideals that fit an accelerator, listed by
                   blocks_kernel), chain (a way from nothing to all, and the cheapest one: cheapest_chain_kernel)
Bounds             cutting_planes: flows along paths against the cheapest chain, by turns
Exact              label_setting, with finish_times
Devices            devices_of_runs
"""
