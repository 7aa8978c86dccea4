"""Training pipelines on equal devices whose stages choose: copies, devices per copy, and an alternative for each node.

The problem of Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization" (NeurIPS
2021), solved exactly where the order ideals of the graph can be listed.
"""
