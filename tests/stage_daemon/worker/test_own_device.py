"""Which GPU a worker sees."""

import os

import pytest

from stage_daemon.worker.own_device import own_device


def test_a_worker_sees_its_own_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert own_device("cuda:GPU-5b6e-11") == "cuda:0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-5b6e-11"


def test_a_worker_on_a_cpu_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert own_device("cpu") == "cpu"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
