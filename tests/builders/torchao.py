"""torchao, which lies in a folder of the environment, not in the environment.

Wherever transformers finds it, it imports it, which takes a second and says on stderr which of its libraries for GPUs
cannot be loaded. So it is found only while it is imported here.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

FOLDER = Path(sys.prefix) / "torchao"


def torchao(module: str) -> Any:
    """The module torchao.`module`. The Makefile installs it, by requirements/torchao.txt."""
    sys.path.append(str(FOLDER))
    try:
        return importlib.import_module(f"torchao.{module}")
    finally:
        sys.path.remove(str(FOLDER))


def quantised(config: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Two layers from 64 features over 128 to 64."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(dtype).eval()
    torchao("quantization").quantize_(module, config)
    return module
