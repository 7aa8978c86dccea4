"""Times the nodes of a graph one by one: distinct nodes, inputs made up, a clock, deliveries from and to clients, what
ends a training step, and the process around them."""
