"""Cost graphs from files placed without a server: what `planner-cli solve` runs, a leaf on the engine of plans.

| question | file |
|---|---|
| which search answers which file and objective | `solve` |
| how long a search may take | `limits` |
| the format of Tarnawski et al. (NeurIPS 2020) | `cost_graph` |
| the format of Piper's training profiles (NeurIPS 2021), and its search | `training_profile`, `hybrid` |
| the least bottleneck where loads add up, contiguous or free | `placement` |
| the least latency of a single pass | `single_pass` |
| free placements: two processes side by side | `two_searches`; each is `worker`, what they tell each other `messages` |
"""
