"""Training plans on Piper's published profiles, beside the values of its authors' own program.

    python -m benchmarks.plan_training_profiles [name ...]

The profiles are of Tarnawski et al., NeurIPS 2021; their values and seconds were taken from their program on one core.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from planner.cost_graphs.hybrid.limit_search import best_hybrid
from planner.cost_graphs.hybrid.problem import stage_costs
from planner.cost_graphs.training_profile import read_training_profile
from planner.errors import Infeasible

INSTANCES = Path(__file__).parent / "instances" / "training"
GIB = 1 << 30
BANDWIDTH = 25 * GIB
# (profile, devices, GiB per device, the authors' program's time per sample, None where it finds no plan, its seconds)
CELLS = (
    ("bert32a100", 8, 8, 0.16585575, 0.05),
    ("bert32a100", 64, 8, 0.0202005503, 0.21),
    ("bert32a100", 2048, 8, 0.000703591184, 43.49),
    ("bert32a100", 32, 80, 0.0308440482, 0.12),
    ("bert32a100", 1024, 80, 0.00115875734, 9.55),
    ("bert32a100", 64, 2, 0.0320300812, 0.19),
    ("bert32a100", 512, 2, 0.00366752626, 1.37),
    ("bert32a100", 64, 1, None, 0.16),
    ("bert32a100", 128, 1, 0.03887175, 0.25),
    ("gnmt", 4, 1.2, 137.130992, 240.09),
    ("resnet", 8, 4, 73.493286, 2.79),
    ("resnet", 16, 1.5, None, 4.29),
    ("resnet", 32, 2, 24.6258985, 6.04),
    ("resnet", 64, 4, 8.66677285, 9.11),
    ("resnet", 128, 1, 19.8563286, 11.32),
)


def main() -> None:
    names = set(sys.argv[1:])
    # Compiles the kernels, or loads them.
    _solve(*CELLS[3][:3])
    print("| profile | devices | GiB | time per sample | lower bound | theirs | s of CPU | theirs |")
    print("|---|---|---|---|---|---|---|---|")
    for name, devices, gib, theirs, their_seconds in CELLS:
        if names and name not in names:
            continue
        started = time.process_time()
        try:
            value, bound = _solve(name, devices, gib)
            columns = f"{value:.9g} | {bound:.9g}"
        except Infeasible:
            columns = "none | none"
        seconds = time.process_time() - started
        print(
            f"| {name} | {devices} | {gib:g} | {columns} | {theirs or 'none'} | {seconds:.1f} | {their_seconds} |",
            flush=True,
        )


def _solve(name: str, devices: int, gib: float) -> tuple[float, float]:
    document = json.loads((INSTANCES / f"{name}.json").read_text())
    profile = read_training_profile(
        document, num_devices=devices, memory_bytes=float(int(gib * GIB)), bandwidth=float(BANDWIDTH)
    )
    plan = best_hybrid(profile.problem)
    costs = stage_costs(profile.problem, plan.stages)
    assert max(cost.held_bytes for cost in costs) <= profile.problem.memory_bytes
    return max(cost.seconds for cost in costs), plan.lower_bound_seconds


if __name__ == "__main__":
    main()
