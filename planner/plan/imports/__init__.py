"""Other systems' cuts of a model, to be costed as a plan: the way back from planner.plan.exports.

`split` is the result, and what makes a planning mode of it; `layers` reads formats that count layers, `modules` those
that name modules. What a graph does outside of what a format names runs where that system runs it.
"""
