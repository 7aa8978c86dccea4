"""Times the nodes of a graph one by one: distinct nodes, inputs made up, a clock, deliveries from and to clients, and
the process around them."""
