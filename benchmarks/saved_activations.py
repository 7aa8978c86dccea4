"""What a stage keeps of a microbatch for its backward pass, beside what plans say by rule and by measurement.

From the repository's root: `.venv/bin/python -m benchmarks.saved_activations`. Two encoder layers with and without
dropout, and every model family, small, in training on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from planner.client.export import export
from tests.builders.case import Case
from tests.builders.registry import FAMILIES
from tests.builders.saved_activations import kept_bytes, measured_saved, plan_of_one_stage

ROWS, LENGTH, WIDTH, HEADS, LAYERS = 8, 128, 256, 4, 2


class Encoder(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        layers = [
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=dropout, batch_first=True)
            for _ in range(LAYERS)
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.layers(hidden).pow(2).mean()


def cases() -> Iterator[tuple[str, Case]]:
    for dropout in (0.0, 0.1):
        encoder = Encoder(dropout).train()
        yield f"encoder, dropout {dropout:g}", Case(module=encoder, args=(torch.randn(ROWS, LENGTH, WIDTH),))
    for name, family in sorted(FAMILIES.items()):
        yield name, family(train=True)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| model | kept, KiB | planned by rule | planned as measured |")
    print("|---|---|---|---|")
    for name, case in cases():
        kept = kept_bytes(case.module, *case.args, **case.kwargs)
        graph = export(case.module, case.args, case.kwargs).graph
        by_rule, measured = (
            plan_of_one_stage(graph, saved).stages[0].memory.saved_bytes / kept for saved in ({}, measured_saved(graph))
        )
        print(f"| {name} | {kept / 1024:,.0f} | {by_rule:.3f} | {measured:.3f} |", flush=True)


if __name__ == "__main__":
    main()
