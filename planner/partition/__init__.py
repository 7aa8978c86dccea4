"""Which node goes to which stage, on which device. The map:

The question      problem (in numbers), from_graph (from graph, costs and inventory), check_problem, constraints,
                  objective (what is to be least), request (what a mode may be told besides), out_of_time (when to
                  end), before (what ran before)
The answer        assignment; evaluate (what one costs, from the problem alone), which stands on traffic, stage_bytes,
                  windows; score (which of two is better)
Who answers       registry runs the mode that is asked for; modes/ has a file for each, and their table
Mode optimal      portfolio/: its searches, the loop that runs them, and the best plan and bound that they share
Orders            program_orders (what stays together, and orders it can run in), arcs (and orders along them), lattice
                  (order ideals); ordered/: cuts of one order, and walks through devices
Anywhere          placement/: items moved between stages or devices, or packed; list_scheduling: a lone batch
Training          training/: steps, their orders and memory; turns_kernel (when a step ends, for searches, compiled);
                  recomputation/ and activations: what is computed again
Bounds            bounds/: what no assignment undercuts, by arithmetic; the exact searches prove their own
torch.fx's modes  saturate_host: copies on idle devices
What to say       infeasible (why nothing fits), next_best (why here), describe (words)
On the way        least_cut: of a network, exactly
Afterwards        replacement: another assignment in the place of one, of which few weights move

Folders import in one direction: modes, portfolio, bounds, ordered, then placement, training and recomputation.
Why each search is as it is, and what was tried and lost: docs/design.
"""
