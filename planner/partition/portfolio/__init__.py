"""Mode optimal's searches, and what they find together. The map:

The loop            search (what a search is, and who runs them), portfolio (the best assignment and bound so far)
By orders           other_orders (segments of orders besides the program's), ordered_objectives (latency and memory)
Over every order    ideals, ideal_stages, long_path, exact_ideals: chains of order ideals, exact or a bound
A lone batch        exact_latency: branch and bound over stages anywhere
By relaxation       relaxation, relaxed_placements: the additive model, from which lift leads back to stages
Loops, compiled     ideal_stages_kernel
Made better         cut_search (moves on the true objective), fewest_stages, replicated (copies on idle devices)
What to say         reasons: why each stage ends where it does
"""
