"""Placing a DAG of costed nodes on devices of a few classes: the additive model of Tarnawski et al. (NeurIPS 2020).

Here a device's load and memory are sums over its nodes and the tensors at its border, whatever the links. That is what
profiled cost graphs state, and a relaxation of a PartitionProblem; exact and portfolio search both work on it.

The question   problem; infeasible (why there is no answer)
Its costs      costs (of a placement: seconds and bytes of each device)
Searches       contiguous (least bottleneck of stages in an order), by ideals/; free (least bottleneck, any node
               anywhere), by netlists/. Cost graphs have another for latency, which only `solve` asks for
What they use  incumbent (the best so far); device_states (which devices are used, by class); stage_moves (items of a
               pipeline from stage to stage, for any costs; stage_moves_kernel: its steps); compiled (numba, or plain
               Python); draws_kernel (random numbers, the same on any machine)
"""
