"""Times the nodes of a graph one by one: distinct nodes, inputs made up, a clock, and the process around them."""
