"""Training a deployment from a Python program.

- `trainer`: steps, evaluation, weights; `torch_loop`: in the place of a module and its optimizer, and `stand_in` of
  their gradients.
- `optimizers`: which optimizer, for which parameters; `learning_rates`: how its rate changes over the steps.
- `cutting`: a batch into microbatches; `counted`: what a loss is a mean over, in each.
- `streams`: to the daemons.
- `checkpoints`: what belongs to one, which daemon writes which part, and how many are kept.
"""

from planner.client.training.checkpoints import Checkpointing
from planner.client.training.learning_rates import constant, cosine, linear
from planner.client.training.optimizers import (
    LossScaling,
    Optimizer,
    ParameterGroup,
    bytes_per_parameter,
    optimizer_from_text,
)
from planner.client.training.trainer import StepResult, Trainer

__all__ = [
    "Checkpointing",
    "LossScaling",
    "Optimizer",
    "ParameterGroup",
    "StepResult",
    "Trainer",
    "bytes_per_parameter",
    "constant",
    "cosine",
    "linear",
    "optimizer_from_text",
]
