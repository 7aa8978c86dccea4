"""What a daemon says of its device."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_daemon.control.device import available_memory_bytes, find_device, gpu_kind
from stage_daemon.errors import Unavailable


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA", "gpu"),
    ],
)
def test_kind_is_the_models_name(name: str, kind: str) -> None:
    assert gpu_kind(name) == kind


def test_cpu_takes_what_it_is_given_and_finds_out_the_rest() -> None:
    found = find_device(gpu_index=None)
    assert found.id == f"{found.host}/cpu0"
    assert (found.kind, found.torch_device) == ("cpu", "cpu")
    assert found.memory_bytes > 0
    named = find_device(gpu_index=None, device_id="rack/cpu7", kind="epyc", memory_bytes=5)
    assert (named.id, named.kind, named.memory_bytes) == ("rack/cpu7", "epyc", 5)


def test_memory_that_the_kernel_does_not_tell_is_asked_for(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemAvailable:   40 kB\n")
    assert available_memory_bytes(meminfo) == 40 * 1024
    meminfo.write_text("MemTotal:  100 kB\n")
    with pytest.raises(Unavailable, match="--memory"):
        available_memory_bytes(meminfo)


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match=r"GPU 999 was not found: .*--device cpu"):
        find_device(gpu_index=999)
