"""Items on devices, whatever they are: bundles of a program, or nodes of a cost graph.

First answer   packing (by memory alone)
Better ones    stage_moves: items moved from stage to stage of a pipeline, or from device to device, for any costs
               (stage_moves_kernel: its steps)
What they use  device_states (which devices are used, by class); compiled (numba, or plain Python); draws_kernel (random
               numbers, the same on any machine)
"""
