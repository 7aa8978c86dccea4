"""What workers are forked from: all that they import is there, and out of their garbage collections' way."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
import torch
asks_for_gpus, torch.cuda.is_available = torch.cuda.is_available, lambda: sys.exit("GPUs are asked for before the fork")
import stage_daemon.worker.preload
torch.cuda.is_available = asks_for_gpus
assert gc.isenabled()
assert gc.get_freeze_count() > len(gc.get_objects())
before = set(sys.modules)
import stage_daemon.worker.entry, stage_daemon.worker.worker
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.nn.functional.linear(torch.empty(2, 3, 4).transpose(0, 1).reshape(6, 4), torch.empty(5, 4))
print(*sorted(set(sys.modules) - before))
layer = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(layer.parameters())
layer(torch.ones(2, 3)).sum().backward()
optimizer.step()
assert "torch._dynamo.eval_frame" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.services
def test_workers_import_nothing_and_collect_only_their_own() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == []
