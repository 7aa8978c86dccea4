"""Training pipelines on equal devices whose stages choose: copies, devices per copy, and an alternative for each node.

The problem of Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization" (NeurIPS
2021), solved exactly where the order ideals of the graph can be listed.

The question          problem (what a stage costs, and inputs that are left out)
The least seconds     limit_search, which asks chains whether stages within a limit exist; ideal_sums (what it looks up)
One stage             alternatives (a knapsack: one alternative for each node)
"""
