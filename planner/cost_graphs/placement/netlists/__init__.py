"""Placement free of any order, as netlist partitioning: nodes are cells, tensors hyperedges (nets) over them.

The question     netlist
A first answer   planner.partition.placement.packing
Better ones      annealing (annealing_kernel: its steps), neighbourhoods (some devices after others, by an integer
                 programme)
The whole        milp (the integer programme, which may prove), lower_bound (by linear programming)
They take the best in hand and better it in `free`, beside this folder.
"""
