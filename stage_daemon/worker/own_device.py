"""A worker sees one GPU, its own, under the number 0: no library can take another one by mistake.

Imports no torch: this comes before anything that might ask for GPUs.
"""

from __future__ import annotations

import os

_CUDA = "cuda:"


def name_in_worker(device: str) -> str:
    """What torch calls the device in its worker: "cpu", or "cuda:0" for "cuda:" and a UUID."""
    return "cuda:0" if device.startswith(_CUDA) else device


def own_device(device: str) -> str:
    """Its name in this process, which sees no other GPU from now on."""
    if device.startswith(_CUDA):
        os.environ["CUDA_VISIBLE_DEVICES"] = device.removeprefix(_CUDA)
    return name_in_worker(device)
