"""Mode optimal's searches, and what they find together. The map:

The loop            portfolio (what a search is, who runs them, and the best assignment and bound so far)
By orders           orders: segments of the program's order and of others, for the objective
Training steps      fewer_devices: of few microbatches; moved_cuts: cuts and devices moved on the step's own seconds;
                    several_stages: on each device, round and round or there and back
Over every order    exact_ideals: chains of order ideals (ideal_stages), exact or a bound; many_ideals: a bound where
                    they are too many, over groups of them (ideal_groups); least_over_stages and paths, for both;
                    least_step: of training steps, a bound over either
Small programs      exact_stages: branch and bound over all stages and devices
A lone batch        fork_stages: stages side by side
Anywhere            stages_of_devices: from where bundles are to stages, and a packing where nothing else fits
Loops, compiled     ideal_stages_kernel, ideal_groups_kernel, least_step_kernel
Made better         cut_search (cuts and devices moved on the true objective, and joins that cost nothing), bundle_moves
                    (bundles from stage to stage, in any order: for the bottleneck, a step and a lone batch; or from
                    device to device),
                    replicated (copies on idle devices)
What to say         reasons: why each stage ends where it does
"""
