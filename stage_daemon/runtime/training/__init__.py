"""A training step on one device.

- `records`: what the device is told, once and for each step.
- `step`: does the actions of a step, over channels.
- `passes`: forward and backward passes of one microbatch through one stage.
- `weights`, `optimizers`: what is trained, and how gradients change it.
- `states`: weights, buffers and what optimizers keep, read and written by name between steps; `snapshot` copies them.
"""
