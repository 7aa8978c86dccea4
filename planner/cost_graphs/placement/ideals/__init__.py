"""Contiguous placement by search over order ideals: sets of items that are closed under predecessors.

What is an item            contraction (nodes that stay together, and bounds without the free items), absorption (items
                           that lose nothing by joining)
Which sets to search       order_chains (prefixes of a few orders); then all, as `contiguous` beside this folder does;
                           moved_items (those that moves come to, where all are too many)
One search over such sets  least_bottleneck, whose loop is stage_kernel; ideal_costs (what each set adds to a load)
The best so far            incumbent, which gives free items their devices
"""
