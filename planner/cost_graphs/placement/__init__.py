"""Placing a DAG of costed nodes on devices of a few classes: the additive model of Tarnawski et al. (NeurIPS 2020).

Here a device's load and memory are sums over its nodes and the tensors at its border, whatever the links. That is what
profiled cost graphs state.

The question   problem; infeasible (why there is no answer)
Its costs      costs (of a placement: seconds and bytes of each device)
Searches       contiguous (least bottleneck of stages in an order), by ideals/, with its incumbent (the best so far);
               free (least bottleneck, any node anywhere), by netlists/
"""
