"""The search for the best order of a training step's passes.

A step's passes are the jobs of a job shop: one machine per device, fixed precedence, and a microbatch that waits for
room where a stage keeps as many as it may. `best_order` composes: `dispatch` makes orders by priorities, `exchange`
improves them, and `lower_bound` proves how good they are.
"""
