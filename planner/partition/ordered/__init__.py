"""Segments of one linear order: which cuts, and which device takes which segment. The map:

Order of devices               device_walks, from hosts
Few devices, each told apart   least_bottleneck sets up program_pass, and search runs over it: state_space (walks
                               spelled out), positions (where to cut), segments and segment_loads (bytes and seconds)
Many devices                   many_devices chooses walks; least_over_walks goes through them, priced_walks bounds where
                               they cannot be counted; host_states: chains on hosts that are left and entered again
Training steps                 cut_moves: cuts and devices moved, on the seconds of the step itself
Hosts of many devices          host_windows, with window_loads; fleets of many unlike hosts too
Unequal links, few nodes       exact_search
What makes searches small      hosts (devices alike), memory_tiers
Loops, compiled                reach_kernel, host_states_kernel, windows_kernel, host_beam_kernel, priced_walks_kernel,
                               cut_moves_kernel
"""
