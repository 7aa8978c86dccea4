"""Loops as they are written for torch, over daemons: a plain one, or the `Trainer` of Hugging Face.

    planner-cli up --daemons 2
    python -m examples.torch_loops --server 127.0.0.1:50051 [--hugging-face]

Both know nothing of stages. They run twice, over the daemons and in this process, and the losses of both are printed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from examples import tiny_gpt
from planner.client import PlannerClient, export
from planner.client.training.torch_loop import PipelinedModule, PipelinedOptimizer
from planner.partition.objective import Objective, Training
from planner.plan.options import OptimalMode, PlanOptions

RATE = 3e-3
ROWS = 16
# Takes a model, its optimizer and a number of steps; returns the losses.
Loop = Callable[[nn.Module, torch.optim.Optimizer, int], list[float]]


class Labelled(nn.Module):
    """Takes names and returns names, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt, self.example, *_ = tiny_gpt.build()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.gpt(input_ids, labels)}


def batches() -> Iterator[dict[str, torch.Tensor]]:
    for ids, targets in tiny_gpt.batches():
        yield {"input_ids": ids, "labels": targets}


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> list[float]:
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    losses = []
    for batch in itertools.islice(batches(), num_steps):
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(float(loss.detach()))
    return losses


def hugging_face(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> list[float]:
    import transformers

    rows = [
        {name: value[row] for name, value in batch.items()}
        for batch in itertools.islice(batches(), num_steps)
        for row in range(ROWS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=ROWS,
            learning_rate=RATE,
            lr_scheduler_type="cosine",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, None))
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def over_daemons(client: PlannerClient, module: Labelled, loop: Loop, num_steps: int) -> list[float]:
    """As many stages as there are devices, of four microbatches in each step. The module has the weights afterwards."""
    rows = {0: torch.export.Dim("rows", min=1, max=256)}
    example = dict(zip(("input_ids", "labels"), module.example, strict=True))
    exported = export(module, (), example, dynamic_shapes=dict.fromkeys(example, rows), name="tiny-gpt")
    options = PlanOptions(
        # A search as long as that of a model of many layers would take longer than all the steps.
        mode=OptimalMode(num_stages=len(client.list_devices()), effort=0.1),
        objective=Objective.STEP_TIME,
        training=Training(microbatches=4),
    )
    deployment = client.deploy(client.create_plan(client.submit(exported).id, options).id)
    try:
        with client.train(deployment.id, f"adamw:lr={RATE}", loss="loss", outputs=()) as trainer:
            model = PipelinedModule(trainer)
            losses = loop(model, PipelinedOptimizer(model), num_steps)
            module.load_state_dict(model.state_dict())
    finally:
        client.stop(deployment.id)
    return losses


def main(arguments: Sequence[str] | None = None) -> tuple[list[float], list[float]]:
    """The losses over daemons, and those of this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="127.0.0.1:50051")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hugging-face", action="store_true")
    options = parser.parse_args(arguments)
    loop: Loop = hugging_face if options.hugging_face else plain
    module = Labelled()
    twin = copy.deepcopy(module)
    with PlannerClient(options.server) as client:
        losses = over_daemons(client, module, loop, options.steps)
    expected = loop(twin, torch.optim.AdamW(twin.parameters(), lr=RATE), options.steps)
    for step, (ours, theirs) in enumerate(zip(losses, expected, strict=True), start=1):
        print(f"step {step}: loss {ours:.4f} over daemons, {theirs:.4f} in one process")
    return losses, expected


if __name__ == "__main__":
    main()
