"""Published cost graphs placed within a time limit: `planner.partition.placement` in processes of its own.

`two_searches` starts two processes of `worker`, passes on what each sends (`messages`) and ends them in time.
"""
