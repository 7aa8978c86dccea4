"""Contiguous placement by search over order ideals: sets of items that are closed under predecessors.

What is an item            contraction (nodes that stay together), absorption (items that lose nothing by joining)
Which sets to search       order_chains (prefixes of a few orders), then all_ideals
One search over such sets  least_bottleneck, whose loop is stage_kernel; ideal_costs (what each set adds to a load),
                           pruning (which can still finish, and with which devices used)
Items without an order     free_items (leaves them out, for a bound), free_placement (gives them devices)
The best so far            incumbent
"""
